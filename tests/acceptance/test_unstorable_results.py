"""An activity that had its effect and returns what cannot be stored: its undo is owed, whatever becomes of the run."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import aft
from aft.app.run import Run
from aft.runs.states import Status
from tests.acceptance.agency import do
from tests.setups import Setup, eventually, run_to
from tests.world import keys, ledger, shut

#: What each step returns, if not its name.
returns: dict[tuple[str, str], Any] = {}
#: What compensators were given as the result.
results: defaultdict[str, list[Any]] = defaultdict(list)


@pytest.fixture
def order() -> Iterator[str]:
    yield (made := secrets.token_hex(4))
    for known in [known for known in returns if known[0] == made]:
        del returns[known]


def _act(order: str, what: str) -> str:
    do(order, what)
    keys[order, what].append(aft.current().key)
    result: str = returns.get((order, what), what)  # or an object that is none
    return result


def undo_plainly(order: str, what: str) -> None:
    ledger[order].append(f"un{what}")


def undo_with_result(order: str, what: str, result: str) -> None:
    results[order].append(result)
    ledger[order].append(f"un{what}")


def undo_with_any(order: str, what: str, result: str | aft.Unknown) -> None:
    results[order].append(result)
    ledger[order].append(f"un{what}")


@aft.compensate_with(undo_plainly)
@aft.activity(name="unstorable_plain", levels=[])
def plain(order: str, what: str) -> str:
    return _act(order, what)


@aft.compensate_with(undo_with_result)
@aft.activity(name="unstorable_needs_result", levels=[])
def needs_result(order: str, what: str) -> str:
    return _act(order, what)


@aft.compensate_with(undo_with_any)
@aft.activity(name="unstorable_takes_any", levels=[])
def takes_any(order: str, what: str) -> str:
    return _act(order, what)


@aft.compensate_with(undo_plainly)
@aft.activity(name="unstorable_late", timeout="300ms", levels=[])
def late(order: str, what: str) -> str:
    return _act(order, what)


STEPS = {"plain": plain, "needs result": needs_result, "takes any": takes_any, "late": late}


@aft.flow(name="unstorable_flow")
def two_steps(order: str, how: str) -> str:
    plain(order, "first")
    return STEPS[how](order, "second")


@aft.flow(name="unstorable_parent")
def parent(order: str, how: str) -> str:
    return two_steps(order, how)


def begin(app: aft.Aft, flow: Any, order: str, how: str) -> Run[Any]:
    """Let a run be parked because its second step returned what cannot be stored."""
    returns[order, "second"] = object()
    run = app.submit(flow, order, how)
    eventually(lambda: any(found.status is Status.PARKED for found in app.runs()))
    assert ledger[order] == ["first", "second"]
    return run


@pytest.mark.parametrize("flow", [two_steps, parent])
@pytest.mark.parametrize("how", ["plain", "takes any"])
def test_a_cancel_undoes_it(setup: Setup, order: str, flow: Any, how: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = begin(app, flow, order, how)
        if flow is two_steps:
            assert [undo.path for undo in run.compensate(dry_run=True)] == ["2", "1"]
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[order] == ["first", "second", "unsecond", "unfirst"]
    assert results[order] == ([aft.UNKNOWN] if how == "takes any" else [])


@pytest.mark.parametrize(("settle", "status"), [("frame_done", "compensated"), ("skip_frame", "failed")])
def test_one_whose_compensator_needs_the_result_is_settled_by_a_person(
    setup: Setup, order: str, settle: str, status: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = begin(app, two_steps, order, "needs result")
        run.cancel()
        eventually(lambda: "it takes the result, which is not known" in (run.row.reason or ""))
        assert ledger[order] == ["first", "second"]
        getattr(run, settle)(note="looked at")
        eventually(lambda: run.status == status)
    assert ledger[order] == ["first", "second", "unfirst"]


def test_a_retry_after_the_fix_executes_it_again_under_its_key_and_it_is_undone_once(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = begin(app, two_steps, order, "needs result")
        del returns[order, "second"]
        run.retry()
        assert run.result(60) == "second"
        assert keys[order, "second"][0] == keys[order, "second"][1]
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert ledger[order] == ["first", "second", "second", "unsecond", "unfirst"]
    assert results[order] == ["second"]


def test_a_late_one_is_undone(setup: Setup, order: str) -> None:
    gate = shut(order, "second")
    returns[order, "second"] = object()
    with run_to(setup.app(grace="300ms"), two_steps, order, "late", status=Status.COMPENSATED) as run:
        gate.set()
        eventually(lambda: ledger[order] == ["first", "unfirst", "second", "unsecond"])
        eventually(lambda: run.status is Status.COMPENSATED)


def test_one_whose_owner_has_lost_the_run_is_undone(setup: Setup, order: str) -> None:
    gate = shut(order, "second")
    returns[order, "second"] = object()
    with run_to(setup.app(grace="300ms"), two_steps, order, "plain") as run:
        assert gate.reached.wait(60)
        run.release()
        run.cancel()
        gate.set()
        eventually(lambda: run.status is Status.COMPENSATED)
        eventually(lambda: ledger[order].count("unsecond") >= ledger[order].count("second"))
    assert ledger[order].count("unfirst") == 1


@aft.flow(name="unstorable_nested")
def nested(order: str, depth: int) -> str:
    if depth == 0:
        return plain(order, "first")
    with aft.savepoint():
        return nested.fn(order, depth - 1)


def test_a_step_that_is_nested_too_deeply_to_be_stored_is_not_executed(setup: Setup, order: str) -> None:
    app = setup.app()
    with run_to(app, nested, order, 210, status=Status.PARKED) as run:
        assert "make a child flow of the inner ones" in (run.row.reason or "")
        assert app.submit(nested, order, 100).result(60) == "first"
    assert ledger[order] == ["first"]
