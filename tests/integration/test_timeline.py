"""Claims about the order of a run's story, which two clocks have written: the worker's and the database's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from aft.app.views import timeline
from aft.app.views.timeline import StoryEventKind
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status
from aft.store.db_time import now
from tests.storing import Stage, recording


@pytest.mark.parametrize("ahead", [timedelta(minutes=-5), timedelta(0), timedelta(minutes=5)], ids=str)
@pytest.mark.parametrize(
    ("status", "last"), [(Status.COMPLETED, StoryEventKind.ENDED), (Status.PARKED, StoryEventKind.PARKED)]
)
def test_a_step_is_told_between_start_and_end_whatever_the_workers_clock_says(
    stage: Stage, ahead: timedelta, status: Status, last: StoryEventKind
) -> None:
    owner = stage.owned(stage.lease())
    entry = Entry(
        path=StepPath("1"),
        scope="",
        kind=EntryKind.ACTIVITY,
        name="charge",
        outcome=Outcome.OK,
        recorded_at=stage.clock.now() + ahead,
    )
    owner.write(recording(owner, entry))
    stage.change(owner.run_id, status=status, ended_at=now() if status.ended else None, updated_at=now())
    with stage.store.read() as connection:
        _, story = timeline.read_timeline(connection, stage.namespace, owner.run_id)
    assert [happening.what for happening in story] == [StoryEventKind.STARTED, StoryEventKind.ACTIVITY, last]
