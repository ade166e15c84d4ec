"""Claims about late effects: dropped, waited with, undone or parked, by how the run and the step stand."""

from __future__ import annotations

import itertools

import pytest

from aft.ids import RunId, StepPath
from aft.runs.journal import Outcome
from aft.runs.late import Fate, Found, LateEffect, decide
from aft.runs.states import Status

GOING = [status for status in Status if not status.ended]
ENDED = [status for status in Status if status.ended]
NOT_RECORDED = [(None, None), (Outcome.FAILED, 0), (Outcome.UNDONE, 0), (Outcome.OK, 1)]


def found(
    status: Status,
    recorded: tuple[Outcome | None, int | None],
    *,
    compensator: str | None = "refund",
    owned: bool = False,
    undone: bool = False,
) -> Found:
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
    return Found("e1", effect, status, owned, *recorded, undone)


@pytest.mark.parametrize("status", Status)
def test_what_was_recorded_under_the_same_key_is_the_same_effect(status: Status) -> None:
    assert decide(found(status, (Outcome.OK, 0))) is Fate.DROP


@pytest.mark.parametrize("status", Status)
def test_while_somebody_has_the_run_he_may_be_undoing_what_was_recorded(status: Status) -> None:
    assert decide(found(status, (Outcome.OK, 0), owned=True)) is Fate.WAIT


@pytest.mark.parametrize(("status", "recorded"), [*itertools.product(GOING, NOT_RECORDED)])
def test_while_the_run_goes_on_it_may_still_record_the_step(
    status: Status, recorded: tuple[Outcome | None, int | None]
) -> None:
    assert decide(found(status, recorded)) is Fate.WAIT


@pytest.mark.parametrize(("status", "recorded"), [*itertools.product(ENDED, NOT_RECORDED)])
def test_while_somebody_has_the_ended_run_it_is_waited_for(
    status: Status, recorded: tuple[Outcome | None, int | None]
) -> None:
    assert decide(found(status, recorded, owned=True)) is Fate.WAIT


@pytest.mark.parametrize(("status", "recorded"), [*itertools.product(ENDED, NOT_RECORDED)])
def test_after_the_end_it_is_undone_if_that_can_be_done(
    status: Status, recorded: tuple[Outcome | None, int | None]
) -> None:
    assert decide(found(status, recorded)) is Fate.UNDO


@pytest.mark.parametrize(("status", "recorded"), [*itertools.product(ENDED, NOT_RECORDED)])
def test_after_the_end_a_person_is_asked_where_nothing_undoes_it(
    status: Status, recorded: tuple[Outcome | None, int | None]
) -> None:
    assert decide(found(status, recorded, compensator=None)) is Fate.PARK


@pytest.mark.parametrize("status", Status)
def test_what_was_recorded_and_undone_before_is_not_the_same_effect(status: Status) -> None:
    """It may have arrived after its compensator had looked: nothing has undone it."""
    expected = Fate.UNDO if status.ended else Fate.WAIT
    assert decide(found(status, (Outcome.OK, 0), undone=True)) is expected
