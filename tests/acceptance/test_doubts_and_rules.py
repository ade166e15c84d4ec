"""A worker is lost, and rules decide about the step that it had begun: what that did is undone with the run.

Rules may end such a step without executing it again. Nobody knows then whether it had its effect, so its undo is owed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aft
from aft import do
from aft.rules.exlets.primitives import Primitive
from tests.acceptance.doubts import (
    Regret,
    all_ending,
    charge,
    charge_started,
    charge_undoably,
    hanging,
    lost_worker,
    plans,
    standing,
    take_back,
)
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import ledger


def take_back_known(order: str, item: int, result: int) -> None:
    ledger[order].append(f"result {result}")
    take_back(order, item)


@aft.compensate_with(take_back_known)
@aft.activity(name="ruled_doubts_charge_known")
def charge_known(order: str, item: int) -> int:
    return charge(order, item)


@aft.compensate_with(take_back, only_if=lambda result: result > 0)
@aft.activity(name="ruled_doubts_charge_positive")
def charge_positive(order: str, item: int) -> int:
    return charge(order, item)


def take_back_either(order: str, item: int, result: int | aft.Unknown) -> None:
    take_back(order, item)


def was_charged_for(order: str, item: int) -> int | None:
    return 1 if item in standing[order] else None


@aft.compensate_with(take_back_either, only_if=lambda result: result > 0)
@aft.activity(name="ruled_doubts_charge_probed", probe=was_charged_for)
def charge_probed(order: str, item: int) -> int:
    return charge(order, item)


@aft.flow(name="ruled_doubts_regrets")
def regrets(order: str) -> int:
    charge_undoably(order, 0)
    raise Regret


@aft.flow(name="ruled_doubts_regrets_known")
def regrets_known(order: str) -> int:
    charge_known(order, 0)
    raise Regret


@aft.flow(name="ruled_doubts_regrets_positive")
def regrets_positive(order: str, item: int = 0) -> int:
    charge_positive(order, item)
    raise Regret


@aft.flow(name="ruled_doubts_regrets_probed")
def regrets_probed(order: str) -> int:
    charge_probed(order, 0)
    raise Regret


@aft.flow(name="ruled_doubts_regrets_started")
def regrets_started(order: str) -> int:
    charge_started(order, 0)
    raise Regret


@aft.flow(name="ruled_doubts_side_by_side")
def side_by_side(order: str) -> int:
    aft.parallel(charge_undoably.call(order, 0), charge_undoably.call(order, 1))
    raise Regret


@aft.flow(name="ruled_doubts_above")
def above(order: str) -> int:
    return regrets(order)


@aft.flow(name="ruled_doubts_tasks")
async def in_tasks(order: str) -> int:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one_task(order, 0))
        tasks.create_task(one_task(order, 1))
    raise Regret


async def one_task(order: str, item: int) -> None:
    await charge_undoably.call(order, item)


@aft.flow(name="ruled_doubts_another_way")
def another_way(order: str) -> str:
    try:
        charge_undoably(order, 0)
    except aft.ConstraintViolated:
        return f"stands: {sorted(standing[order])}"
    raise AssertionError


def name_of(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value.name if isinstance(value, aft.Flow) else ""


ENDING = [
    (do.complete(7),),
    (do.complete(computed="3 + 4"),),
    (do.set(result=7),),
    (do.fail("no"),),
    (do.fail("no", proceed=True),),
    (do.unwind(),),
    (do.set(tags={"lost": True}), do.fail("no")),
]


@pytest.mark.parametrize("exlet", ENDING, ids=name_of)
def test_what_a_lost_worker_did_is_undone_though_a_rule_has_ended_its_step(
    setup: Setup, order: str, exlet: tuple[Primitive, ...]
) -> None:
    check_undone(setup, order, regrets, exlet)


@pytest.mark.parametrize("exlet", [(do.complete(7),), (do.fail("no"),), (do.remove("activity"),)], ids=name_of)
@pytest.mark.parametrize("flow", [side_by_side, in_tasks], ids=name_of)
def test_what_a_lost_worker_did_in_a_branch_is_undone_though_a_rule_has_ended_that(
    setup: Setup, order: str, flow: aft.Flow[[str], Any], exlet: tuple[Primitive, ...]
) -> None:
    check_undone(setup, order, flow, exlet)


def check_undone(setup: Setup, order: str, flow: aft.Flow[[str], Any], exlet: tuple[Primitive, ...]) -> None:
    app = setup.app()
    teach(app, flow, "abort", "activity.args.item == 0", *exlet, activity="doubts_charge")
    plans[order, 0] = ["hang"]
    with lost_worker(app, flow, order, at=[0]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status.ended)
    assert (standing[order], run.status) == (set(), "compensated")
    assert ledger[order].count("charge 0") == 1, "it is not executed again"
    assert ledger[order].count("take back 0") == 1


@pytest.mark.parametrize("exlet", [(do.complete(7),), (do.fail("no"),)], ids=name_of)
def test_a_child_whose_step_a_rule_has_ended_is_undone_with_what_its_lost_worker_did(
    setup: Setup, order: str, exlet: tuple[Primitive, ...]
) -> None:
    app = setup.app()
    teach(app, regrets, "abort", "activity.args.item == 0", *exlet, activity="doubts_charge")
    plans[order, 0] = ["hang"]
    with hanging(app, above, order, at=[0]) as run:
        (child,) = (found for found in app.runs() if found.row.flow == regrets.name)
        child.release()
        eventually(lambda: run.status.ended)
    assert (standing[order], run.status, child.status) == (set(), "compensated", "compensated")


def test_a_flow_hears_of_a_step_that_a_rule_has_failed_when_what_its_lost_worker_did_is_undone(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    teach(app, another_way, "abort", "activity.args.item == 0", do.fail("no"), activity="doubts_charge")
    plans[order, 0] = ["hang"]
    with lost_worker(app, another_way, order, at=[0]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        assert run.result(60) == "stands: []"


@aft.activity(name="ruled_doubts_look")
def look(order: str, item: int) -> int:
    return charge(order, item)


@aft.flow(name="ruled_doubts_to_savepoint")
def undone_to_savepoint(order: str, undoable: bool) -> str:
    charge_undoably(order, 0)
    try:
        with aft.savepoint("attempt"):
            charge_undoably(order, 1)
            (charge_undoably if undoable else look)(order, 2)
    except aft.UndoneByHand:
        return f"stands: {sorted(standing[order])}"
    raise AssertionError


@pytest.mark.parametrize("undoable", [True, False])
def test_a_rule_about_a_lost_worker_has_a_savepoint_undone_and_nothing_else(
    setup: Setup, order: str, undoable: bool
) -> None:
    app = setup.app()
    plans[order, 2] = ["hang"]
    named = "doubts_charge" if undoable else "ruled_doubts_look"
    teach(app, undone_to_savepoint, "abort", "activity.args.item == 2", do.unwind(to="attempt"), activity=named)
    with lost_worker(app, undone_to_savepoint, order, undoable, at=[2]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        assert run.result(60) == f"stands: {[0] if undoable else [0, 2]}"
    assert ledger[order].count("charge 2") == 1


def test_a_compensator_gets_the_result_that_a_rule_has_given(setup: Setup, order: str) -> None:
    app = setup.app()
    rule = (do.complete(7),)
    teach(app, regrets_known, "abort", "true", *rule, activity="ruled_doubts_charge_known")
    plans[order, 0] = ["hang"]
    with lost_worker(app, regrets_known, order, at=[0]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "compensated")
    assert (standing[order], "result 7" in ledger[order]) == (set(), True)


def test_a_run_waits_for_a_person_where_the_compensator_needs_a_result_that_nobody_knows(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    teach(app, regrets_known, "abort", "true", do.fail("no"), activity="ruled_doubts_charge_known")
    plans[order, 0] = ["hang"]
    with lost_worker(app, regrets_known, order, at=[0]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "parked")
        assert "it takes the result, which is not known" in (run.row.reason or "")
        run.frame_done(note="undone by hand")
        eventually(lambda: run.status == "compensated")
    assert "take back 0" not in ledger[order]


@pytest.mark.parametrize(
    ("flow", "activity"),
    [(regrets_positive, "ruled_doubts_charge_positive"), (regrets_probed, "ruled_doubts_charge_probed")],
    ids=name_of,
)
def test_the_result_of_a_rule_does_not_tell_that_a_lost_worker_did_nothing(
    setup: Setup, order: str, flow: aft.Flow[[str], int], activity: str
) -> None:
    app = setup.app()
    teach(app, flow, "abort", "true", do.complete(0), activity=activity)
    plans[order, 0] = ["hang"]
    with lost_worker(app, flow, order, at=[0]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "compensated")
    assert standing[order] == set()


@pytest.mark.parametrize("how", ["complete", "set"])
@pytest.mark.parametrize("owed", [True, False])
def test_the_result_of_a_rule_does_not_tell_whether_an_activity_has_to_be_undone(
    setup: Setup, order: str, how: str, owed: bool
) -> None:
    app = setup.app()
    ruled, activity = {"result": 0 if owed else 1}, "ruled_doubts_charge_positive"
    teach(app, regrets_positive, "activity_post", "true", getattr(do, how)(**ruled), activity=activity)
    with app.dispatcher():
        run = app.submit(regrets_positive, order, int(owed))
        eventually(lambda: run.status == "compensated")
    assert ("take back 1" in ledger[order], "take back 0" in ledger[order]) == (owed, False)


def test_a_rule_is_asked_about_a_step_whose_undo_is_owed_since_it_was_started(setup: Setup, order: str) -> None:
    app = setup.app()
    teach(app, regrets_started, "abort", "true", do.fail("no"), activity="doubts_charge_started")
    plans[order, 0] = ["hang"]
    with lost_worker(app, regrets_started, order, at=[0]) as run:
        pass
    with app.dispatcher(), all_ending(order):
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["charge 0", "hangs 0", "take back 0"]


@pytest.mark.parametrize("exlet", [(do.park("look"),), (do.set(tags={"lost": True}), do.park("look"))], ids=name_of)
def test_what_a_lost_worker_did_is_undone_though_a_rule_has_parked_its_step_and_a_person_cancels_the_run(
    setup: Setup, order: str, exlet: tuple[Primitive, ...]
) -> None:
    run = lose_and_park(setup, order, exlet)
    with setup.apps[0].dispatcher(), all_ending(order):
        run.cancel()
        eventually(lambda: run.status == "compensated")
    assert (standing[order], ledger[order].count("charge 0")) == (set(), 1)


def test_a_step_that_a_rule_has_parked_is_executed_again_if_a_person_says_so_and_undone_once(
    setup: Setup, order: str
) -> None:
    run = lose_and_park(setup, order, (do.park("look"),))
    with setup.apps[0].dispatcher(), all_ending(order):
        run.retry()
        eventually(lambda: run.status == "compensated")
    assert ledger[order] == ["charge 0", "hangs 0", "charge 0", "take back 0"]


def lose_and_park(setup: Setup, order: str, exlet: tuple[Primitive, ...]) -> aft.Run:
    app = setup.app()
    teach(app, regrets, "abort", "true", *exlet, activity="doubts_charge")
    plans[order, 0] = ["hang"]
    with lost_worker(app, regrets, order, at=[0]) as run:
        pass
    with app.dispatcher():
        eventually(lambda: (row := run.row).status == "parked" and row.reason == "look" and row.worker_id is None)
    return run


# While a rule has a step undone -----------------------------------------------------------------------------------


def was_taken_back(order: str, item: int) -> bool:
    ledger[order].append(f"asked undo {item}")
    return item not in standing[order]


@aft.activity(name="ruled_doubts_take_back_once", probe=was_taken_back)
def take_back_once(order: str, item: int) -> None:
    take_back(order, item)


@aft.compensate_with(take_back_once)
@aft.activity(name="ruled_doubts_charge_anew")
def charge_anew(order: str, item: int) -> int:
    return charge(order, item)


@aft.compensate_with(take_back_once, when="started")
@aft.activity(name="ruled_doubts_charge_anew_started")
def charge_anew_started(order: str, item: int) -> int:
    return charge(order, item)


@aft.flow(name="ruled_doubts_anew")
def anew(order: str) -> int:
    return charge_anew(order, 0)


@aft.flow(name="ruled_doubts_anew_started")
def anew_started(order: str) -> int:
    return charge_anew_started(order, 0)


@aft.flow(name="ruled_doubts_anew_task")
async def anew_in_task(order: str) -> int:
    return await charge_anew.call(order, 0)


ANEW = [
    pytest.param(anew, "activity_post", charge_anew, do.restart(), id="restart"),
    pytest.param(anew, "activity_post", charge_anew, do.retry(after="10ms"), id="retry"),
    pytest.param(anew_in_task, "activity_post", charge_anew, do.restart(), id="restart of a task's step"),
    pytest.param(anew_started, "fault", charge_anew_started, do.restart(), id="restart of one that was started"),
]


@pytest.mark.parametrize("cancelled", [False, True], ids=["goes on", "cancelled"])
@pytest.mark.parametrize(("flow", "on", "activity", "again"), ANEW)
def test_a_compensator_is_not_executed_blindly_again_if_its_worker_was_lost_while_a_rule_had_the_step_undone(
    setup: Setup,
    order: str,
    flow: aft.Flow[[str], Any],
    on: str,
    activity: aft.Activity[..., int],
    again: Primitive,
    cancelled: bool,
) -> None:
    app = setup.app()
    teach(app, flow, on, "!has(run.tags.again)", do.set(tags={"again": True}), again, activity=activity.name)
    plans[order, 0], plans[f"undo {order}", 0] = ["never"] if on == "fault" else [], ["hang"]
    with hanging(app, flow, order, at=[0]) as run:
        if cancelled:
            run.cancel()
        run.release()
        eventually(lambda: run.status.ended)
    assert run.status == ("compensated" if cancelled else "completed")
    assert ledger[order] == ["charge 0", "take back 0", "hangs 0", "asked undo 0", *([] if cancelled else ["charge 0"])]
