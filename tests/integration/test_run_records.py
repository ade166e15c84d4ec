"""Claims about reading runs together: each gets just what is recorded about it, and a new run costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.errors import StoreError
from aft.fault import FaultState
from aft.flows.session import run_records
from aft.flows.session.run_records import RunRecords
from aft.ids import OrderId, RunId, StepPath, new_id
from aft.runs.ownership.owner import Owner
from aft.runs.records import inbox, journal
from aft.runs.records.inbox import InboxVerb
from aft.runs.records.journal import RESTARTED
from aft.store.batch.statements import PreparedQuery, Rows
from aft.store.db_time import now
from aft.store.leases import Lease
from tests.integration.test_journal_and_stack import an_entry
from tests.storing import Stage, journal_in


@pytest.fixture
def lease(stage: Stage) -> Lease:
    return stage.lease()


def lived(stage: Stage, lease: Lease, steps: int) -> RunId:
    """A run with outcomes, frames, faults and letters of its own."""
    owner = stage.owned(lease)
    for number in range(1, steps + 1):
        _live(stage, owner, StepPath(str(number)), number)
    for number in range(1, steps + 1):
        with stage.store.write() as connection:
            item = OrderId(new_id())
            inbox.append(
                connection, owner.run_id, number, item, InboxVerb.SIGNAL, {"name": f"{owner.run_id} {number}"}, "me"
            )
    stage.change(owner.run_id, inbox_seq=steps)
    return owner.run_id


def _live(stage: Stage, owner: Owner, path: StepPath, number: int) -> None:
    def then(connection: Any, seq: int) -> None:
        journal_in(connection, owner, seq, an_entry(path, value=f'"{owner.run_id} {path}"'))
        state = FrameState.ARMED if number % 2 else FrameState.UNDONE
        given: dict[str, Any] = {"at": stage.clock.now(), "state": state, "key_generation": RESTARTED * number}
        stack.push(connection, owner.run_id, seq, stack.fields(path, "", "charge", "refund", **given))

    owner.write(then)
    stage.add_fault(owner, path=path, state=FaultState.WAITING if number % 2 else FaultState.TRIED)


def read(stage: Stage, *ids: RunId) -> dict[RunId, RunRecords]:
    return run_records.load(stage.store, [stage.row(run_id) for run_id in ids])


def test_runs_that_are_read_together_are_what_they_are_one_by_one(stage: Stage, lease: Lease) -> None:
    ids = [lived(stage, lease, steps) for steps in (0, 1, 2, 5, 3)]
    together = read(stage, *ids)
    assert together == {run_id: found for run_id in ids for found in read(stage, run_id).values()}
    assert [len(together[run_id].entries) for run_id in ids] == [0, 1, 2, 5, 3]


def test_what_is_read_is_what_the_tables_say(stage: Stage, lease: Lease) -> None:
    run_id = lived(stage, lease, 4)
    found = read(stage, run_id)[run_id]
    with stage.store.read() as connection:
        assert found.entries == journal.load(connection, run_id)
        assert found.items == inbox.unread(connection, run_id)
    live = [fault for fault in stage.faults(run_id) if fault.state is FaultState.WAITING]
    assert sorted(found.live, key=lambda fault: fault.id) == sorted(live, key=lambda fault: fault.id)
    assert (found.armed, found.undone) == ({"1": "charge", "3": "charge"}, {"2": 1, "4": 1})


def test_frames_of_an_earlier_generation_are_left_out(stage: Stage, lease: Lease) -> None:
    run_id = lived(stage, lease, 2)
    stage.change(run_id, key_generation=1)
    found = read(stage, run_id)[run_id]
    assert (found.armed, dict(found.undone)) == ({}, {})


def test_a_run_that_nobody_has_executed_is_not_asked_about(stage: Stage, lease: Lease) -> None:
    run = stage.owned(lease).run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.store, "query", lambda questions: pytest.fail("nothing is recorded about it"))
        assert run_records.load(stage.store, [run]) == {run.id: RunRecords()}


def test_a_run_whose_first_owner_died_before_it_wrote_anything_is_asked_about(stage: Stage, lease: Lease) -> None:
    owner = stage.owned(lease)
    abort = stage.add_fault(owner, path=None)
    stage.change(owner.run_id, epoch=owner.epoch + 2)
    assert [fault.id for fault in read(stage, owner.run_id)[owner.run_id].live] == [abort.id]


def test_the_database_s_time_comes_with_the_records_in_the_same_round_trip(stage: Stage, lease: Lease) -> None:
    row = stage.row(lived(stage, lease, 1))
    asked: list[int] = []
    query = stage.store.query

    def count(questions: Sequence[tuple[PreparedQuery, str]]) -> list[Rows]:
        asked.append(len(questions))
        return query(questions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.store, "query", count)
        measured = run_records.load(stage.store, [row], stage.clock)[row.id].measured
    with stage.store.read() as connection:
        later = connection.execute(select(now())).scalar_one()
    assert measured is not None
    ticks, time = measured
    assert row.updated_at <= time <= later
    assert ticks <= stage.clock.ticks()
    assert len(asked) == 1


def test_a_run_that_nobody_has_executed_is_not_asked_about_with_a_clock_either(stage: Stage, lease: Lease) -> None:
    run = stage.owned(lease).run
    assert run_records.load(stage.store, [run], stage.clock) == {run.id: RunRecords()}


def test_a_database_that_is_away_is_told(stage: Stage, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = lived(stage, lease, 1)
    row = stage.row(run_id)

    def away() -> None:
        raise stage.store.engine.dialect.loaded_dbapi.OperationalError("gone")

    monkeypatch.setattr(stage.store._drivers.pool, "connect", away)
    with pytest.raises(StoreError):
        run_records.load(stage.store, [row])
