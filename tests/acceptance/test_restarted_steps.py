"""Steps that rules have undone and executed again: what is undone, and under which key they are executed."""

from __future__ import annotations

import threading

import pytest

import aft
from aft import do
from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.flows.declare.context import AttemptContext, in_attempt
from aft.flows.steps import attempt
from aft.flows.steps.step import Step
from aft.rules.cases import sources
from aft.runs.ownership.owner import Fenced
from aft.runs.states import Status
from tests.acceptance.revue import (
    for_good,
    late_fates,
    limited,
    pivoted,
    programme,
    refuse,
    revue,
    season,
    sketch,
    teach_numbers,
)
from tests.acceptance.theatre import stops, teach
from tests.setups import Setup, eventually
from tests.world import gates, keys, ledger

#: On one set-up: these are about what is decided, not about where it is kept.
pytestmark = pytest.mark.parametrize("setup", ["sqlite"], indirect=True)


def test_a_step_that_is_objected_to_leaves_those_of_earlier_generations_alone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, season, {3: [do.fail("enough")]})
    with app.dispatcher():
        assert app.start(season, show).result(60) == "caught"
    assert ledger[show] == ["number 1", "number 2", "number 3", "off 3"]


def test_a_restarted_step_is_undone_again_when_a_person_retries_it(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, revue, {1: [do.restart()], 2: [do.park("look")]})
    with app.dispatcher():
        run = app.submit(revue, show)
        stops(run, Status.PARKED)
        run.retry()
        assert run.result(60) == 3
    assert len(set(keys[show, "number"])) == 3
    assert ledger[show] == ["number 1", "off 1", "number 2", "off 2", "number 3"]


@pytest.mark.usefixtures("known_sources")
def test_a_restarted_step_keeps_its_new_key_when_a_constraint_ceases_to_hold(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    monkeypatch.setattr(sources, "FRESH", 0.0)  # what was true of the second must not be said of the third
    aft.source(default=0, name="revue_begun")(lambda: len(keys[show, "number"]))
    teach_numbers(app, revue, {1: [do.restart()]})
    teach(app, revue, "violated", "source.revue_begun == 2", do.retry(after="20ms"))
    gate = gates[show, "number 2"] = threading.Event()
    with app.dispatcher():
        run = app.submit(revue, show)
        assert run.result(60) == 3
        gate.set()
        # What the second did after all is what the third has done, under the same key: nothing is undone.
        eventually(lambda: late_fates(app, run) == ["drop"])
    first, *others = keys[show, "number"]
    assert len(set(others)) == 1
    assert first not in others
    assert ledger[show] == ["number 1", "off 1", "number 3", "number 2"]


def test_what_is_undone_after_a_pivot_is_retried_under_another_key(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, pivoted, {1: [do.fail("no")]})
    with app.dispatcher():
        run = app.submit(pivoted, show)
        stops(run, Status.PARKED)
        run.retry()
        assert run.result(60) == 2
    assert ledger[show] == ["number 1", "off 1", "number 2"]
    assert len(set(keys[show, "number"])) == 2


def test_the_late_effect_of_a_restarted_step_leaves_a_completed_run_alone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach_numbers(app, limited, {1: [do.restart()]})
    gate = gates[show, "number 2"] = threading.Event()
    with app.dispatcher():
        run = app.submit(limited, show)
        assert run.result(60) == 3
        gate.set()
        eventually(lambda: late_fates(app, run) == ["drop"])
        assert run.status is Status.COMPLETED
    assert ledger[show] == ["number 1", "off 1", "number 3", "number 2"]


def test_a_restarted_step_that_nobody_can_undo_keeps_its_key(setup: Setup, show: str) -> None:
    """Whoever knows the key has done it already: another one would do it twice."""
    app = setup.app()
    teach_numbers(app, for_good, {1: [do.restart()]})
    with app.dispatcher():
        assert app.start(for_good, show).result(60) == 2
    assert len(set(keys[show, "number"])) == 1


def test_a_step_that_may_have_had_its_effect_is_not_kept_from_beginning(
    setup: Setup, show: str, quick_beats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app(lease=quick_beats)
    taught, perform = threading.Event(), attempt.perform

    def die_after_it(step: Step) -> None:
        monkeypatch.setattr(attempt, "perform", perform)
        with in_attempt(AttemptContext(step.current(0))):
            step.fn(*step.args, **step.kwargs)
        assert taught.wait(60)
        raise Fenced("the worker was lost after the effect")

    monkeypatch.setattr(attempt, "perform", die_after_it)
    with app.dispatcher():
        run = app.submit(revue, show)
        eventually(lambda: ledger[show])
        teach(app, revue, "activity_pre", "true", do.fail("too late"))
        app.rule_cache.refresh()
        taught.set()
        assert run.result(60) == 2
    assert len(set(keys[show, "number"])) == 1


def test_a_parent_whose_child_was_left_as_it_is_does_not_say_that_all_is_undone(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, sketch, "fault", "true", do.remove("activity"))
    refuse(show, "sketch")
    with app.dispatcher():
        run = app.submit(programme, show)
        with pytest.raises(aft.FlowFailed):
            run.result(60)
    assert run.status is Status.FAILED
    assert ledger[show] == ["hall 1", "props 1", "sketch 1!", "unhall 1 for 10"]
    with app.store.read() as connection:
        (left,) = [frame for frame in stack.of_run(connection, run.id) if frame.child_id is not None]
    assert left.state is FrameState.SKIPPED
    assert "nothing undone" in (left.note or "")
