"""A rule tells somebody of a fault, and decides nothing: the run goes on as it would without the rule.

Workers are lost as in ``doubts``: the run is taken from them while they hang, and they never go on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import aft
from aft import do
from aft.app.process import Role
from aft.rules.exlets import plans as rule_plans
from aft.rules.exlets.plans import Plan
from aft.rules.exlets.primitives import Primitive
from tests.acceptance.doubts import Regret, all_ending, charge_undoably, hangs, plans, standing, take_back
from tests.acceptance.observe import unread
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import gates, ledger

DECIDES = [role for role in Role if role is not Role.WORK]


@aft.flow(name="only_tell_regrets")
def regrets(order: str) -> int:
    charge_undoably(order, 0)
    raise Regret


@aft.flow(name="only_tell_savepoint")
def in_savepoint(order: str) -> str:
    try:
        with aft.savepoint("all"):
            charge_undoably(order, 0)
            charge_undoably(order, 1)
    except aft.UndoneByHand:
        return "another way"
    return "done"


TELLS = [
    pytest.param((do.notify("http://127.0.0.1:9/lost", "a worker was lost"),), id="notify"),
    pytest.param((do.set(tags={"lost": True}),), id="set"),
]


# A worker is lost, and nobody knows in which step ------------------------------------------------------------------


@pytest.mark.parametrize("tells", TELLS)
def test_a_run_that_is_being_undone_goes_on_though_a_rule_only_tells_that_its_worker_was_lost(
    setup: Setup, order: str, tells: tuple[Primitive, ...]
) -> None:
    app = setup.app()
    teach(app, regrets, "abort", "true", *tells)
    plans[f"undo {order}", 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(regrets, order)
        eventually(hangs(order, 0))
        run.release()
        eventually(lambda: run.status == "compensated")
    assert ledger[order].count("take back 0") == 2


def cancel(run: aft.Run) -> None:
    run.cancel()


def undo_to_savepoint(run: aft.Run) -> None:
    run.compensate(to="all")


@pytest.mark.parametrize("tells", TELLS)
@pytest.mark.parametrize(
    ("give_order", "status"), [(cancel, "compensated"), (undo_to_savepoint, "completed")], ids=["cancel", "compensate"]
)
def test_a_run_with_an_order_goes_on_though_a_rule_only_tells_that_its_worker_was_lost(
    setup: Setup, order: str, give_order: Callable[[aft.Run], None], status: str, tells: tuple[Primitive, ...]
) -> None:
    app = setup.app()
    teach(app, in_savepoint, "abort", "true", *tells)
    plans[order, 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(in_savepoint, order)
        eventually(hangs(order, 0))
        give_order(run)
        run.release()
        eventually(lambda: run.status == status)
    assert (standing[order], "charge 1" in ledger[order]) == (set(), False)


# An effect comes late, after the run has ended ---------------------------------------------------------------------


@aft.compensate_with(take_back)
@aft.activity(name="only_tell_slow", timeout="50ms", levels=[])
def charge_slowly(order: str, item: int) -> int:
    gates[f"slow {order}"].wait(60)
    standing[order].add(item)
    return item


@aft.flow(name="only_tell_without")
def goes_without(order: str) -> str:
    try:
        charge_slowly(order, 0)
    except TimeoutError:
        return "without it"
    return "with it"


def test_what_came_late_is_undone_though_a_rule_only_tells_that_the_worker_was_lost_meanwhile(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    teach(app, goes_without, "abort", "true", do.set(tags={"lost": True}))
    plans[f"undo {order}", 0] = ["hang"]
    with app.dispatcher(), all_ending(order):
        run = app.submit(goes_without, order)
        assert run.result(60) == "without it"
        gates[f"slow {order}"].set()
        eventually(hangs(order, 0))
        run.release()
        eventually(lambda: ledger[order].count("take back 0") == 2)
        eventually(lambda: (row := run.row).worker_id is None and row.status == "completed")


# A step has failed, and an order is for others ---------------------------------------------------------------------


@aft.flow(name="only_tell_beside")
async def beside(order: str) -> str:
    async with asyncio.TaskGroup() as tasks:
        undone = tasks.create_task(wait_in_savepoint())
        charged = tasks.create_task(charge_in_task(order))
    return f"{undone.result()}, {charged.result()}"


async def wait_in_savepoint() -> str:
    try:
        with aft.savepoint("waits"):
            await aft.wait_for("go", str)
    except aft.UndoneByHand:
        return "undone"
    return "went on"


async def charge_in_task(order: str) -> int:
    return await charge_undoably.call(order, 7)


def plans_of(app: aft.Aft, run: aft.Run) -> list[Plan]:
    with app.store.read() as connection:
        return rule_plans.of_run(connection, run.id)


def test_a_step_is_tried_again_though_its_rule_only_tells_while_an_order_for_another_branch_is_unread(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    teach(app, beside, "fault", "true", do.set(tags={"failed": True}), activity="doubts_charge")
    plans[order, 7] = ["later"]
    with app.dispatcher(only=[Role.WORK]):
        run = app.submit(beside, order)
        eventually(lambda: "charge 7" in ledger[order] and run.row.worker_id is None)
    run.compensate(to="waits")
    assert unread(app, run) != []
    with app.dispatcher(only=DECIDES):
        eventually(lambda: run.row.tags == {"failed": True})
        eventually(lambda: all(plan.state == "done" for plan in plans_of(app, run)))
    with app.dispatcher():
        assert run.result(60) == "undone, 7"
    assert ledger[order] == ["charge 7", "charge 7"]
