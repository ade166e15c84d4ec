"""Where two things happen at once, or one thing at the worst moment: what a review found, kept from coming back."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import pytest
from sqlalchemy import text

import aft
from aft.errors import StoreError
from aft.flows.steps import attempt
from aft.flows.steps.attempt import MOST_LOST
from aft.runs.ownership.owner import Owner
from tests.setups import Setup, eventually
from tests.world import gates, ledger

once: dict[str, bool] = defaultdict(bool)


class Final(Exception):
    """For good."""


def first_time(order: str) -> bool:
    seen, once[order] = once[order], True
    return not seen


@aft.activity(levels=[])
async def exits(order: str) -> None:
    sys.exit(3)


@aft.activity
async def lives(order: str) -> str:
    return "alive"


@aft.flow
def exiting(order: str) -> str:
    exits(order)
    return "never"


@aft.flow
def living(order: str) -> str:
    alive: str = lives(order)
    return alive


def test_an_async_activity_that_exits_fails_alone(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match="SystemExit"):
            app.submit(exiting, order).result(60)
        assert app.submit(living, order).result(60) == "alive"


def withdraw(order: str) -> None:
    ledger[order].append("withdraw")


@aft.compensate_with(withdraw)
@aft.activity(timeout="1s", levels=["20ms"])
def lags(order: str) -> str:
    if aft.current().attempt == 1:
        gates[order].wait(60)
        ledger[order].append("late effect")
    else:
        ledger[order].append("effect")
    return "done"


@aft.activity(levels=[], unrecoverable=(Final,))
def fails(order: str) -> None:
    raise Final(order)


@aft.flow
def lagging(order: str) -> None:
    lags(order)
    fails(order)


def test_an_effect_that_arrives_after_its_step_was_undone_is_undone_too(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(lagging, order)
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        assert ledger[order] == ["effect", "withdraw"]
        gates[order].set()
        eventually(lambda: ledger[order] == ["effect", "withdraw", "late effect", "withdraw"])
        eventually(lambda: (row := run.row).worker_id is None and row.status == "compensated")


@aft.activity
def interrupted(order: str) -> str:
    if first_time(order):
        raise KeyboardInterrupt
    ledger[order].append("interrupted")
    return "done"


@aft.activity
def unlock(order: str) -> None:
    ledger[order].append("unlock")


@aft.flow
def locking(order: str) -> str:
    try:
        return interrupted(order)
    finally:
        unlock(order)


@aft.flow
async def locking_async(order: str) -> str:
    try:
        return interrupted(order)
    finally:
        unlock(order)


@pytest.mark.parametrize("flow", [locking, locking_async], ids=["plain", "async"])
def test_an_interrupt_lets_no_further_step_happen_and_the_run_goes_on_elsewhere(
    setup: Setup, order: str, flow: aft.Flow[[str], str], quick_beats: float
) -> None:
    app = setup.app(lease=quick_beats, grace="300ms")
    with pytest.raises(KeyboardInterrupt):
        app.start(flow, order)
    assert ledger[order] == []
    (run,) = app.runs()
    with app.dispatcher():
        assert run.result(60) == "done"
    assert ledger[order] == ["interrupted", "unlock"]


@aft.activity(transactional=True, levels=[])
def transact(order: str) -> int:
    ledger[order].append(f"transact {aft.current().attempt}")
    return int(aft.session().execute(text("SELECT 1")).scalar_one())


@aft.flow
def transacting(order: str) -> int:
    return transact(order)


def lose_transactions(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Have so many transactions lost when they are about to commit."""
    real: Any = Owner.write_in
    left = iter(range(times))

    def away(*args: Any, **kwargs: Any) -> None:
        if next(left, None) is not None:
            raise StoreError("the connection was lost", transient=True)
        real(*args, **kwargs)

    monkeypatch.setattr(Owner, "write_in", away)


def test_a_transaction_that_is_lost_is_made_once_more_as_the_same_attempt(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    lose_transactions(monkeypatch, MOST_LOST - 1)
    with app.dispatcher():
        assert app.submit(transacting, order).result(60) == 1
    assert ledger[order] == ["transact 1"] * MOST_LOST
    assert app.faults() == []


def test_an_activity_whose_transaction_is_lost_again_and_again_has_failed(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    lose_transactions(monkeypatch, MOST_LOST)
    with app.dispatcher():
        run = app.submit(transacting, order)
        eventually(lambda: run.status == "compensated")
    (fault,) = app.faults()
    assert (
        fault.message == f"the connection was lost; its transaction could not be committed, {MOST_LOST} times in a row"
    )
    assert ledger[order] == ["transact 1"] * MOST_LOST


def test_a_process_that_stops_gives_a_run_back_whose_transaction_was_lost(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PAUSE", 0.2)  # so all tries would take a quarter of a minute
    lose_transactions(monkeypatch, MOST_LOST)
    app = setup.app(lease="30s")
    dispatcher = app.dispatcher()
    dispatcher.start()
    run = app.submit(transacting, order)
    eventually(lambda: ledger[order])
    assert dispatcher.stop(20)
    assert len(ledger[order]) < MOST_LOST
    assert (run.status, app.faults()) == ("running", [])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@aft.activity(transactional=True, levels=[])
def transact_mutely(order: str) -> None:
    ledger[order].append("transact")
    raise Mute


@aft.flow
def transacting_mutely(order: str) -> None:
    transact_mutely(order)


def test_an_exception_without_a_text_fails_a_transactional_step_like_any_other(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(transacting_mutely, order)
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["transact"]
    assert ["Mute" in fault.type for fault in app.faults()] == [True]


@aft.activity(transactional=True, levels=[])
def use_up_inside(order: str, items: list[str]) -> int:
    return use_up(order, items)


@aft.activity(immediate=1, levels=[], recoverable=(ConnectionError,))
def use_up_outside(order: str, items: list[str]) -> int:
    if (used := use_up(order, items)) == len(ledger[order]):
        raise ConnectionError
    return used


def use_up(order: str, items: list[str]) -> int:
    """Take everything out of a list that was given."""
    before = len(ledger[order])
    while items:
        ledger[order].append(items.pop())
    return len(ledger[order]) - before


@aft.flow
def using_up(order: str) -> tuple[int, int]:
    return use_up_outside(f"{order} outside", ["a", "b"]), use_up_inside(order, ["a", "b"])


def test_each_try_gets_its_arguments_as_they_were_stored(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    lose_transactions(monkeypatch, 1)
    with app.dispatcher():
        assert app.submit(using_up, order).result(60) == (2, 2)
    assert ledger[order] == ledger[f"{order} outside"] == ["b", "a", "b", "a"]
    assert app.faults() == []


def revoke(order: str, result: object) -> None:
    ledger[order].append(f"revoke {result!r}")


@aft.compensate_with(revoke, when="started")
@aft.activity(levels=[], unrecoverable=(Final,))
def asks(order: str) -> None:
    ledger[order].append("asks")
    raise Final(order)


@aft.flow
def catching(order: str) -> str:
    try:
        asks(order)
    except Final:
        return "another way"
    return "asked"


def test_a_started_activity_that_failed_is_undone_even_if_the_flow_takes_another_way(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(catching, order).result(60) == "another way"
    assert ledger[order] == ["asks", "revoke aft.UNKNOWN"]


def withdraw_badly(order: str) -> None:
    ledger[order].append("withdraw!")
    raise Final(order)


@aft.compensate_with(withdraw_badly)
@aft.activity(timeout="100ms", levels=[])
def lags_badly(order: str) -> str:
    gates[order].wait(60)
    return "done"


@aft.flow
def lagging_badly(order: str) -> None:
    lags_badly(order)


def test_a_late_undo_that_a_person_lets_go_makes_the_run_failed(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(lagging_badly, order)
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
        gates[order].set()
        eventually(lambda: run.status == "parked")
        run.skip_frame(note="written off")
        eventually(lambda: run.status == "failed")


apps: dict[str, aft.Aft] = {}


@aft.activity(levels=["20ms"], recoverable=(ConnectionError,), unrecoverable=(Final,))
def nag(order: str, error: str) -> str:
    """Fail while something comes for the run."""
    apps[order].run(str(aft.current().run_id)).signal("noise")
    ledger[order].append("nag")
    if first_time(order):
        raise {"busy": ConnectionError, "final": Final}[error]("nagged")
    return "done"


@aft.flow
def nagging(order: str, error: str) -> str:
    return nag(order, error)


def test_a_failure_counts_though_something_came_meanwhile(setup: Setup, order: str) -> None:
    app = apps[order] = setup.app()
    with app.dispatcher():
        assert app.submit(nagging, order, "busy").result(60) == "done"
    assert [fault.attempt for fault in app.faults()] == [1]
    assert ledger[order] == ["nag", "nag"]


def test_a_final_failure_is_not_tried_again_because_something_came_meanwhile(setup: Setup, order: str) -> None:
    app = apps[order] = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="nagged"):
        app.submit(nagging, order, "final").result(60)
    assert ledger[order] == ["nag"]
