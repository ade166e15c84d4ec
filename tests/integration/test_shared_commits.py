"""Claims about shared commits: nobody waits for company, nobody is lost in it, and together is the same as alone."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from aft.compensation import stack
from aft.errors import KeyConflict, StoreError
from aft.fault import Fault, FaultState
from aft.ids import StepPath
from aft.runs import submit
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_writes import NO_OWNER, OwnerWrite, Recording
from aft.runs.records import faults, journal
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status
from aft.store.db_time import FromNow
from aft.store.tables import faults as fault_table
from aft.store.tables import frames, outbox, runs
from aft.store.tables import journal as journal_table
from tests.storing import Stage, a_fault, recording

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def outcome(path: str, **more: Any) -> Entry:
    return Entry(StepPath(path), "", EntryKind.ACTIVITY, "charge", Outcome.OK, AT, **more)


def ended_as(status: Status) -> dict[str, Any]:
    """The changes of a run that ends."""
    return {**NO_OWNER, "status": status, "ended_as": status.value, "ended_at": FromNow(), "result": "1"}


def turned_by(fault: Fault) -> dict[str, Any]:
    """The changes of a run that is undone from now on."""
    return {"status": Status.COMPENSATING, "cause": "fault", "fault_id": fault.id, "deadline_at": None}


@contextmanager
def held_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], threading.Event]]:
    """Let the first commit take until the event is set; tells how many deeds each one held."""
    real, sizes, go_on, begun = stage.store.write_batch, list[int](), threading.Event(), threading.Event()

    def write_deeds(lent: Any, deed: Any, items: Sequence[Any]) -> Any:
        sizes.append(len(items))
        if len(sizes) == 1:
            begun.set()
            assert go_on.wait(60)
        return real(lent, deed, items)

    monkeypatch.setattr(stage.store, "write_batch", write_deeds)
    yield sizes, go_on
    go_on.set()


def all_but_one_wait(stage: Stage, works: Sequence[Callable[[], Any]], go_on: threading.Event) -> list[Any]:
    """Begin all, let the first go on when the others are in line, and return what each came to."""
    with ThreadPoolExecutor(len(works)) as pool:
        made = [pool.submit(work) for work in works]
        committer = None
        while committer is None or len(committer._queue) < len(works) - 1:
            committer = next(iter(stage.store._committers.values()), None)
        go_on.set()
        return [future.exception(20) or future.result() for future in made]


def test_one_alone_is_written_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = stage.owned(stage.lease())
    with held_up(stage, monkeypatch) as (sizes, go_on):
        go_on.set()
        owner.write(recording(owner, outcome("1")))
    assert sizes == [1]


def test_who_comes_while_a_commit_is_under_way_joins_the_next(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stage.lease()
    owners = [stage.owned(lease) for _ in range(9)]
    works = [lambda owner=owner: owner.write(recording(owner, outcome("1"))) for owner in owners]
    with held_up(stage, monkeypatch) as (sizes, go_on):
        assert all_but_one_wait(stage, works, go_on) == [None] * 9
    assert sizes == [1, 8]
    for owner in owners:
        assert paths(stage, owner) == ["1"]
        assert (owner.seq, stage.row(owner.run_id).seq) == (1, 1)


def test_a_stale_owner_is_refused_and_the_others_of_its_batch_are_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = stage.lease()
    owners = [stage.owned(lease) for _ in range(5)]
    stage.change(owners[2].run_id, epoch=7)
    works = [lambda owner=owner: owner.write(recording(owner, outcome("1"))) for owner in owners]
    with held_up(stage, monkeypatch) as (_, go_on):
        came_to = all_but_one_wait(stage, works, go_on)
    assert [type(each) for each in came_to] == [type(None), type(None), Fenced, type(None), type(None)]
    assert [paths(stage, owner) for owner in owners] == [["1"], ["1"], [], ["1"], ["1"]]


def test_one_that_cannot_be_written_costs_the_others_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stage.lease()
    owners = [stage.owned(lease) for _ in range(5)]
    owners[3].write(recording(owners[3], outcome("1")))  # it has an outcome already
    works = [lambda owner=owner: owner.write(recording(owner, outcome("1"))) for owner in owners]
    with held_up(stage, monkeypatch) as (sizes, go_on):
        came_to = all_but_one_wait(stage, works, go_on)
    assert sizes == [1, 4]
    assert [type(each) for each in came_to] == [type(None)] * 3 + [StoreError, type(None)]
    assert [paths(stage, owner) for owner in owners] == [["1"]] * 5
    assert [owner.seq for owner in owners] == [1] * 5


@pytest.mark.parametrize("error", [StoreError("away", transient=True), KeyboardInterrupt()])
def test_whoever_leads_may_fail_and_nobody_waits_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    lease = stage.lease()
    owners = [stage.owned(lease) for _ in range(4)]
    works = [lambda owner=owner: owner.write(recording(owner, outcome("1"))) for owner in owners]
    real, calls, go_on = stage.store.write_batch, list[int](), threading.Event()

    def write_deeds(lent: Any, deed: Any, items: Sequence[Any]) -> Any:
        calls.append(len(items))
        if len(calls) == 1:
            assert go_on.wait(60)
        if len(calls) == 2:
            lent.invalidate()
            raise error
        return real(lent, deed, items)

    monkeypatch.setattr(stage.store, "write_batch", write_deeds)
    came_to = all_but_one_wait(stage, works, go_on)
    interrupted = [each for each in came_to if each is not None]
    assert [type(each) for each in interrupted] == ([] if isinstance(error, StoreError) else [KeyboardInterrupt])
    assert sum(paths(stage, owner) == ["1"] for owner in owners) == 4 - len(interrupted)
    owners[0].write(recording(owners[0], outcome("2")))
    assert paths(stage, owners[0])[-1:] == ["2"]


def test_an_answer_that_is_lost_is_looked_for_by_each(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stage.lease()
    owners = [stage.owned(lease) for _ in range(5)]
    works = [lambda owner=owner: owner.write(recording(owner, outcome("1"))) for owner in owners]
    real, calls, go_on = stage.store.write_batch, list[int](), threading.Event()

    def write_deeds(lent: Any, deed: Any, items: Sequence[Any]) -> Any:
        calls.append(len(items))
        if len(calls) == 1:
            assert go_on.wait(60)
        answers = real(lent, deed, items)
        if len(calls) == 2:
            lent.invalidate()
            raise StoreError("the answer was lost", transient=True)
        return answers

    monkeypatch.setattr(stage.store, "write_batch", write_deeds)
    assert all_but_one_wait(stage, works, go_on) == [None] * 5
    assert calls == [1, 4]
    assert [(owner.seq, stage.row(owner.run_id).seq, paths(stage, owner)) for owner in owners] == [(1, 1, ["1"])] * 5


def test_mail_that_was_not_read_keeps_a_run_from_being_let_go_together(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    stage.change(owner.run_id, inbox_seq=3)
    leaving = OwnerWrite(changes=ended_as(Status.COMPLETED), ends=True)
    assert owner.share(leaving, read_to=2) is None
    assert stage.row(owner.run_id).ended_as is None
    assert owner.share(leaving, read_to=3) is not None
    assert (stage.row(owner.run_id).ended_as, stage.row(owner.run_id).result) == (Status.COMPLETED, "1")


def test_an_edge_that_does_not_exist_is_refused_together_too(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    assert owner.share(OwnerWrite(changes=ended_as(Status.COMPENSATED), ends=True)) is None
    assert stage.row(owner.run_id).status is Status.RUNNING


def test_a_failure_leaves_a_fault_a_message_and_no_owner(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    earlier = stage.add_fault(owner, state=FaultState.WAITING)
    fault = a_fault(owner.run_id)
    shared = owner.share(
        OwnerWrite(
            fault=faults.fields(stage.namespace, fault),
            closed_faults=((earlier.id, FaultState.TRIED),),
            message=(stage.namespace, "queue", f"body {fault.id}", 60.0),
            changes={**NO_OWNER, "status": Status.RECOVERING, "waits": None, "savepoints": '{"1": "publishing"}'},
        )
    )
    assert shared is not None
    row = stage.row(owner.run_id)
    assert (row.status, row.worker_id, row.savepoints) == (Status.RECOVERING, None, {"1": "publishing"})
    assert {each.id: each.state for each in stage.faults(owner.run_id)} == {
        earlier.id: FaultState.TRIED,
        fault.id: FaultState.OPEN,
    }
    with stage.store.read() as connection:
        found = connection.execute(select(outbox.c.id, outbox.c.body).where(outbox.c.namespace == stage.namespace))
        assert [tuple(each) for each in found] == [(shared.message, f"body {fault.id}")]


def test_runs_that_turn_that_end_and_that_get_on_share_a_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stage.lease()
    first, turned, ended, gets_on, late = (stage.owned(lease) for _ in range(5))
    stage.change(turned.run_id, deadline_at=AT)
    stage.change(gets_on.run_id, deadline_at=AT)
    fault = a_fault(turned.run_id, state=FaultState.FINAL)
    writes = [
        (first, OwnerWrite()),
        (turned, OwnerWrite(fault=faults.fields(stage.namespace, fault), changes=turned_by(fault))),
        (ended, OwnerWrite(changes=ended_as(Status.COMPLETED), ends=True)),
        (gets_on, OwnerWrite(entry=journal.fields(outcome("1"), gets_on.epoch))),
        (late, OwnerWrite(changes=turned_by(fault))),
    ]
    stage.change(late.run_id, status="compensated")  # there is no way back from there
    works = [lambda owner=owner, write=write: owner.share(write) for owner, write in writes]
    with held_up(stage, monkeypatch) as (sizes, go_on):
        came_to = all_but_one_wait(stage, works, go_on)
    assert sizes == [1, 4]
    assert [each is not None for each in came_to] == [True, True, True, True, False]
    row = stage.row(turned.run_id)
    assert (row.status, row.cause, row.fault_id, row.deadline_at) == (Status.COMPENSATING, "fault", fault.id, None)
    assert (row.worker_id, row.seq, row.ended_as) == (turned.worker, 1, None)
    assert [each.id for each in stage.faults(turned.run_id)] == [fault.id]
    row = stage.row(ended.run_id)
    assert (row.status, row.cause, row.fault_id, row.worker_id) == (Status.COMPLETED, None, None, None)
    row = stage.row(gets_on.run_id)
    assert (row.status, row.cause, row.fault_id, row.deadline_at) == (Status.RUNNING, None, None, AT)
    assert stage.row(late.run_id).status is Status.COMPENSATED


# --- together is the same as alone ------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
entries = st.builds(
    lambda **values: Entry(kind=EntryKind.ACTIVITY, outcome=Outcome.OK, recorded_at=AT, path=StepPath("1"), **values),
    scope=words,
    name=words,
    attempts=st.integers(1, 2**31 - 1),
    args=st.none() | words,
    value=st.none() | words,
    key_generation=st.integers(0, 2**31 - 1),
)
framed = st.none() | st.builds(
    lambda **values: stack.fields(StepPath("1"), at=AT, **values),
    scope=words,
    activity=words,
    compensator=words,
    args=st.none() | words,
    value=st.none() | words,
    key_generation=st.integers(0, 2**31 - 1),
)
faulty = st.none() | st.fixed_dictionaries(
    {
        "message": words,
        "traceback": words,
        "attempt": st.integers(1, 2**31 - 1),
        "http_status": st.none() | st.integers(100, 599),
        "after": st.none() | st.floats(0, 1e6).map(lambda seconds: timedelta(seconds=seconds)),
        "args_exact": st.booleans(),
        "signal": st.none() | words,
        "step_snapshot": st.none() | words,
    }
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(entry=entries, frame=framed, fault=faulty)
def test_what_is_written_together_is_what_would_be_written_alone(
    stage: Stage, entry: Entry, frame: dict[str, Any] | None, fault: dict[str, Any] | None
) -> None:
    lease = stage.leases[0] if stage.leases else stage.lease()
    found = []
    for more in (None, lambda connection, seq: None):
        owner = stage.owned(lease)
        write = OwnerWrite(
            entry=journal.fields(entry, owner.epoch, beside=3),
            frame=frame,
            fault=None if fault is None else faults.fields(stage.namespace, a_fault(owner.run_id, **fault)),
        )
        owner.write(Recording(write, more))
        found.append(everything(stage, owner))
    assert found[0] == found[1]


def everything(stage: Stage, owner: Owner) -> list[list[dict[str, Any]]]:
    """All that there is of a run, but for what differs from run to run."""
    differing = {"id", "run_id", "root_id", "created_at", "started_at", "updated_at", "raised_at"}

    def read(connection: Connection, table: Any, column: Any) -> list[dict[str, Any]]:
        rows = connection.execute(select(table).where(column == owner.run_id)).mappings()
        return [{name: value for name, value in row.items() if name not in differing} for row in rows]

    with stage.store.read() as connection:
        tables = ((runs, runs.c.id), (journal_table, journal_table.c.run_id), (frames, frames.c.run_id))
        return [read(connection, table, column) for table, column in (*tables, (fault_table, fault_table.c.run_id))]


def paths(stage: Stage, owner: Owner) -> list[str]:
    with stage.store.read() as connection:
        return [entry.path for entry in journal.load(connection, owner.run_id)]


# --- beginnings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, 5])
def test_a_run_that_is_submitted_together_is_as_one_that_is_submitted_alone(stage: Stage, priority: int) -> None:
    grace, more = timedelta(seconds=5), {"priority": priority, "owner": "ads", "tags": {"a": [1]}}
    more |= {"expected": timedelta(seconds=9), "deadline": timedelta(hours=1), "resources": ("cms",)}
    alone = stage.queued(grace, **more)
    together, made = submit.enqueue_alone(stage.store, stage.new(**more), stage.clock.now(), grace)
    assert made
    assert stage.row(together.id) == together
    assert len(stage.posted()) == 2
    assert plain(stage, alone.id) == plain(stage, together.id)


def plain(stage: Stage, run_id: str) -> dict[str, Any]:
    """A run's row, with its times as seconds from when it was made."""
    with stage.store.read() as connection:
        row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    times = {
        name: round((value - row["created_at"]).total_seconds(), 2) for name, value in row.items() if is_time(value)
    }
    return {**row, **times, "id": "", "root_id": "", "wake_id": ""}


def is_time(value: Any) -> bool:
    return isinstance(value, datetime)


def test_a_key_names_one_run_however_many_begin_it_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, key = stage.lease(), secrets.token_hex(4)
    news = [stage.new(key=key) for _ in range(6)]
    works = [lambda new=new: submit.begin_alone(stage.store, new, lease.worker) for new in news]
    with held_up(stage, monkeypatch) as (sizes, go_on):
        came_to = all_but_one_wait(stage, works, go_on)
    assert sizes == [1, 5]
    assert len({row.id for row, _ in came_to}) == 1
    assert sum(made for _, made in came_to) == 1
    with pytest.raises(KeyConflict):
        submit.begin_alone(stage.store, stage.new(key=key, args='{"other": 1}'), lease.worker)
