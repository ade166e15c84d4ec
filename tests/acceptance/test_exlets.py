"""What an exlet can do: a story for each primitive, on the two set-ups that people have."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

import aft
from aft import do
from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.dispatcher.exlets.step_rulings import MOST_RESTARTS
from aft.rules.exlets import plans
from aft.rules.exlets.plans import Plan, PlanState
from aft.rules.exlets.primitives import Primitive
from aft.runs.states import Status
from aft.store import tables
from aft.telemetry import ExletDone
from tests.acceptance import theatre
from tests.acceptance.theatre import listen, stops, teach, undone
from tests.setups import Setup, eventually
from tests.world import Busy, Refused, keys, ledger, trouble


def plan_of(app: aft.Aft, run: aft.Run) -> Plan:
    """The one plan that was made for a run."""
    with app.store.read() as connection:
        (made,) = plans.of_run(connection, run.id)
    return made


def audit(app: aft.Aft, run_id: str) -> list[str]:
    """What exlets have asked of a run."""
    table = tables.audit
    with app.store.read() as connection:
        statement = select(table.c.action).where(table.c.run_id == run_id, table.c.actor.startswith("exlet "))
        return list(connection.execute(statement.order_by(table.c.at, table.c.id)).scalars())


def child_of(app: aft.Aft, run: aft.Run) -> aft.Run:
    """A run's one child."""
    with app.store.read() as connection:
        found = connection.execute(select(tables.runs.c.id).where(tables.runs.c.parent_id == run.id)).scalar_one()
    return app.run(found)


def refuse(show: str, what: str = "tickets") -> None:
    """Let something fail for good."""
    trouble[show, what] = [Refused("no")]


# Suspend and continue ---------------------------------------------------------------------------------------------


def test_an_activity_waits_for_its_exlet_and_goes_on(setup: Setup, show: str) -> None:
    app = setup.app()
    heard = listen(app)
    teach(
        app, theatre.evening, "fault", "true", do.suspend("activity"), do.set(tags={"seen": 1}), do.resume("activity")
    )
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        assert run.result(60) == [10, 10, 10]
        eventually(lambda: plan_of(app, run).state is PlanState.DONE)  # the run goes on before its plan has ended
    done = [event.primitive for event in heard if isinstance(event, ExletDone)]
    assert done == ["suspend activity", "set tags.seen", "continue activity"]
    assert run.row.tags == {"seen": 1}


def test_a_run_is_suspended_and_continued(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.suspend("run"), do.complete(5), do.resume("run"))
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        assert run.result(60) == [10, 5, 10]
    assert audit(app, run.id) == ["suspend", "resume"]


def test_all_runs_of_a_flow_are_suspended_and_continued_and_no_others(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.premiere, "fault", "true", do.suspend("flow"), do.complete(5), do.resume("flow"))
    with app.dispatcher():
        waiting = [app.submit(theatre.premiere, f"{show}-{number}") for number in range(3)]
        for run in waiting:
            stops(run, Status.WAITING)
        by_hand = app.submit(theatre.premiere, f"{show}-by-hand")
        stops(by_hand, Status.WAITING)
        by_hand.suspend("let it be", by="somebody")
        other = app.start(theatre.evening, show)
        refuse(f"{show}-0")
        waiting[0].signal("word")
        assert waiting[0].result(60) == [10, 5]
        eventually(lambda: plan_of(app, waiting[0]).state is PlanState.DONE)
        for run in waiting[1:]:
            run.signal("word")
            assert run.result(60) == [10, 10]
    for run in waiting:
        assert audit(app, run.id) == ["suspend", "resume"]
    # Only what the exlet has suspended does it continue.
    assert by_hand.status is Status.SUSPENDED
    assert audit(app, by_hand.id) == audit(app, other.id) == []


@pytest.mark.parametrize("resumed_before", [False, True])
def test_a_person_who_suspends_a_run_that_an_exlet_holds_takes_it_over(
    setup: Setup, show: str, resumed_before: bool
) -> None:
    app = setup.app()
    teach(
        app,
        theatre.premiere,
        "fault",
        "true",
        *(do.suspend("flow"), do.notify("http://127.0.0.1:9/"), do.complete(5), do.resume("flow")),
    )
    with app.dispatcher():
        held = app.submit(theatre.premiere, f"{show}-held")
        stops(held, Status.WAITING)
    seen: list[str] = []

    def take_over(event: object) -> None:
        if isinstance(event, ExletDone) and event.primitive == "suspend flow":
            if resumed_before:
                held.resume(by="somebody")
                stops(held, Status.WAITING)
            held.suspend("the customer called", by="somebody")
            seen.append(held.status.value)

    app.telemetry.subscribe(take_over)
    heard = listen(app)
    refuse(show, "hall")
    run = app.submit(theatre.premiere, show)
    with app.dispatcher():
        eventually(lambda: "continue flow" in [one.primitive for one in heard if isinstance(one, ExletDone)])
        stops(held, Status.SUSPENDED)
        assert seen
        assert held.row.reason == "suspended by somebody: the customer called"
        run.signal("word")
        assert run.result(60) == [5, 10]
        held.signal("word")
        held.resume(by="somebody")
        assert held.result(60) == [10, 10]
    assert audit(app, held.id) == ["suspend"]


def test_what_was_suspended_as_one_target_is_not_continued_with_another(setup: Setup, show: str) -> None:
    app = setup.app()
    steps: list[Primitive] = [
        do.suspend("run"),
        do.suspend("flow"),
        do.resume("run"),
        do.notify("http://127.0.0.1:9/"),
        do.resume("flow"),
    ]
    teach(app, theatre.premiere, "fault", "true", *steps)
    refuse(f"{show}-1", "hall")
    other = app.submit(theatre.premiere, f"{show}-2")
    with app.dispatcher():
        stops(other, Status.WAITING)
    heard = listen(app)
    seen: list[list[str]] = []

    def look(event: object) -> None:
        if isinstance(event, ExletDone) and event.primitive.startswith("notify"):
            seen.append(audit(app, other.id))

    app.telemetry.subscribe(look)
    run = app.submit(theatre.premiere, f"{show}-1")
    with app.dispatcher():
        eventually(lambda: [event for event in heard if isinstance(event, ExletDone)][4:])
        undone(run)
        assert seen == [["suspend"]]
        other.signal("word")
        assert other.result(60) == [10, 10]


def test_a_run_that_two_exlets_hold_goes_on_when_both_have_continued_it(setup: Setup, show: str) -> None:
    app = setup.app()
    steps = (do.suspend("flow"), do.notify("http://127.0.0.1:9/"), do.complete(5), do.resume("flow"))
    teach(app, theatre.premiere, "fault", "true", *steps)
    for number in range(2):
        refuse(f"{show}-{number}", "hall")
    with app.dispatcher(only=["work", "relay"]):
        runs = [app.submit(theatre.premiere, f"{show}-{number}") for number in range(2)]
        held = app.submit(theatre.premiere, f"{show}-held")
        stops(held, Status.WAITING)
        eventually(lambda: len(app.faults()) == 2)
    seen: list[list[str]] = []

    def count_plans() -> int:
        with app.store.read() as connection:
            return sum(len(plans.of_run(connection, run.id)) for run in runs)

    def look(event: object) -> None:
        if isinstance(event, ExletDone) and event.primitive == "suspend flow":
            eventually(lambda: count_plans() == 2)
        if isinstance(event, ExletDone) and event.primitive == "continue flow":
            seen.append(audit(app, held.id))

    app.telemetry.subscribe(look)
    with app.dispatcher():
        eventually(lambda: len(seen) == 2)
        assert seen == [["suspend", "suspend"], ["suspend", "suspend", "resume"]]
        for run in (*runs, held):
            run.signal("word")
        assert [run.result(60) for run in (*runs, held)] == [[5, 10], [5, 10], [10, 10]]


def test_ancestors_are_suspended_and_continued(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.act, "fault", "true", do.suspend("ancestors"), do.complete(5), do.resume("ancestors"))
    refuse(show, "act")
    with app.dispatcher():
        run = app.start(theatre.gala, show)
        assert run.result(60) == [10, 5, 10]
    play = child_of(app, run)
    assert audit(app, run.id) == audit(app, play.id) == ["suspend", "resume"]
    assert audit(app, child_of(app, play).id) == []


# Remove -----------------------------------------------------------------------------------------------------------


def test_removing_an_activity_on_the_main_path_ends_the_run_as_it_is(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.remove("activity"))
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        with pytest.raises(aft.FlowCancelled):
            run.result(60)
    assert ledger[show] == ["hall 1", "tickets 1!"]


def test_removing_an_activity_of_a_parallel_step_ends_its_branch(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.tour, "fault", "activity.args.what == 'left'", do.remove("activity"))
    refuse(show, "left")
    refuse(show, "party")
    with app.dispatcher():
        undone(app.start(theatre.tour, show))
        assert app.start(theatre.tour, f"{show}-2").result(60) == [10, 20, 30]
        refuse(f"{show}-3", "left")
        assert app.start(theatre.tour, f"{show}-3").result(60) == ["aft.REMOVED", 20, 30]
    assert sorted(ledger[show][:2]) == ["left 1!", "right 2"]
    assert ledger[show][2:] == ["party 3!", "unright 2 for 20"]


def test_removing_an_activity_of_a_task_ends_the_task(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.tasks, "fault", "activity.args.what == 'left there'", do.remove("activity"))
    refuse(show, "left there")
    with app.dispatcher():
        assert app.start(theatre.tasks, show).result(60) == ["aft.REMOVED", 10, 30]
    assert "left back 1" not in ledger[show]


def test_removing_an_activity_of_a_gathered_task_ends_only_that(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.gathered, "fault", "activity.args.what == 'left there'", do.remove("activity"))
    refuse(show, "left there")
    with app.dispatcher():
        assert app.start(theatre.gathered, show).result(60) == ["aft.REMOVED", 10]
    assert "left back 1" not in ledger[show]


def test_a_step_that_rules_begin_anew_again_and_again_waits_for_a_person(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.restart())
    trouble[show, "tickets"] = [Refused("no") for _ in range(MOST_RESTARTS + 5)]
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        eventually(lambda: run.status == "parked")
    assert ledger[show].count("tickets 1!") == MOST_RESTARTS + 1


def test_a_run_is_removed_as_it_is(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.remove("run"))
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        with pytest.raises(aft.FlowCancelled):
            run.result(60)
        eventually(lambda: plan_of(app, run).state is PlanState.DONE)
    assert ledger[show] == ["hall 1", "tickets 1!"]


def test_a_run_is_removed_and_undone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.remove("run", undo=True))
    refuse(show, "bar")
    with app.dispatcher():
        undone(app.start(theatre.evening, show))
    assert ledger[show] == ["hall 1", "tickets 1", "bar 1!", "untickets 1 for 10", "unhall 1 for 10"]


def test_all_runs_of_a_flow_are_removed_and_no_others(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.premiere, "fault", "true", do.remove("flow", undo=True))
    with app.dispatcher():
        waiting = [app.submit(theatre.premiere, f"{show}-{number}") for number in range(3)]
        for run in waiting:
            stops(run, Status.WAITING)
        refuse(f"{show}-1")
        waiting[1].signal("word")
        for run in waiting:
            undone(run)
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    for number in range(3):
        assert ledger[f"{show}-{number}"][-1] == "unhall 1 for 10"


def test_ancestors_are_removed_and_what_is_below_them_with_them(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.act, "fault", "true", do.remove("ancestors", undo=True))
    refuse(show, "act")
    with app.dispatcher():
        run = app.start(theatre.gala, show)
        undone(run)
        play = child_of(app, run)
        act = child_of(app, play)
        eventually(lambda: {one.row.ended_as for one in (play, act)} == {Status.COMPENSATED})
    assert ledger[show] == ["hall 1", "act 1!", "unhall 1 for 10"]


# Restart ----------------------------------------------------------------------------------------------------------


def test_a_restarted_activity_has_its_whole_ladder_again(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "activity.attempts == 3", do.restart())
    trouble[show, "tickets"] = [Busy("soon") for _ in range(5)]
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    # Its ladder has three tries: without the restart the fourth failure would have been the last.
    assert ledger[show].count("tickets 1!") == 5
    assert len(set(keys[show, "tickets"])) == 1


def test_what_had_its_effect_is_undone_before_it_is_begun_anew_under_another_key(setup: Setup, show: str) -> None:
    app = setup.app()
    condition = "activity.args.what == 'tickets' && activity.args.seats > 2"
    teach(app, theatre.evening, "activity_post", condition, do.set(args={"seats": 2}), do.restart())
    trouble[show, "tickets"] = []
    refuse(show, "bar")
    with app.dispatcher():
        run = app.start(theatre.evening, show, 4)
        undone(run)
    again = ["hall 4", "tickets 4", "untickets 4 for 40", "tickets 2", "bar 4!"]
    assert ledger[show] == [*again, "untickets 2 for 20", "unhall 4 for 40"]
    assert len(set(keys[show, "tickets"])) == 2
    with app.store.read() as connection:
        assert {frame.state for frame in stack.of_run(connection, run.id)} == {FrameState.UNDONE}


def test_a_restarted_activity_keeps_its_new_key_for_each_try_and_after_a_retry_by_hand(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app,
        theatre.evening,
        "activity_post",
        "activity.args.seats == 4 && activity.args.what == 'tickets'",
        do.set(args={"seats": 3}),
        do.restart(),
    )
    teach(app, theatre.evening, "fault", "fault.name == 'Refused'", do.park("look at it"))
    trouble[show, "tickets 3"] = [Busy("soon"), Refused("no")]
    with app.dispatcher():
        run = app.submit(theatre.evening, show, 4)
        stops(run, Status.PARKED)
        run.retry()
        assert run.result(60) == [40, 30, 40]
    seen = keys[show, "tickets"]
    assert (len(seen), len(set(seen)), len(set(seen[1:]))) == (4, 2, 1)


# Complete, fail ---------------------------------------------------------------------------------------------------


def test_an_activity_is_completed_with_what_is_computed(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.complete(computed="activity.args.seats * 100 + history.same_1h"))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show, 2).result(60) == [20, 201, 20]


def test_what_a_rule_has_completed_owes_no_undo(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "activity.args.what == 'tickets'", do.complete(3))
    refuse(show)
    refuse(show, "bar")
    with app.dispatcher():
        undone(app.start(theatre.evening, show))
    assert ledger[show] == ["hall 1", "tickets 1!", "bar 1!", "unhall 1 for 10"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([do.complete("many")], "does not fit"),
        ([do.set(result="many")], "does not fit"),
        ([do.complete(computed="activity.args.colour")], "cannot be computed"),
    ],
)
def test_a_result_of_another_type_parks_and_can_be_retried(
    setup: Setup, show: str, steps: list[Primitive], why: str
) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", *steps)
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        stops(run, Status.PARKED)
        assert why in (run.row.reason or "")
        run.retry()
        assert run.result(60) == [10, 10, 10]


def test_a_failure_is_raised_where_the_activity_was_called(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.detour, "fault", "fault.name == 'Busy'", do.fail("enough"))
    trouble[show, "tickets"] = [Busy("soon")]
    with app.dispatcher():
        # Busy is not caught: everything is undone, at the first failure.
        undone(app.start(theatre.detour, show))
    assert ledger[show] == ["hall 1", "stalls 2", "tickets 3!", "unstalls 2 for 20", "unhall 1 for 10"]


def test_a_flow_may_proceed_after_a_failure(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.notify("http://127.0.0.1:9/"), do.fail("never mind", proceed=True))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, "aft.FAILED", 10]


def test_what_had_its_effect_is_undone_before_the_flow_proceeds(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_post", "activity.args.what == 'tickets'", do.fail("no", proceed=True))
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, "aft.FAILED", 10]
    assert ledger[show] == ["hall 1", "tickets 1", "untickets 1 for 10", "bar 1"]


# Retry, unwind, park ----------------------------------------------------------------------------------------------


def test_a_retry_may_be_at_a_level_of_the_ladder(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "fault.name == 'Refused'", do.retry(level=2))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    fault = app.faults()[0]
    assert (fault.level, fault.wait) == (2, theatre.LEVELS[1].wait)


def test_a_retry_may_have_a_ladder_of_its_own_and_is_final_after_it(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.set(tags={"again": True}), do.retry(ladder="10ms*2, 20ms"))
    trouble[show, "tickets"] = [Refused("no") for _ in range(9)]
    with app.dispatcher():
        undone(app.start(theatre.evening, show))
    assert ledger[show] == ["hall 1", *["tickets 1!"] * 4, "unhall 1 for 10"]


def test_a_retry_may_wait_at_the_least(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.retry(level=1, after="120ms"))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    fault = app.faults()[0]
    assert fault.wait is not None
    assert (fault.level, fault.wait.total_seconds()) == (1, 0.12)


def test_a_fault_that_would_pass_is_unwound(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "fault.recoverable", do.set(tags={"given": "up"}), do.unwind())
    trouble[show, "bar"] = [Busy("soon")]
    with app.dispatcher():
        undone(app.start(theatre.evening, show))
    assert ledger[show] == ["hall 1", "tickets 1", "bar 1!", "untickets 1 for 10", "unhall 1 for 10"]


def test_a_run_is_unwound_to_a_savepoint_and_takes_another_way(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.detour, "fault", "fault.name == 'Busy'", do.unwind("stalls"))
    trouble[show, "tickets"] = [Busy("soon")]
    with app.dispatcher():
        run = app.start(theatre.detour, show)
        assert run.result(60) == ["UndoneByHand", 40]
    assert ledger[show] == ["hall 1", "stalls 2", "tickets 3!", "unstalls 2 for 20", "balcony 4"]


def test_unwinding_to_a_savepoint_that_the_run_is_not_in_parks(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.detour, "fault", "true", do.unwind("gallery"))
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.detour, show)
        stops(run, Status.PARKED)
        assert "gallery" in (run.row.reason or "")
        run.retry()
        assert run.result(60) == 30


@pytest.mark.parametrize("steps", [[do.park("count the money")], [do.set(tags={"a": 1}), do.park("count the money")]])
def test_a_parked_run_goes_on_when_a_person_retries_it(setup: Setup, show: str, steps: list[Primitive]) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", *steps)
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        stops(run, Status.PARKED)
        assert "count the money" in (run.row.reason or "")
        run.retry()
        assert run.result(60) == [10, 10, 10]
    assert ledger[show] == ["hall 1", "tickets 1!", "tickets 1", "bar 1"]


# Telling, changing data -------------------------------------------------------------------------------------------


def test_somebody_outside_is_told(setup: Setup, show: str, receiver: tuple[str, list[dict[str, Any]]]) -> None:
    app = setup.app()
    url, heard = receiver
    teach(app, theatre.evening, "fault", "true", do.notify(url, "no tickets"), do.complete(1))
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        assert run.result(60) == [10, 1, 10]
        eventually(lambda: heard)
    (notice,) = heard
    assert (notice["exlet"], notice["note"], notice["run"]) == ("fault_taught", "no tickets", run.id)
    told = [notice[name] for name in ("run_flow", "activity_name", "fault_text")]
    assert told == ["theatre_evening", "theatre_sell", "no"]
    assert not {key for key in notice if "args" in key or "result" in key}


def test_arguments_result_and_tags_are_set_as_given_and_as_computed(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app,
        theatre.evening,
        "fault",
        "activity.args.what == 'tickets'",
        do.set(
            args={"what": "stalls"},
            tags={"by": "rule"},
            computed={"args.seats": "activity.args.seats + 1", "tags.was": "activity.args.what"},
        ),
    )
    teach(
        app,
        theatre.evening,
        "activity_post",
        "activity.args.what == 'bar'",
        do.set(computed={"result": "activity.result * 2"}),
    )
    refuse(show)
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        assert run.result(60) == [10, 20, 20]
    assert ledger[show] == ["hall 1", "tickets 1!", "stalls 2", "bar 1"]
    assert run.row.tags == {"by": "rule", "was": "tickets"}


def test_a_result_that_was_set_completes_an_activity_that_failed(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.set(result=4))
    refuse(show)
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 4, 10]


def test_where_an_exlet_decides_nothing_the_own_verdict_holds(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "true", do.set(tags={"seen": True}))
    trouble[show, "tickets"] = [Busy("soon")]
    refuse(show, "bar")
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        undone(run)
    assert ledger[show] == ["hall 1", "tickets 1!", "tickets 1", "bar 1!", "untickets 1 for 10", "unhall 1 for 10"]
    assert run.row.tags == {"seen": True}


# Whatever happens -------------------------------------------------------------------------------------------------


def test_an_exlet_that_cannot_be_carried_out_parks_its_run_and_holds_up_nobody(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app, theatre.premiere, "fault", "true", do.suspend("flow"), do.notify("http://127.0.0.1:9/"), do.resume("flow")
    )
    with app.dispatcher():
        other = app.submit(theatre.premiere, f"{show}-2")
        stops(other, Status.WAITING)
    refuse(show, "hall")
    done: list[str] = []

    def break_it(event: object) -> None:
        if isinstance(event, ExletDone) and not done:
            done.append(event.run)
            with app.store.write() as connection:
                connection.execute(update(tables.plans).values(exlet="no exlet at all"))

    app.telemetry.subscribe(break_it)
    run = app.submit(theatre.premiere, show)
    with app.dispatcher():
        stops(run, Status.PARKED)
        assert "exlet cannot be carried out" in (run.row.reason or "")
        other.signal("word")
        assert other.result(60) == [10, 10]
        run.retry()
        stops(run, Status.WAITING)


def test_a_replay_agrees_with_what_exlets_have_made_of_a_run(setup: Setup, show: str) -> None:
    """Every outcome that a rule can make lies before a wait; the worker that goes on after it has only the journal."""
    app = setup.app()
    made: dict[str, list[Primitive]] = {
        "one": [do.complete(1)],
        "two": [do.fail("no", proceed=True)],
        "three": [do.set(args={"seats": 3})],
        "four": [do.remove("activity")],
        "five": [do.fail("no")],
    }
    tree = theatre.tree_of(
        theatre.long_evening, "fault", {f"activity.args.what == '{what}'": what for what in theatre.NUMBERS}
    )
    app.rules.save_all([tree], [aft.Exlet(what, steps) for what, steps in made.items()])
    for what in theatre.NUMBERS:
        refuse(show, what)
    with app.dispatcher():
        run = app.start(theatre.long_evening, show)
        stops(run, Status.WAITING)
    before = list(ledger[show])
    with setup.app().dispatcher():
        run.signal("word")
        assert run.result(60) == [1, "aft.FAILED", 30, "aft.REMOVED", 20, "five failed"]
    assert ledger[show] == before


# Maps -------------------------------------------------------------------------------------------------------------


@aft.activity(name="theatre_item", levels=[])
def item(number: int) -> int:
    if number == 1:
        raise ValueError("no")
    return number


@aft.flow(name="theatre_items")
def items(count: int) -> list[str]:
    return [str(found) for found in aft.map(item, range(count), concurrency=1)]


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (do.complete(5), "5"),
        (do.fail("no", proceed=True), str(aft.FAILED)),
        (do.remove("activity"), str(aft.REMOVED)),
    ],
    ids=["complete", "proceed", "remove"],
)
def test_a_map_goes_on_after_an_item_that_a_rule_has_settled(setup: Setup, step: Any, result: str) -> None:
    app = setup.app()
    teach(app, items, "fault", "true", step)
    with app.dispatcher():
        assert app.submit(items, 4).result(60) == ["0", result, "2", "3"]
