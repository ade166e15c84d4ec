"""Where two things happen at once, or one thing at the worst moment: what a review found, kept from coming back."""

from __future__ import annotations

import secrets
import sys
import threading
from collections import defaultdict
from typing import Any

import pytest
from sqlalchemy import text

import aft
from aft.errors import StoreError
from aft.runs.owner import Owner
from tests.setups import Setup, eventually

did: dict[str, list[str]] = defaultdict(list)
gates: dict[str, threading.Event] = defaultdict(threading.Event)
once: dict[str, bool] = defaultdict(bool)


class Final(Exception):
    """For good."""


def first_time(order: str) -> bool:
    seen, once[order] = once[order], True
    return not seen


@pytest.fixture
def order() -> str:
    return secrets.token_hex(4)


@aft.activity(levels=[])
async def exits(order: str) -> None:
    sys.exit(3)


@aft.activity
async def lives(order: str) -> str:
    return "alive"


@aft.flow
def exiting(order: str) -> str:
    exits(order)  # type: ignore[unused-coroutine]
    return "never"


@aft.flow
def living(order: str) -> str:
    return lives(order)  # type: ignore[return-value]


def test_an_async_activity_that_exits_fails_alone(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        with pytest.raises(aft.FlowCompensated, match="SystemExit"):
            app.submit(exiting, order).result(20)
        assert app.submit(living, order).result(20) == "alive"


def withdraw(order: str) -> None:
    did[order].append("withdraw")


@aft.compensate_with(withdraw)
@aft.activity(timeout="1s", levels=["20ms"])
def lags(order: str) -> str:
    if aft.current().attempt == 1:
        gates[order].wait(30)
        did[order].append("late effect")
    else:
        did[order].append("effect")
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
            run.result(20)
        assert did[order] == ["effect", "withdraw"]
        gates[order].set()
        eventually(lambda: did[order] == ["effect", "withdraw", "late effect", "withdraw"])
        eventually(lambda: run.row.worker_id is None and run.status == "compensated")


@aft.activity
def interrupted(order: str) -> str:
    if first_time(order):
        raise KeyboardInterrupt
    did[order].append("interrupted")
    return "done"


@aft.activity
def unlock(order: str) -> None:
    did[order].append("unlock")


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
    assert did[order] == []
    (run,) = app.runs()
    with app.dispatcher():
        assert run.result(20) == "done"
    assert did[order] == ["interrupted", "unlock"]


@aft.activity(transactional=True, levels=["20ms"])
def transact(order: str) -> int:
    did[order].append("transact")
    return int(aft.session().execute(text("SELECT 1")).scalar_one())


@aft.flow
def transacting(order: str) -> int:
    return transact(order)


def test_a_database_that_is_away_for_a_moment_undoes_no_transactional_step(
    setup: Setup, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    real: Any = Owner.write_in
    calls: list[None] = []

    def away_once(*args: Any, **kwargs: Any) -> None:
        calls.append(None)
        if len(calls) == 1:
            raise StoreError("the connection was lost", transient=True)
        real(*args, **kwargs)

    monkeypatch.setattr(Owner, "write_in", away_once)
    with app.dispatcher():
        assert app.submit(transacting, order).result(20) == 1
    assert did[order] == ["transact", "transact"]


def revoke(order: str, result: object) -> None:
    did[order].append(f"revoke {result!r}")


@aft.compensate_with(revoke, when="started")
@aft.activity(levels=[], unrecoverable=(Final,))
def asks(order: str) -> None:
    did[order].append("asks")
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
        assert app.submit(catching, order).result(20) == "another way"
    assert did[order] == ["asks", "revoke aft.UNKNOWN"]


def withdraw_badly(order: str) -> None:
    did[order].append("withdraw!")
    raise Final(order)


@aft.compensate_with(withdraw_badly)
@aft.activity(timeout="100ms", levels=[])
def lags_badly(order: str) -> str:
    gates[order].wait(30)
    return "done"


@aft.flow
def lagging_badly(order: str) -> None:
    lags_badly(order)


def test_a_late_undo_that_a_person_lets_go_makes_the_run_failed(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(lagging_badly, order)
        with pytest.raises(aft.FlowCompensated):
            run.result(20)
        gates[order].set()
        eventually(lambda: run.status == "parked")
        run.skip_frame(note="written off")
        eventually(lambda: run.status == "failed")


apps: dict[str, aft.Aft] = {}


@aft.activity(levels=["20ms"], recoverable=(ConnectionError,), unrecoverable=(Final,))
def nag(order: str, error: str) -> str:
    """Fail while something comes for the run."""
    apps[order].run(str(aft.current().run_id)).signal("noise")
    did[order].append("nag")
    if first_time(order):
        raise {"busy": ConnectionError, "final": Final}[error]("nagged")
    return "done"


@aft.flow
def nagging(order: str, error: str) -> str:
    return nag(order, error)


def test_a_failure_counts_though_something_came_meanwhile(setup: Setup, order: str) -> None:
    app = apps[order] = setup.app()
    with app.dispatcher():
        assert app.submit(nagging, order, "busy").result(20) == "done"
    assert [fault.attempt for fault in app.faults()] == [1]
    assert did[order] == ["nag", "nag"]


def test_a_final_failure_is_not_tried_again_because_something_came_meanwhile(setup: Setup, order: str) -> None:
    app = apps[order] = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="nagged"):
        app.submit(nagging, order, "final").result(20)
    assert did[order] == ["nag"]
