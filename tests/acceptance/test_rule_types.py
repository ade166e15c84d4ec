"""The types of exception that rules answer: a story for each, on the two set-ups that people have."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import aft
from aft import do
from aft.fault import FaultKind, FaultState
from aft.rules.rule_types import RuleType
from aft.runs.states import Status
from aft.telemetry import RuleWarned
from tests.acceptance import theatre
from tests.acceptance.commands import PATIENCE
from tests.acceptance.theatre import listen, stops, teach, undone
from tests.setups import Setup, eventually
from tests.world import Busy, Refused, gates, keys, ledger, trouble

# Faults -----------------------------------------------------------------------------------------------------------


def test_a_fault_is_answered_by_the_rule_that_holds_for_it(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "fault.name == 'Refused' && activity.args.seats > 3", do.complete(1))
    trouble[show, "tickets"] = [Refused("no")]
    with app.dispatcher():
        assert app.start(theatre.evening, show, 4).result(60) == [40, 1, 40]
    assert ledger[show] == ["hall 4", "tickets 4!", "bar 4"]
    fault = app.faults()[0]
    assert fault.state is FaultState.RESOLVED
    told = app.rules.explain(fault.id)
    assert told.decision is not None
    assert told.decision.exlet == "fault_taught"
    assert told.decision.facts["activity.args"] == {"show": show, "what": "tickets", "seats": 4}


def test_a_fault_that_no_rule_holds_for_goes_its_own_way(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "fault", "fault.name == 'Refused' && activity.args.seats > 3", do.complete(1))
    trouble[show, "tickets"] = [Busy("soon")]
    trouble[show, "bar"] = [Refused("no")]
    with app.dispatcher():
        undone(app.start(theatre.evening, show, 3))
    assert ledger[show] == [
        "hall 3",
        "tickets 3!",
        "tickets 3",
        "bar 3!",
        "untickets 3 for 30",
        "unhall 3 for 30",
    ]


def test_the_most_special_tree_is_asked_first_and_a_silent_one_asks_the_next(setup: Setup, show: str) -> None:
    app = setup.app()
    trees = [
        theatre.rule("*", "fault", "fault.name == 'Refused'", "everywhere"),
        theatre.rule("*", "fault", "activity.args.what == 'hall'", "this_activity", "theatre_sell"),
        theatre.rule(theatre.evening, "fault", "activity.args.what == 'tickets'", "this_flow"),
        theatre.rule(theatre.evening, "fault", "activity.args.what == 'bar'", "just_this", "theatre_sell"),
    ]
    made = [aft.Exlet(tree.nodes[1].exlet, [do.complete(number)]) for number, tree in enumerate(trees)]
    app.rules.save_all(trees, made)
    for what in ("hall", "tickets", "bar", "night"):
        trouble[show, what] = [Refused("no")]
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [1, 2, 3]
        assert app.start(theatre.night, show).result(60) == [0]


# Time limits ------------------------------------------------------------------------------------------------------


def test_a_time_limit_has_rules_of_its_own(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.matinee, "timeout", "timeout.activity == 'theatre_rest'", do.complete(7))
    gates[show, "pause"] = threading.Event()
    with app.dispatcher():
        assert app.start(theatre.matinee, show).result(60) == 7
    gates[show, "pause"].set()
    fault = app.faults()[0]
    assert (fault.rule_type, fault.short_type) == ("timeout", "TimeoutError")


def test_a_time_limit_without_such_rules_is_a_fault_like_others(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.matinee, "timeout", "activity.attempts > 100", do.complete(7))
    teach(app, theatre.matinee, "fault", "fault.name == 'TimeoutError'", do.complete(8))
    gates[show, "pause"] = threading.Event()
    with app.dispatcher():
        assert app.start(theatre.matinee, show).result(60) == 8
    gates[show, "pause"].set()


def test_time_limits_of_two_branches_are_answered_each(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app,
        theatre.two_stages,
        "timeout",
        "activity.args.what == 'left'",
        do.suspend("activity"),
        do.complete(computed="size(activity.args.what)"),
    )
    app.rules.save_all(
        [theatre.rule(theatre.two_stages, "fault", "fault.name == 'TimeoutError'", "middle")],
        [aft.Exlet("middle", [do.complete(2)])],
    )
    for what in ("left", "middle"):
        gates[show, what] = threading.Event()
    with app.dispatcher():
        assert app.start(theatre.two_stages, show).result(60) == [4, 10, 2]
    for what in ("left", "middle"):
        gates[show, what].set()


@pytest.mark.parametrize("first", [[], [Busy("soon")]], ids=["not decided", "in its ladder"])
def test_rules_are_asked_about_a_step_beside_one_that_is_out_of_time(
    setup: Setup, show: str, first: list[BaseException]
) -> None:
    app = setup.app()
    condition = "timeout.activity == 'theatre_rest' && fault.name == 'Recoverable'"
    teach(app, theatre.rehearsal, "timeout", condition, do.complete(3), activity="theatre_sell")
    # In its ladder for longer than anybody waits here; what is beside it is out of time at once, or at its second try.
    trouble[show, "bar"] = [aft.Recoverable("later", after="10m")]
    trouble[show, "pause"] = list(first)
    gates[show, "pause"] = threading.Event()
    with app.dispatcher():
        run = app.start(theatre.rehearsal, show)
        (fault,) = eventually(lambda: [one for one in app.faults() if one.name == "theatre_sell" and one.ruling])
        gates[show, "pause"].set()
        assert run.result(60) == [0, 3]
    told = app.rules.explain(fault.id).decision
    assert told is not None
    assert (told.on, told.exlet, told.facts["timeout.activity"]) == ("timeout", "timeout_taught", "theatre_rest")
    assert ledger[show].count("bar 1!") == 1


# Constraints ------------------------------------------------------------------------------------------------------


def test_a_constraint_before_an_activity_keeps_it_from_beginning(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_pre", "activity.args.what == 'tickets'", do.fail("no tickets tonight"))
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        with pytest.raises(aft.FlowCompensated, match="no tickets tonight"):
            run.result(60)
    assert ledger[show] == ["hall 1", "unhall 1 for 10"]
    fault = app.faults()[0]
    assert (fault.kind, fault.short_type, fault.attempt) == (FaultKind.CONSTRAINT, "ConstraintViolated", 1)


def test_an_activity_may_begin_with_other_arguments_and_keeps_them_for_each_try(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app,
        theatre.evening,
        "activity_pre",
        "activity.args.seats > 5 && activity.args.what == 'tickets'",
        do.suspend("activity"),
        do.set(args={"seats": 5}),
        do.resume("activity"),
    )
    trouble[show, "tickets"] = [Busy("soon"), Busy("soon")]
    trouble[show, "bar"] = [Refused("no")]
    with app.dispatcher():
        undone(app.start(theatre.evening, show, 6))
    # What is undone is what was done.
    sold = ["hall 6", "tickets 5!", "tickets 5!", "tickets 5", "bar 6!"]
    assert ledger[show] == [*sold, "untickets 5 for 50", "unhall 6 for 60"]
    assert len(set(keys[show, "tickets"])) == 1


def test_a_constraint_after_an_activity_has_its_effect_undone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.detour, "activity_post", "activity.result > 25", do.fail("too much"))
    with app.dispatcher():
        run = app.start(theatre.detour, show)
        undone(run)
    # The balcony costs too much as well: then all is undone, the last first.
    sold = ["hall 1", "stalls 2", "tickets 3", "untickets 3 for 30", "unstalls 2 for 20"]
    assert ledger[show] == [*sold, "balcony 4", "unbalcony 4 for 40", "unhall 1 for 10"]


def test_a_result_that_rules_object_to_may_be_taken_all_the_same(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_post", "activity.args.what == 'tickets'", do.set(tags={"looked": True}))
    trouble[show, "bar"] = [Refused("no")]
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        undone(run)
    assert ledger[show] == ["hall 1", "tickets 1", "bar 1!", "untickets 1 for 10", "unhall 1 for 10"]
    assert run.row.tags == {"looked": True}


def test_a_constraint_before_a_run_keeps_it_from_beginning(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "run_pre", "run.args.seats > 100", do.fail("the house is too small"))
    with app.dispatcher():
        run = app.start(theatre.evening, show, 101)
        with pytest.raises(aft.FlowCompensated, match="the house is too small"):
            run.result(60)
        assert app.start(theatre.evening, show, 1).result(60) == [10, 10, 10]
    assert ledger[show] == ["hall 1", "tickets 1", "bar 1"]


def test_a_run_that_rules_objected_to_may_begin_and_is_not_asked_again(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.premiere, "run_pre", "true", do.set(tags={"vip": True}))
    with app.dispatcher():
        run = app.start(theatre.premiere, show)
        stops(run, Status.WAITING)
    with app.dispatcher():
        run.signal("word")
        assert run.result(60) == [10, 10]
    assert run.row.tags == {"vip": True}
    assert len(app.faults()) == 1


def test_a_constraint_after_a_run_has_everything_undone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "run_post", "activity.result[1] > 15", do.fail("nobody pays that"))
    with app.dispatcher():
        run = app.start(theatre.evening, show, 2)
        with pytest.raises(aft.FlowCompensated, match="nobody pays that"):
            run.result(60)
        assert app.start(theatre.evening, show, 1).result(60) == [10, 10, 10]
    assert ledger[show][:6] == [
        "hall 2",
        "tickets 2",
        "bar 2",
        "unbar 2 for 20",
        "untickets 2 for 20",
        "unhall 2 for 20",
    ]


def test_a_constraint_that_ceases_to_hold_ends_what_is_under_way(setup: Setup, show: str, quick_beats: float) -> None:
    app = setup.app(lease=quick_beats)
    teach(app, theatre.evening, "violated", "activity.elapsed > 0.1 && activity.args.what == 'tickets'", do.complete(3))
    gate = gates[show, "tickets"] = threading.Event()
    with app.dispatcher():
        run = app.start(theatre.evening, show)
        assert run.result(60) == [10, 3, 10]
        gate.set()
        # What it did after all was no part of the run: it is undone by itself.
        eventually(lambda: ledger[show][-1] == "untickets 1 for 10")
    assert ledger[show] == ["hall 1", "bar 1", "tickets 1", "untickets 1 for 10"]
    fault = app.faults()[0]
    assert (fault.kind, fault.rule_type) == (FaultKind.CONSTRAINT, "violated")


# Resources, deaths, events ----------------------------------------------------------------------------------------


def test_a_resource_that_cannot_be_had_has_rules_of_its_own(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "unavailable", "fault.name == 'ResourceUnavailable'", do.retry(after="20ms"))
    trouble[show, "tickets"] = [aft.ResourceUnavailable("printer") for _ in range(6)]
    with app.dispatcher():
        # More often than its ladder has tries.
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    assert ledger[show].count("tickets 1!") == 6


def burn(setup: Setup) -> None:
    """Let a dispatcher take what there is, and die of it."""
    dispatcher = subprocess.run(
        [sys.executable, "-m", "aft", "dispatcher", "tests.acceptance.theatre"],
        env={**os.environ, **setup.environ(), "PYTHONPATH": str(Path.cwd())},
        timeout=PATIENCE,
        check=False,
        capture_output=True,
    )
    assert dispatcher.returncode == -9, dispatcher.stderr


def test_a_lost_worker_is_answered_for_a_whole_flow_and_may_park_its_run(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app, theatre.burns, "abort", "fault.deaths == 1", do.set(tags={"burnt": True}), do.park("call the fire brigade")
    )
    run = app.submit(theatre.burns, show)
    burn(setup)
    with app.dispatcher():
        stops(run, Status.PARKED)
        assert (run.row.reason, run.row.tags) == ("call the fire brigade", {"burnt": True})


def test_an_activity_whose_worker_was_lost_is_answered_by_its_name(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(
        app,
        theatre.burns,
        "abort",
        "activity.name == 'theatre_fire'",
        do.complete("it killed one"),
        activity="theatre_fire",
    )
    run = app.submit(theatre.burns, show)
    burn(setup)
    with app.dispatcher():
        assert run.result(60) == "it killed one"
    faults = app.faults()
    assert [fault.rule_type for fault in faults if fault.kind is FaultKind.CONSTRAINT] == ["abort"]


@pytest.mark.parametrize("on", [RuleType.RUN_TRIGGER, RuleType.ACTIVITY_TRIGGER])
def test_rules_for_events_from_outside_can_be_kept_and_nothing_happens(setup: Setup, show: str, on: RuleType) -> None:
    app = setup.app()
    teach(app, theatre.evening, on, "trigger.name == 'fire'", do.remove("run"))
    trouble[show, "tickets"] = [Busy("soon")]
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    assert [tree.on for tree in app.rules.trees() if tree.revision] == [on]


def test_a_rule_whose_fact_is_missing_does_not_hold_and_that_is_told(setup: Setup, show: str) -> None:
    app = setup.app()
    heard = listen(app)
    teach(app, theatre.evening, "fault", "activity.args.colour == 'red'", do.complete(1))
    teach(app, theatre.evening, "activity_pre", "run.tags.vip && activity.args.what == 'bar'", do.fail("no"))
    trouble[show, "tickets"] = [Busy("soon")]
    with app.dispatcher():
        assert app.start(theatre.evening, show).result(60) == [10, 10, 10]
    warned = [event.why for event in heard if isinstance(event, RuleWarned)]
    assert any("colour" in why for why in warned)
    assert any("vip" in why for why in warned)
