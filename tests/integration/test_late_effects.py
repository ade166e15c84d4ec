"""Claims about settling late effects: each is dropped, undone or parked once, and never forgotten."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from aft import names
from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.dispatcher.sweep.late_effects import LateEffectSweep
from aft.ids import StepPath, new_id
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import OwnerWrite
from aft.runs.records import late_effects as late
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.records.late_effects import LateEffect
from aft.runs.states import Status
from aft.store.tables import late_effects
from aft.telemetry import EffectLate, RunParked
from tests.storing import Stage, at_once, journal_in


@pytest.fixture
def sweeper(stage: Stage) -> LateEffectSweep:
    return LateEffectSweep(stage.dispatcher_deps(), 100)


@pytest.fixture
def ended(stage: Stage) -> Owner:
    """A run that has been compensated."""
    owner = stage.owned(stage.lease())
    stage.change(owner.run_id, status="compensated", ended_as="compensated", cause="fault", worker_id=None)
    return owner


def add(
    stage: Stage,
    owner: Owner,
    path: str = "1",
    compensator: str | None = "refund",
    *,
    unless_recorded: bool = False,
) -> None:
    effect = LateEffect(
        run_id=owner.run_id,
        namespace=stage.namespace,
        path=StepPath(path),
        scope="",
        activity="charge",
        key=f"{owner.run_id}/0/{path}",
        key_generation=0,
        compensator=compensator,
        epoch=owner.epoch,
        args='{"n": 1}',
        value="42",
    )
    with stage.store.write() as connection:
        late.write(connection, new_id(), effect, unless_recorded=unless_recorded)


def record(stage: Stage, owner: Owner, outcome: Outcome) -> None:
    entry = Entry(StepPath("1"), "", EntryKind.ACTIVITY, "charge", outcome, datetime.now(UTC))
    with stage.store.write() as connection:
        journal_in(connection, owner, 99, entry)


def fates(stage: Stage) -> list[str]:
    statement = select(late_effects.c.state).where(late_effects.c.namespace == stage.namespace)
    with stage.store.read() as connection:
        return sorted(connection.execute(statement).scalars())


def frames(stage: Stage, owner: Owner) -> list[Frame]:
    with stage.store.read() as connection:
        return stack.of_run(connection, owner.run_id)


def test_an_effect_that_was_recorded_after_all_is_dropped(stage: Stage, sweeper: LateEffectSweep) -> None:
    owner = stage.owned(stage.lease())
    add(stage, owner)
    record(stage, owner, Outcome.OK)
    assert sweeper.sweep() == 0  # its owner may be undoing the step at this moment
    stage.change(owner.run_id, worker_id=None)
    assert sweeper.sweep() == 1
    assert (fates(stage), frames(stage, owner)) == (["drop"], [])


def test_an_effect_that_came_after_its_step_was_undone_is_undone_too(stage: Stage, sweeper: LateEffectSweep) -> None:
    owner = stage.owned(stage.lease())
    add(stage, owner)
    record(stage, owner, Outcome.OK)
    with stage.store.write() as connection:
        frame = stack.fields(StepPath("1"), "", "charge", "refund", at=datetime.now(UTC))
        stack.push(connection, owner.run_id, 99, frame)
        stack.pop_child_frame(connection, owner.run_id, 99, FrameState.UNDONE)
    stage.change(owner.run_id, worker_id=None)
    assert sweeper.sweep() == 1  # executed anew, the step has another key
    assert [frame.state for frame in frames(stage, owner)] == [FrameState.UNDONE, FrameState.LATE]
    assert fates(stage) == ["undo"]


def test_what_its_own_owner_recorded_in_a_commit_without_an_answer_is_not_late(
    stage: Stage, sweeper: LateEffectSweep
) -> None:
    """It is recorded, and maybe undone by now: one effect, one undo."""
    owner = stage.owned(stage.lease())
    record(stage, owner, Outcome.OK)
    add(stage, owner, unless_recorded=True)
    assert fates(stage) == []
    add(stage, owner, path="2", unless_recorded=True)
    assert fates(stage) == ["open"]


def test_an_effect_raises_the_length_of_the_inbox_so_that_the_owner_hears_of_it(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    heard = owner.inbox_seq
    add(stage, owner)
    assert owner.share(OwnerWrite(), read_to=heard) is None
    owner.write(lambda connection, seq: None)
    assert owner.inbox_seq == heard + 1


def test_an_effect_of_a_run_that_goes_on_is_left_for_later(stage: Stage, sweeper: LateEffectSweep) -> None:
    owner = stage.owned(stage.lease())
    add(stage, owner)
    record(stage, owner, Outcome.FAILED)
    assert sweeper.sweep() == 0
    assert fates(stage) == ["open"]


def test_an_effect_of_an_ended_run_becomes_a_frame_and_wakes_the_run(
    stage: Stage, sweeper: LateEffectSweep, ended: Owner
) -> None:
    add(stage, ended)
    assert sweeper.sweep() == 1
    (frame,) = frames(stage, ended)
    row = stage.row(ended.run_id)
    assert (frame.state, frame.args, frame.value, frame.seq) == (FrameState.LATE, '{"n": 1}', "42", row.seq)
    assert row.wake_id is not None
    assert row.status is Status.COMPENSATED
    assert stage.posted() == [names.resume_run(stage.namespace, row.flow, row.version)]
    assert stage.events == [EffectLate(run=ended.run_id, path="1", activity="charge", decision="undo")]


def test_an_effect_that_nothing_undoes_parks_the_ended_run(
    stage: Stage, sweeper: LateEffectSweep, ended: Owner
) -> None:
    add(stage, ended, compensator=None)
    assert sweeper.sweep() == 1
    row = stage.row(ended.run_id)
    assert (row.status, row.ended_as, row.wake_id) == (Status.PARKED, Status.COMPENSATED, None)
    assert row.reason is not None
    assert row.reason.startswith("late effect: activity 'charge' (step 1) had its effect after the run had ended")
    assert [type(event) for event in stage.events] == [EffectLate, RunParked]


def test_an_ended_run_that_somebody_has_is_left_for_later(stage: Stage, sweeper: LateEffectSweep, ended: Owner) -> None:
    add(stage, ended)
    stage.change(ended.run_id, wake_id="somebody's")
    assert sweeper.sweep() == 0
    assert (fates(stage), frames(stage, ended)) == (["open"], [])


def test_each_effect_of_a_run_is_undone_one_after_the_other(
    stage: Stage, sweeper: LateEffectSweep, ended: Owner
) -> None:
    add(stage, ended, "1")
    add(stage, ended, "2")
    assert sweeper.sweep() == 1
    stage.change(ended.run_id, wake_id=None)
    assert sweeper.sweep() == 1
    assert {frame.path for frame in frames(stage, ended)} == {"1", "2"}


def test_of_several_sweepers_one_settles_an_effect(stage: Stage, sweeper: LateEffectSweep, ended: Owner) -> None:
    add(stage, ended)
    assert sorted(at_once([sweeper.sweep] * 3)) == [0, 0, 1]
    assert len(frames(stage, ended)) == len(stage.posted()) == 1


def test_a_run_that_was_parked_for_one_effect_is_not_woken_for_another(
    stage: Stage, sweeper: LateEffectSweep, ended: Owner
) -> None:
    add(stage, ended, "1", compensator=None)
    add(stage, ended, "2")
    sweeper.sweep()
    row = stage.row(ended.run_id)
    assert (row.status, row.wake_id) == (Status.PARKED, None)


def test_a_run_in_a_state_that_there_is_not_stops_no_decision_about_others(
    stage: Stage, sweeper: LateEffectSweep, ended: Owner
) -> None:
    damaged = stage.owned(stage.lease())
    entry = Entry(StepPath("1"), "", EntryKind.ACTIVITY, "charge", Outcome.OK, datetime.now(UTC), value="42")
    damaged.write(lambda connection, seq: journal_in(connection, damaged, seq, entry))
    add(stage, damaged)
    stage.change(damaged.run_id, status="x", worker_id=None)
    add(stage, ended)
    assert sweeper.sweep() == 1
    assert sweeper.sweep() == 0
