"""A replay asks for the same steps with the same arguments, or its run is parked: nothing is paid twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import aft
from aft import do
from aft.codec import arguments_codec
from aft.runs.states import Status
from tests.acceptance import bills
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually

did: dict[str, list[Any]] = defaultdict(list)
#: What the flow's code hands to its steps: a test changes it between two passes, as a deploy or chance would.
given: dict[str, Any] = {}


def dispatch(setup: Setup, hashes: int) -> subprocess.Popen[bytes]:
    """Start a dispatcher in a process whose texts have other hashes."""
    place = {**os.environ, **setup.environ(), "PYTHONPATH": str(Path.cwd()), "PYTHONHASHSEED": str(hashes)}
    return subprocess.Popen([sys.executable, "-m", "aft", "dispatcher", bills.__name__], env=place)


def die_and_go_on(setup: Setup, flow: Any, ledger: Path) -> aft.Run:
    app = setup.app()
    run = app.submit(flow, str(ledger))
    assert dispatch(setup, 1).wait(60) == -9
    second = dispatch(setup, 2)
    try:
        eventually(lambda: run.status in (Status.COMPLETED, Status.PARKED))
    finally:
        second.terminate()
        second.wait(60)
    return run


@pytest.mark.parametrize("flow", [bills.paying, bills.paying_without, bills.paying_noted], ids=lambda flow: flow.name)
def test_a_set_that_an_activity_returned_or_takes_is_the_same_after_a_death(
    setup: Setup, tmp_path: Path, flow: Any
) -> None:
    run = die_and_go_on(setup, flow, tmp_path / "ledger")
    assert run.status is Status.COMPLETED, run.row.reason
    assert len((tmp_path / "ledger").read_text().split()) == len(set((tmp_path / "ledger").read_text().split())) == 8


def test_a_flow_that_goes_through_a_set_of_its_own_is_parked_and_told_why(setup: Setup, tmp_path: Path) -> None:
    run = die_and_go_on(setup, bills.paying_own_set, tmp_path / "ledger")
    assert run.status is Status.PARKED
    assert "ReplayDiverged" in (run.row.reason or "")
    assert "bill='bill-" in (run.row.reason or "")
    assert len((tmp_path / "ledger").read_text().split()) == 3


# One process, code that changes --------------------------------------------------------------------------------------


@aft.activity
def note(order: str, what: Any) -> None:
    did[order].append(what)


def undo_more(order: str, what: Any, more: int) -> None:
    did[order].append(("undone", more))


@aft.compensate_with(undo_more)
@aft.activity
def note_more(order: str, what: Any, more: int = 0) -> None:
    did[order].append((what, more))


@aft.flow
def noting(order: str) -> str:
    note(order, given[order])
    aft.wait_for("go")
    return "noted"


@aft.flow
def noting_more(order: str) -> str:
    note_more(order, "x")
    aft.wait_for("go")
    note_more(order, "y")
    return "noted"


def test_a_default_that_has_changed_is_no_difference_and_what_was_done_is_undone_with_the_old_one(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    run = waits(app, noting_more, order)

    def later(order: str, what: Any, more: int = 1) -> None:
        did[order].append((what, more))

    monkeypatch.setattr(note_more, "arguments", arguments_codec(later))
    with app.dispatcher():
        run.signal("go")
        assert run.result(60) == "noted"
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert did[order] == [("x", 0), ("y", 1), ("undone", 1), ("undone", 0)]


@aft.flow
def child(order: str, what: Any) -> Any:
    return aft.wait_for("go")


@aft.flow
def calling(order: str) -> Any:
    child(order, given[order])
    return "called"


def waits(app: aft.Aft, flow: Any, order: str) -> aft.Run:
    with app.dispatcher():
        run = app.submit(flow, order)
        eventually(lambda: run.status is Status.WAITING)
    return run


@pytest.mark.parametrize(
    ("before", "after"), [("a", "b"), (1, True), ({"x": [1]}, {"x": [2]}), ("x" * 10_000, "y")], ids=str
)
def test_other_arguments_at_a_recorded_step_park_the_run_and_both_are_named(
    setup: Setup, order: str, before: Any, after: Any
) -> None:
    app = setup.app()
    given[order] = before
    run = waits(app, noting, order)
    given[order] = after
    with app.dispatcher():
        run.signal("go")
        eventually(lambda: run.status is Status.PARKED)
        reason = run.row.reason or ""
        assert "step 1 was called with what=" in reason
        assert len(reason) < 1_000
        given[order] = before
        run.retry()
        assert run.result(60) == "noted"
    assert did[order] == [before]


@pytest.mark.parametrize(
    ("before", "after"), [({"x": 1, "y": 2}, {"y": 2, "x": 1}), ({1, 2}, {2, 1}), ({1: 2, 3: 4}, {3: 4, 1: 2})], ids=str
)
def test_the_same_arguments_written_otherwise_are_the_same(setup: Setup, order: str, before: Any, after: Any) -> None:
    app = setup.app()
    given[order] = before
    run = waits(app, noting, order)
    given[order] = after
    with app.dispatcher():
        run.signal("go")
        assert run.result(60) == "noted"


def test_another_argument_of_a_child_that_has_not_ended_parks_the_parent(setup: Setup, order: str) -> None:
    app = setup.app()
    given[order] = "a"
    run = waits(app, calling, order)
    given[order] = "b"
    with app.dispatcher():
        eventually(lambda: len(app.runs(status="waiting")) == 2)
        (started,) = app.runs(flow="child")
        app.run(started.id).signal("go")
        eventually(lambda: run.status is Status.PARKED)
    assert "what='a'" in (run.row.reason or "")
    assert "what='b'" in (run.row.reason or "")


@aft.activity(name="fails_otherwise", levels=[aft.Level("20ms", tries=100)])
def fails(order: str, what: str) -> None:
    did[order].append(what)
    given[order] = "b"
    raise aft.Recoverable("again")


@aft.flow
def failing(order: str) -> None:
    fails(order, given[order])


def refund(order: str, what: str, result: Any) -> None:
    did[order].append(f"refund {what}")


@aft.compensate_with(refund, when="started")
@aft.activity(levels=[aft.Level("20ms", tries=100)])
def arms(order: str, what: str) -> None:
    did[order].append(what)
    given[order] = "b"
    raise aft.Recoverable("again")


@aft.flow
def arming(order: str) -> None:
    arms(order, given[order])


@pytest.mark.parametrize("flow", [failing, arming], ids=lambda flow: flow.name)
def test_a_step_that_is_tried_again_has_the_arguments_of_its_first_try_or_parks(
    setup: Setup, order: str, flow: Any
) -> None:
    app = setup.app()
    given[order] = "a"
    with app.dispatcher():
        run = app.submit(flow, order)
        eventually(lambda: run.status is Status.PARKED)
    assert did[order] == ["a"]
    assert "what='a'" in (run.row.reason or "")
    assert "what='b'" in (run.row.reason or "")


def pay_back(order: str, more: int) -> None:
    did[order].append(f"pay back {more}")


def pay(order: str, more: int) -> None:
    did[order].append(f"pay {more} under {aft.current().key[-4:]}")
    if len(did[order]) == 1:
        given[order]()
        raise aft.Recoverable("again")


@aft.compensate_with(pay_back, when="started")
@aft.activity(levels=[aft.Level("20ms", tries=1)])
def pay_started(order: str, more: int = 10) -> None:
    pay(order, more)


@aft.compensate_with(pay_back)
@aft.activity(levels=[aft.Level("20ms", tries=1)])
def pay_returned(order: str, more: int = 10) -> None:
    pay(order, more)


@aft.flow
def paying_by_default(order: str, started: bool) -> None:
    (pay_started if started else pay_returned)(order)
    raise ValueError("undo it")


@pytest.mark.parametrize("started", [True, False], ids=["started", "returned"])
def test_a_default_that_changes_between_two_tries_of_a_step_does_not_change_what_goes_with_its_key(
    setup: Setup, order: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(order: str, more: int = 20) -> None: ...

    def deploy() -> None:
        monkeypatch.setattr(pay_started if started else pay_returned, "arguments", arguments_codec(later))

    given[order] = deploy
    app = setup.app()
    with app.dispatcher():
        run = app.submit(paying_by_default, order, started)
        eventually(lambda: run.status is Status.COMPENSATED)
    assert did[order] == ["pay 10 under /0/1", "pay 10 under /0/1", "pay back 10"]


def test_arguments_that_a_rule_has_changed_are_no_difference(setup: Setup, order: str) -> None:
    app = setup.app()
    given[order] = "a"
    changes: list[Any] = [do.suspend("activity"), do.set(args={"what": "ruled"}), do.resume("activity")]
    teach(app, noting, "activity_pre", "activity.args.what == 'a'", *changes, activity="note")
    run = waits(app, noting, order)
    with app.dispatcher():
        run.signal("go")
        assert run.result(60) == "noted"
    assert did[order] == ["ruled"]


@aft.activity
def one(item: str) -> str:
    return item


@aft.flow
def mapping_a_set(order: str) -> list[str]:
    return aft.map(one, {"a", "b"})


def test_a_set_is_refused_in_map(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(mapping_a_set, order)
        eventually(lambda: run.status is Status.PARKED)
    assert "aft.map: a set has no order that a replay could repeat; give it sorted(…)" in (run.row.reason or "")
