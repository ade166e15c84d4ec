"""A child is in doubt and ends as it is: what it may have done may stand, and no run above says that all is undone."""

from __future__ import annotations

import asyncio

import pytest

import aft
from aft import do
from aft.compensation import stack
from aft.runs.states import Status
from tests.acceptance.doubts import charge_undoably, hanging, plans, standing
from tests.acceptance.observe import children_of
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import gates, ledger

ABOVE, BELOW = 5, 0


@aft.flow(name="doubts_below_child")
def child(order: str) -> str:
    charge_undoably(order, BELOW)
    return str(aft.wait_for("go"))


@aft.flow(name="doubts_below_parent")
def parent(order: str) -> str:
    charge_undoably(order, ABOVE)
    return child(order)


@aft.flow(name="doubts_below_grandparent")
def grandparent(order: str) -> str:
    return parent(order)


def youngest(app: aft.Aft, flow: aft.Flow[..., str]) -> aft.Run:
    return next(run for run in app.runs() if run.row.flow == flow.name)


def test_a_parent_is_not_compensated_if_a_child_in_doubt_was_ended_as_it_is(setup: Setup, order: str) -> None:
    app = setup.app()
    plans[order, BELOW] = ["hang"]
    with hanging(app, grandparent, order, at=[BELOW]) as run:
        abandoned = youngest(app, child)
        abandoned.cancel(compensate=False)
        abandoned.release()
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert (abandoned.status, run.status, standing[order]) == (Status.CANCELLED, Status.FAILED, {BELOW})
    assert ledger[order][-1] == f"take back {ABOVE}"
    (middle,) = children_of(app, run)
    assert middle.status is Status.FAILED
    with app.store.read() as connection:
        notes = [frame.note for frame in stack.of_run(connection, middle.id) if frame.child_id == abandoned.id]
    assert notes == [f"child {abandoned.id} was ended as it was, nothing undone"]


@pytest.mark.parametrize("what", ["run", "activity"])
def test_nor_if_a_rule_about_the_lost_worker_has_removed_what_it_executed(setup: Setup, order: str, what: str) -> None:
    app = setup.app()
    teach(app, child, "abort", f"activity.args.order == {order!r}", do.remove(what), activity="doubts_charge")
    plans[order, BELOW] = ["hang"]
    with hanging(app, parent, order, at=[BELOW]) as run:
        removed = youngest(app, child)
        removed.release()
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert (removed.status, run.status, standing[order]) == (Status.CANCELLED, Status.FAILED, {BELOW})


@aft.flow(name="doubts_below_idle")
def idle(order: str) -> str:
    return str(aft.wait_for("go"))


@aft.flow(name="doubts_below_idle_parent")
def idle_parent(order: str) -> str:
    charge_undoably(order, ABOVE)
    return idle(order)


def test_a_child_that_has_done_nothing_and_was_not_lost_keeps_nobody_from_being_compensated(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(idle_parent, order)
        waiting = eventually(lambda: next((one for one in app.runs() if one.row.flow == idle.name), None))
        eventually(lambda: waiting.status is Status.WAITING)
        waiting.cancel(compensate=False)
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert standing[order] == set()


@aft.activity(name="doubts_below_hold")
def hold(order: str) -> None:
    """Last until the gate is opened, whoever is told to stop meanwhile."""
    assert gates[order, "beside"].wait(120)


@aft.flow(name="doubts_below_delivery")
def delivery(order: str) -> None:
    hold(order)


@aft.flow(name="doubts_below_buy")
async def buy(order: str) -> None:
    with aft.savepoint("all"):
        await asyncio.gather(delivery.call(order), charge_undoably.call(order, ABOVE))


@aft.flow(name="doubts_below_buy_plainly")
def buy_plainly(order: str) -> None:
    with aft.savepoint("all"):
        aft.parallel(delivery.call(order), charge_undoably.call(order, ABOVE))


@pytest.mark.parametrize("flow", [buy, buy_plainly], ids=lambda flow: flow.name)
def test_a_cancel_sees_what_was_begun_beside_a_child_that_is_told_to_stop(
    setup: Setup, order: str, flow: aft.Flow[[str], None]
) -> None:
    app = setup.app()
    plans[order, ABOVE] = ["hang"]
    with hanging(app, flow.options(deadline="10s"), order, at=[ABOVE]) as run:
        eventually(lambda: [child.worker_id for child in children_of(app, run)] not in ([], [None]))
        eventually(lambda: children_of(app, run)[0].inbox_seq)  # it was told to stop
        epoch = run.row.epoch
        run.release()
        run.cancel()
        eventually(lambda: (row := run.row).epoch > epoch and row.worker_id is None)
        gates[order, "beside"].set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert not standing[order]
