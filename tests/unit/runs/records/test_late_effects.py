"""Claims about late effects: dropped, waited with, undone or parked, by how the run and the step stand."""

from __future__ import annotations

import itertools

import pytest

from aft.ids import RunId, StepPath
from aft.runs.records.late_effects import FoundEffect, LateDecision, LateEffect, decide
from aft.runs.states import Status

GOING = [status for status in Status if not status.ended]
ENDED = [status for status in Status if status.ended]


def found(
    status: Status,
    *,
    stands: bool = False,
    compensator: str | None = "refund",
    owned: bool = False,
    over: bool = False,
    ours: bool = False,
) -> FoundEffect:
    effect = LateEffect(
        run_id=RunId("r1"),
        namespace="shop",
        path=StepPath("1"),
        scope="",
        activity="charge",
        key="r1/0/1",
        key_generation=0,
        compensator=compensator,
        epoch=1,
        args="{}",
        value="1",
    )
    return FoundEffect("e1", effect, status, owned, stands, over, ours)


@pytest.mark.parametrize("status", Status)
def test_what_was_recorded_under_the_same_key_is_the_same_effect(status: Status) -> None:
    assert decide(found(status, stands=True)) is LateDecision.DROP


@pytest.mark.parametrize(("status", "stands"), [*itertools.product(Status, (True, False))])
def test_while_somebody_has_the_run_he_may_be_recording_or_undoing_it(status: Status, stands: bool) -> None:
    assert decide(found(status, stands=stands, owned=True)) is LateDecision.WAIT


@pytest.mark.parametrize("status", GOING)
def test_while_the_run_goes_on_it_may_still_record_the_step(status: Status) -> None:
    assert decide(found(status)) is LateDecision.WAIT


@pytest.mark.parametrize("status", [Status.RUNNING, Status.WAITING, Status.RECOVERING])
def test_where_the_run_went_on_without_it_it_is_undone_at_once_or_a_person_is_asked(status: Status) -> None:
    assert decide(found(status, over=True)) is LateDecision.UNDO
    assert decide(found(status, over=True, compensator=None)) is LateDecision.PARK


@pytest.mark.parametrize("status", [Status.SUSPENDED, Status.PARKED, Status.COMPENSATING])
def test_what_a_person_has_stopped_or_is_being_undone_is_not_woken_for_it(status: Status) -> None:
    assert decide(found(status, over=True)) is LateDecision.WAIT


@pytest.mark.parametrize("status", GOING)
def test_the_owner_of_the_run_undoes_it_in_whatever_state_once_the_step_is_over(status: Status) -> None:
    assert decide(found(status, over=True, ours=True)) is LateDecision.UNDO
    assert decide(found(status, over=True, ours=True, stands=True)) is LateDecision.DROP


def test_the_owner_that_undoes_the_run_does_not_wait_for_the_step_to_be_over() -> None:
    assert decide(found(Status.COMPENSATING, ours=True)) is LateDecision.UNDO
    assert decide(found(Status.RECOVERING, ours=True)) is LateDecision.WAIT


@pytest.mark.parametrize("status", ENDED)
def test_after_the_end_it_is_undone_if_that_can_be_done(status: Status) -> None:
    assert decide(found(status)) is LateDecision.UNDO


@pytest.mark.parametrize("status", ENDED)
def test_after_the_end_a_person_is_asked_where_nothing_undoes_it(status: Status) -> None:
    assert decide(found(status, compensator=None)) is LateDecision.PARK
