"""Claims about owners: one at a time, and a stale one writes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, text

from aft.errors import StoreError
from aft.ids import RunId, StepPath, WorkerId, new_id
from aft.runs.ownership import owner as owner_module
from aft.runs.ownership.claims import claim, find_due
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_writes import Recording
from aft.runs.ownership.rescue import rescue_expired
from aft.runs.records import journal
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.store import Store
from aft.store.db_time import later, now
from aft.store.tables import workers
from tests.storing import KNOWN, Stage, at_once, breakable, journal_in, recording

SOON = timedelta(0)


def wake_of(row: RunRow) -> str:
    assert row.wake_id is not None
    return row.wake_id


def enlist(connection: Connection, stage: Stage, worker: str) -> WorkerId:
    """Make sure that there is a worker of this name, and that its lease lasts."""
    if connection.execute(select(workers.c.id).where(workers.c.id == worker)).first() is None:
        values = {"namespace": stage.namespace, "host": "here", "pid": 1, "roles": "[]", "flows": "[]"}
        connection.execute(insert(workers).values(id=worker, started_at=now(), expires_at=later(3600), **values))
    return WorkerId(worker)


def claimed(stage: Stage, wakes: dict[RunId, str], worker: str = "w", known: Any = None) -> list[RunRow]:
    with stage.store.write() as connection:
        me = enlist(connection, stage, worker)
        return claim(connection, stage.namespace, me, list(wakes.items()), KNOWN if known is None else known)


def due(stage: Stage, limit: int = 100, worker: str = "w", known: Any = None) -> list[RunRow]:
    with stage.store.write() as connection:
        me = enlist(connection, stage, worker)
        due = find_due(connection, stage.namespace, KNOWN if known is None else known, limit)
        return claim(connection, stage.namespace, me, due, KNOWN if known is None else known) if due else []


def an_entry(path: str) -> Entry:
    return Entry(StepPath(path), "", EntryKind.ACTIVITY, "charge", Outcome.OK, datetime.now(UTC), value="1")


def record(owner: Owner, path: str) -> Recording:
    """What writes an outcome of a step."""
    return recording(owner, an_entry(path))


def recorded(stage: Stage, run_id: RunId) -> list[str]:
    with stage.store.read() as connection:
        return [entry.path for entry in journal.load(connection, run_id)]


# --- claiming by a message ---


def test_the_wake_that_a_run_awaits_makes_its_bearer_the_owner(stage: Stage) -> None:
    run = stage.queued()
    (row,) = claimed(stage, {run.id: wake_of(run)})
    assert row == stage.row(run.id)
    assert (row.worker_id, row.epoch, row.wake_id, row.due_at) == ("w", run.epoch + 1, None, None)
    assert row.started_at is not None


@pytest.mark.parametrize("case", ["stale", "none", "owned", "unknown flow", "unknown version", "no such run"])
def test_a_run_that_awaits_something_else_is_not_touched(stage: Stage, case: str) -> None:
    run = stage.queued()
    wakes, known = {run.id: wake_of(run)}, KNOWN
    if case == "stale":
        wakes = {run.id: new_id()}
    elif case == "none":
        stage.change(run.id, wake_id=None)
    elif case == "owned":
        stage.change(run.id, worker_id="other")
    elif case == "unknown flow":
        known = [("refund", 1)]
    elif case == "unknown version":
        known = [("order", 2)]
    else:
        wakes = {RunId(new_id()): wake_of(run)}
    before = stage.row(run.id)
    assert claimed(stage, wakes, known=known) == []
    assert stage.row(run.id) == before


def test_a_process_without_flows_claims_nothing(stage: Stage) -> None:
    run = stage.queued(SOON)
    assert claimed(stage, {run.id: wake_of(run)}, known=[]) == []
    assert due(stage, known=[]) == []


def test_the_same_wake_claims_only_once(stage: Stage) -> None:
    run = stage.queued()
    assert len(claimed(stage, {run.id: wake_of(run)})) == 1
    assert claimed(stage, {run.id: wake_of(run)}) == []


def test_of_many_that_bear_the_wake_at_once_one_becomes_the_owner(stage: Stage) -> None:
    run = stage.queued()
    found = at_once([partial(claimed, stage, {run.id: wake_of(run)}, f"w{n}") for n in range(8)])
    (winner,) = [row for rows in found for row in rows]
    assert stage.row(run.id) == winner
    assert winner.epoch == run.epoch + 1


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ({"status": "recovering"}, Status.RUNNING),
        ({"status": "parked", "reason": "why"}, Status.RUNNING),
        ({"status": "parked", "cause": "fault"}, Status.COMPENSATING),
        ({"status": "compensating", "cause": "fault"}, Status.COMPENSATING),
        ({"status": "parked", "ended_as": "completed"}, Status.COMPLETED),
        ({"status": "compensated", "ended_as": "compensated", "cause": "fault"}, Status.COMPENSATED),
    ],
)
def test_a_claimed_run_goes_on_where_it_was(stage: Stage, state: dict[str, Any], status: Status) -> None:
    run = stage.queued()
    stage.change(run.id, **state)
    (row,) = claimed(stage, {run.id: wake_of(run)})
    assert (row.status, row.reason) == (status, None)


def test_the_first_start_is_remembered(stage: Stage) -> None:
    run = stage.queued()
    (first,) = claimed(stage, {run.id: wake_of(run)})
    stage.change(run.id, worker_id=None, wake_id="again")
    (second,) = claimed(stage, {run.id: "again"})
    assert first.started_at == second.started_at
    assert second.epoch == first.epoch + 1


# --- claiming by time ---


def test_a_run_whose_time_has_come_is_claimed_without_a_message(stage: Stage) -> None:
    run = stage.queued(SOON)
    assert [row.id for row in due(stage)] == [run.id]
    assert due(stage) == []


@pytest.mark.parametrize("case", ["later", "owned", "awaits nothing", "unknown flow", "elsewhere"])
def test_a_run_whose_time_has_not_come_is_not_touched(stage: Stage, case: str) -> None:
    run = stage.queued(SOON)
    changes: dict[str, dict[str, Any]] = {
        "later": {"sweep_at": later(60)},
        "owned": {"worker_id": "other"},
        "awaits nothing": {"wake_id": None},
        "unknown flow": {"flow": "refund"},
        "elsewhere": {"namespace": stage.namespace + "x"},
    }
    stage.change(run.id, **changes[case])
    assert due(stage) == []


def test_no_more_are_claimed_than_there_is_room_for_the_urgent_first(stage: Stage) -> None:
    runs = [stage.queued(SOON, priority=priority) for priority in (0, 5, -1)]
    for age, run in enumerate(runs):
        stage.change(run.id, sweep_at=later(age - 10))
    assert {row.id for row in due(stage, limit=2)} == {runs[0].id, runs[1].id}
    assert [row.id for row in due(stage, limit=2)] == [runs[2].id]


def test_of_many_that_look_at_once_each_due_run_has_one_owner(stage: Stage) -> None:
    made = {stage.queued(SOON).id for _ in range(20)}
    found = at_once([partial(due, stage, 6, f"w{n}") for n in range(4)])
    taken = [row.id for rows in found for row in rows]
    assert len(taken) == len(set(taken))
    assert set(taken) | {row.id for row in due(stage)} == made
    assert {stage.row(run_id).epoch for run_id in made} == {1}


def test_a_worker_does_not_wait_for_due_runs_that_another_is_claiming(migrated_url: str) -> None:
    stage = Stage(Store(migrated_url))
    made = {stage.queued(SOON).id for _ in range(2)}
    with stage.store.write() as slow, stage.store.lend(slow):
        (first,) = claim(slow, stage.namespace, stage.lease().worker, find_due(slow, stage.namespace, KNOWN, 1), KNOWN)
        with stage.store.write() as quick:
            quick.execute(text("SET LOCAL lock_timeout = '5s'"))
            (second,) = claim(
                quick, stage.namespace, stage.lease().worker, find_due(quick, stage.namespace, KNOWN, 2), KNOWN
            )
    assert {first.id, second.id} == made
    stage.close()


# --- writing ---


def test_each_write_counts_and_orders_what_it_records(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    for path in ("1", "2", "3"):
        owner.write(record(owner, path))
    assert recorded(stage, owner.run_id) == ["1", "2", "3"]
    assert (owner.seq, stage.row(owner.run_id).seq) == (3, 3)


def test_a_write_changes_the_run_and_learns_of_its_inbox(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    stage.change(owner.run_id, inbox_seq=4)
    owner.write(lambda connection, seq: None, status=Status.PARKED, reason="why", worker_id=None)
    row = stage.row(owner.run_id)
    assert (row.status, row.reason, row.worker_id, owner.inbox_seq) == (Status.PARKED, "why", None, 4)


def test_what_fails_in_a_write_leaves_nothing_and_the_owner_where_it_was(stage: Stage) -> None:
    owner = stage.owned(stage.lease())

    def then(connection: Connection, seq: int) -> None:
        journal_in(connection, owner, seq, an_entry("1"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        owner.write(then, status=Status.PARKED)
    assert recorded(stage, owner.run_id) == []
    assert stage.row(owner.run_id).status is Status.RUNNING
    owner.write(record(owner, "1"))
    assert recorded(stage, owner.run_id) == ["1"]


def lose_by_claim(stage: Stage, owner: Owner) -> None:
    stage.change(owner.run_id, worker_id=None, wake_id="again")
    assert claimed(stage, {owner.run_id: "again"}, worker=str(owner.worker))


def lose_by_rescue(stage: Stage, owner: Owner) -> None:
    assert owner.worker is not None
    stage.expire(owner.worker)
    with stage.store.write() as connection:
        events, _ = rescue_expired(connection, stage.namespace, stage.clock.now(), 10)
    assert [event.run for event in events] == [owner.run_id]


@pytest.mark.parametrize("lose", [lose_by_claim, lose_by_rescue])
def test_an_owner_that_lost_the_run_writes_nothing(stage: Stage, lose: Any) -> None:
    owner = stage.owned(stage.lease())
    owner.write(record(owner, "1"))
    lose(stage, owner)
    before = stage.row(owner.run_id)
    for _ in range(2):
        with pytest.raises(Fenced, match=f"run {owner.run_id} is no longer owned by"):
            owner.write(record(owner, "2"), status=Status.COMPLETED, result="1")
    assert stage.row(owner.run_id) == before
    assert recorded(stage, owner.run_id) == ["1"]


def test_a_second_hold_on_the_same_run_is_refused_after_the_first_one_s_write(stage: Stage) -> None:
    lease = stage.lease()
    owner = stage.owned(lease)
    twin = Owner(stage.store, lease, owner.run)
    owner.write(record(owner, "1"))
    with pytest.raises(Fenced):
        twin.write(record(twin, "1"))


def test_an_edge_that_does_not_exist_is_refused(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    owner.write(lambda connection, seq: None, status=Status.COMPENSATING)
    with pytest.raises(Fenced):
        owner.write(lambda connection, seq: None, status=Status.COMPLETED)
    assert stage.row(owner.run_id).status is Status.COMPENSATING


# --- the database is away ---


def test_a_commit_whose_answer_was_lost_is_looked_up_and_not_repeated(stage: Stage) -> None:
    owner, calls = stage.owned(stage.lease()), list[int]()
    with breakable(stage.store) as wire:

        def then(connection: Connection, seq: int) -> None:
            calls.append(seq)
            journal_in(connection, owner, seq, an_entry("1"))
            wire.cut(after=True)

        owner.write(then)
        assert wire.cuts == 1
    assert calls == [1]
    assert recorded(stage, owner.run_id) == ["1"]
    owner.write(record(owner, "2"))
    assert recorded(stage, owner.run_id) == ["1", "2"]


def test_a_commit_that_never_arrived_is_repeated(stage: Stage) -> None:
    owner, calls = stage.owned(stage.lease()), list[int]()
    with breakable(stage.store) as wire:

        def then(connection: Connection, seq: int) -> None:
            calls.append(seq)
            journal_in(connection, owner, seq, an_entry("1"))
            if len(calls) == 1:
                wire.cut(after=False)

        owner.write(then)
    assert calls == [1, 1]
    assert recorded(stage, owner.run_id) == ["1"]


def test_a_lost_answer_after_which_the_run_was_taken_over_is_no_success(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome stands, but what follows is the new owner's: the old one must not go on."""
    owner = stage.owned(stage.lease())
    lost: list[bool] = []
    with breakable(stage.store) as wire:

        def then(connection: Connection, seq: int) -> None:
            if not lost:
                journal_in(connection, owner, seq, an_entry("1"))
                wire.cut(after=True)

        real = owner_module._has_committed

        def has_committed(asked: Owner) -> bool:
            lose_by_rescue(stage, owner)
            lost.append(True)
            return real(asked)

        monkeypatch.setattr(owner_module, "_has_committed", has_committed)
        with pytest.raises(Fenced):
            owner.write(then)
    assert recorded(stage, owner.run_id) == ["1"]


@pytest.mark.parametrize("happened", [True, False])
def test_whether_a_transaction_happened_can_be_told_afterwards(stage: Stage, happened: bool) -> None:
    owner = stage.owned(stage.lease())
    with breakable(stage.store) as wire:
        with pytest.raises(StoreError), stage.store.write() as connection:  # noqa: PT012
            owner.write_in(connection, record(owner, "1"))
            wire.cut(after=happened)
        assert owner.resolve_unknown_commit() is happened
    assert recorded(stage, owner.run_id) == ["1"] * happened
    owner.write(record(owner, "2"))
    assert recorded(stage, owner.run_id) == ["1"] * happened + ["2"]


def test_a_database_that_is_away_is_waited_for_until_the_lease_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, tries = stage.owned(stage.lease(30)), list[float]()

    def away(*_: Any) -> Any:
        tries.append(stage.clock.passed)
        stage.clock.passed += 10
        raise StoreError("away", transient=True)

    monkeypatch.setattr(stage.store, "write", away)
    monkeypatch.setattr(stage.store, "read", away)
    monkeypatch.setattr(stage.store, "commit", away)
    with pytest.raises(StoreError, match="away"):
        owner.write(record(owner, "1"))
    assert tries == [0, 10, 20]


def test_a_refusal_that_will_not_pass_is_not_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, tries = stage.owned(stage.lease()), list[None]()

    def refuse(*_: Any) -> Any:
        tries.append(None)
        raise StoreError("no", transient=False)

    monkeypatch.setattr(stage.store, "write", refuse)
    monkeypatch.setattr(stage.store, "commit", refuse)
    with pytest.raises(StoreError, match="no"):
        owner.write(record(owner, "1"))
    assert len(tries) == 2, "together with others, and alone"


def test_now_is_the_database_s_clock(stage: Stage) -> None:
    with stage.store.read() as connection:
        here = connection.scalar(now().select())
    assert here is not None
    assert here.tzinfo is not None
