"""What rules decide about a run and its steps is done, or parks the run: nothing is passed over."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import delete, update

import aft
from aft import do
from aft.fault import FaultState
from aft.flows.orders import rulings
from aft.rules.exlets.plans import PlanState
from aft.rules.exlets.primitives import Primitive
from aft.rules.rule_types import RuleType
from aft.rules.trees import rows
from aft.runs.ownership.rescue import make_abort
from aft.runs.records import faults
from aft.runs.states import Status
from aft.store import tables
from tests.acceptance import theatre
from tests.acceptance.revue import DECIDES, NOBODY, WORKS, announced, gathered, plan_of, refuse, revue, stops_by_itself
from tests.acceptance.theatre import rule, stops, teach, undone
from tests.setups import Setup, eventually
from tests.world import Busy, Refused, gates, keys, ledger, trouble

#: On one set-up: these are about what is decided, not about where it is kept.
pytestmark = pytest.mark.parametrize("setup", ["sqlite"], indirect=True)


# Plans that cannot be done ------------------------------------------------------------------------------------------


def test_a_rule_that_the_dispatcher_has_not_seen_yet_stops_a_step(setup: Setup, show: str) -> None:
    worker, decider = setup.app(), setup.app()
    decider.rule_cache.current()
    decider.rule_cache._read_at = decider.clock.ticks() + 1e6  # as if it had looked just before the edit
    teach(worker, revue, "activity_pre", "true", do.fail("not tonight"))
    with worker.dispatcher(only=WORKS), decider.dispatcher(only=DECIDES):
        undone(worker.submit(revue, show))
    assert ledger[show] == []


def test_a_constraint_that_chooses_to_park_says_which_rule_objects(setup: Setup, show: str) -> None:
    app = setup.app()
    app.rules.save_all([rule(revue, "activity_pre", "true", "park", None)], [])
    with app.dispatcher():
        run = app.submit(revue, show)
        stops(run, Status.PARKED)
    assert "no such exlet" not in (run.row.reason or "")
    assert "true" in (run.row.reason or "")


def test_a_constraint_whose_exlet_is_gone_lets_nothing_through(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "activity_pre", "true", do.fail("not tonight"))
    with app.dispatcher(only=WORKS):
        run = app.submit(revue, show)
        stops(run, Status.RECOVERING)
    with app.store.write() as connection:
        rows.begin_edit(connection, app.namespace)
        connection.execute(delete(tables.exlets).where(tables.exlets.c.namespace == app.namespace))
    app.rule_cache.refresh()
    with app.dispatcher(only=DECIDES):
        stops(run, Status.PARKED)
    assert "no such exlet" in (run.row.reason or "")
    assert ledger[show] == []


# Ladders and counting -----------------------------------------------------------------------------------------------


def test_a_rule_for_lost_workers_that_decides_nothing_leaves_poison_pills_parked(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "abort", "true", do.notify(NOBODY))
    run = app.submit(revue, show)
    asleep = {"status": "recovering", "wake_id": None, "due_at": None, "sweep_at": None, "deaths": 2, "deaths_alone": 7}
    with app.store.write() as connection:
        abort = make_abort(run.row.id, revue.name, run.row.epoch, 9, "a worker was lost", app.clock.now())
        faults.add(connection, app.namespace, abort)
        connection.execute(update(tables.runs).where(tables.runs.c.id == run.id).values(**asleep))
    with app.dispatcher():
        stops(run, Status.PARKED)
    assert "died 9 times in a row" in (run.row.reason or "")
    assert ledger[show] == []


def test_a_retry_after_a_step_counts_and_comes_to_an_end(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "activity_post", "true", do.retry(ladder="10ms*2"))
    with app.dispatcher():
        undone(app.submit(revue, show))
    assert ledger[show] == ["number 1", "off 1", "number 2", "off 2", "number 3", "off 3"]


def test_other_arguments_after_a_step_mean_that_it_is_undone_and_executed_with_them(setup: Setup, show: str) -> None:
    app = setup.app()
    condition = "activity.args.what == 'tickets' && activity.args.seats == 1"
    teach(app, theatre.evening, "activity_post", condition, do.set(args={"seats": 2}), do.retry(after="20ms"))
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 20, 10]
    assert ledger[show] == ["hall 1", "tickets 1", "untickets 1 for 10", "tickets 2", "bar 1"]


@pytest.mark.usefixtures("known_sources")
def test_a_retry_before_a_step_asks_again(setup: Setup, show: str) -> None:
    app = setup.app()
    closed = threading.Event()
    closed.set()
    aft.source(default=True, name="revue_closed")(closed.is_set)
    teach(app, revue, "activity_pre", "source.revue_closed == true", do.retry(after="20ms"))
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: max((fault.attempt for fault in app.faults()), default=0) > 2)
        assert ledger[show] == []
        closed.clear()
        assert run.result(60) == 1


def test_an_exlet_that_decides_nothing_leaves_a_step_waiting_for_its_signal(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "fault", "true", do.set(tags={"seen": True}))
    trouble[show, "number 1"] = [aft.Recoverable("not yet", on_signal="go")]
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: any(fault.state is FaultState.WAITING for fault in app.faults()))
        stops_by_itself(run, Status.RECOVERING)
        run.signal("go")
        assert run.result(60) == 2
    assert len(app.faults()) == 1


def test_a_run_that_has_begun_is_not_asked_whether_it_may(setup: Setup, show: str) -> None:
    app = setup.app()
    gate = gates[show, "number 1"] = threading.Event()
    trouble[show, "number 1"] = [Busy("soon")]
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: keys[show, "number"])
        teach(app, revue, "run_pre", "true", do.fail("must not begin"))
        app.rule_cache.refresh()
        gate.set()
        assert run.result(60) == 2


# What is given to steps ---------------------------------------------------------------------------------------------


def test_a_result_that_is_set_before_a_step_begins_is_its_result(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_pre", "activity.args.what == 'tickets'", do.set(result=7))
    refuse(show, "bar")
    with app.dispatcher():
        undone(app.start(theatre.evening, show))
        assert app.start(theatre.evening, f"{show}-2").result(60) == [10, 7, 10]
    # Nothing was done, and nothing is undone.
    assert ledger[show] == ["hall 1", "bar 1!", "unhall 1 for 10"]


def test_arguments_of_a_wrong_type_park_and_are_forgotten_by_a_retry(setup: Setup, show: str) -> None:
    app = setup.app()
    condition = "activity.args.what == 'tickets'"
    steps: list[Primitive] = [do.suspend("activity"), do.set(args={"seats": "many"}), do.resume("activity")]
    teach(app, theatre.evening, "activity_pre", condition, *steps)
    with app.dispatcher():
        run = app.submit(theatre.evening, show)
        stops(run, Status.PARKED)
        assert "do not fit" in (run.row.reason or "")
        app.rules.undo((theatre.evening.name, RuleType.ACTIVITY_PRE, "*"))
        app.rule_cache.refresh()
        run.retry()
        assert run.result(60) == [10, 10, 10]
    assert ledger[show] == ["hall 1", "tickets 1", "bar 1"]


@pytest.mark.parametrize("where", ["args.seats", "result", "tags.seats"])
def test_what_cannot_be_computed_parks_and_changes_nothing(setup: Setup, show: str, where: str) -> None:
    app = setup.app()
    changes = do.set(args={"what": "stalls"}, computed={where: "activity.args.colour"})
    teach(app, theatre.evening, "fault", "true", do.suspend("flow"), changes, do.remove("flow"))
    other = app.submit(theatre.evening.options(after="1d"), f"{show}-2")
    refuse(show)
    with app.dispatcher():
        run = app.submit(theatre.evening, show)
        stops(run, Status.PARKED)
        assert f"{where} cannot be computed" in (run.row.reason or "")
        run.retry()
        assert run.result(60) == [10, 10, 10]
    assert ledger[show] == ["hall 1", "tickets 1!", "tickets 1", "bar 1"]
    # What would have come after it has not happened, and nothing stays suspended.
    assert plan_of(app, run).state is PlanState.DROPPED
    assert other.status is Status.RUNNING


def test_faults_do_not_keep_what_is_large(setup: Setup, show: str) -> None:
    app = setup.app()
    trouble[show, "number 1"] = [Busy("soon")]
    with app.dispatcher():
        assert app.start(announced, show, "x" * 30_000).result(60) == 30_002
        assert app.start(announced, f"{show}-2", "x").result(60) == 2
    (fault,) = app.faults()
    assert len(fault.step_snapshot or "") < 1_000


# Removing, suspending -----------------------------------------------------------------------------------------------


def test_removing_one_of_several_gathered_activities_leaves_the_others(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, gathered, "fault", "true", do.remove("activity"))
    refuse(show, "middle")
    with app.dispatcher():
        assert app.start(gathered, show).result(60) == [10, "aft.REMOVED", 10]
    assert sorted(ledger[show]) == ["left 1", "middle 1!", "right 1"]


def test_runs_that_are_to_begin_later_do_so_after_all_of_their_flow_were_continued(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, revue, "fault", "true", do.suspend("flow"), do.resume("flow"), do.unwind())
    later = app.submit(revue.options(after="3d"), f"{show}-later")
    begins = later.row.due_at
    trouble[show, "number 1"] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(revue, show)
        undone(run)
        eventually(lambda: plan_of(app, run).state is PlanState.DONE)
    assert (later.status, later.row.due_at) == (Status.RUNNING, begins)
    assert ledger[f"{show}-later"] == []


def test_what_a_person_has_asked_meanwhile_is_heard_before_a_run_is_removed(
    setup: Setup, show: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.remove("activity"))
    refuse(show)
    asked: list[bool] = []
    is_branch = rulings._is_branch

    def cancel_first(*args: Any) -> bool:
        if not asked:
            asked.append(True)
            run.cancel(note="undo it all", by="somebody")
        return is_branch(*args)

    monkeypatch.setattr(rulings, "_is_branch", cancel_first)
    run = app.submit(theatre.evening, show)
    with app.dispatcher():
        undone(run)
    assert ledger[show] == ["hall 1", "tickets 1!", "unhall 1 for 10"]
