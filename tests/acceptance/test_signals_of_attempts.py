"""A signal is good for one try of one step, also if the worker is lost in the middle of that try."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest

import aft
from aft.fault import FaultState
from aft.ids import StepPath
from aft.runs.records import inbox
from aft.runs.records.inbox import TAKEN_BY
from tests.acceptance.observe import unread
from tests.setups import Setup, eventually
from tests.world import Refused, apps, gates, ledger, tries

at_work: defaultdict[str, Counter[str]] = defaultdict(Counter)


@aft.activity(name="tries_pay")
def pay(pair: tuple[str, int]) -> int:
    order, item = pair
    tries[order, item] += 1
    if tries[order, item] == 1:
        raise aft.Recoverable("no balance", on_signal="refilled")
    at_work[order]["now"] += 1
    at_work[order]["most"] = max(at_work[order]["most"], at_work[order]["now"])
    assert gates[order].wait(60)
    at_work[order]["now"] -= 1
    return item


@aft.flow(name="tries_both")
async def both(order: str) -> list[int]:
    return list(await asyncio.gather(pay.call((order, 0)), pay.call((order, 1))))


@aft.flow(name="tries_mapped")
def mapped(order: str, count: int) -> int:
    return len(aft.map(pay, [(order, item) for item in range(count)], concurrency=2))


def test_a_try_says_which_signal_it_has_taken_before_it_begins(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(both, order)
        eventually(lambda: [fault.state for fault in app.faults()] == [FaultState.WAITING] * 2)
        run.signal("refilled")
        eventually(lambda: tries[order, 0] == 2)
        assert [item.note for item in unread(app, run)] == [f"{TAKEN_BY}1.1"]
        gates[order].set()
        eventually(lambda: not unread(app, run))
        run.signal("refilled")
        assert run.result(60) == [0, 1]


def test_a_signal_that_a_lost_try_has_taken_is_given_to_no_other_step(setup: Setup, order: str) -> None:
    app = setup.app()
    gates[order].set()
    with app.dispatcher():
        run = app.submit(both, order)
        eventually(lambda: [fault.state for fault in app.faults()] == [FaultState.WAITING] * 2)
    run.signal("refilled")
    with app.store.write() as connection:
        (item,) = inbox.unread(connection, run.id)
        inbox.mark_taken(connection, run.id, item, StepPath("2.1"))  # as by a worker that was lost
    with app.dispatcher():
        eventually(lambda: tries[order, 1] == 2)
        eventually(lambda: run.row.worker_id is None)
        assert tries[order, 0] == 1
        run.signal("refilled")
        assert run.result(60) == [0, 1]


def test_no_more_items_are_tried_at_a_time_than_the_map_allows_however_many_signals_come(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(mapped, order, 6)
        eventually(lambda: [fault.state for fault in app.faults()] == [FaultState.WAITING] * 6)
        run.signal("refilled")
        eventually(lambda: at_work[order]["now"] == 1)
        for _ in range(5):
            run.signal("refilled")
        eventually(lambda: at_work[order]["now"] == 2)
        gates[order].set()
        assert run.result(60) == 6
    assert at_work[order]["most"] == 2


@aft.activity(levels=["20ms"], recoverable=(ConnectionError,), unrecoverable=(Refused,))
def nag(order: str, error: str) -> str:
    """Fail while something comes for the run."""
    apps[order].run(str(aft.current().run_id)).signal("noise")
    ledger[order].append("nag")
    tries[order] += 1
    if tries[order] == 1:
        raise {"busy": ConnectionError, "final": Refused}[error]("nagged")
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
