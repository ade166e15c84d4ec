"""Reads what aft has recorded about its runs, once all are at rest."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sqlalchemy import ColumnElement, Connection, Select, func, select, text

from aft.compensation.stack import PENDING, FrameState
from aft.fault import FaultState
from aft.store import Store
from aft.store.tables import faults, frames, journal, late_effects, outbox, runs


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One recorded outcome."""

    path: str
    seq: int
    epoch: int
    outcome: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, as the database records it."""

    id: str
    status: str
    reason: str | None = None
    epoch: int = 1
    journal: tuple[JournalRow, ...] = ()
    owed: tuple[str, ...] = ()  #: the steps of frames that are still to be undone
    late: int = 0  #: effects that arrived late and are not settled
    faults: int = 0  #: faults that are open or waiting
    made: float | None = None  #: when it was submitted, and when it ended, by the ledger's clock
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """A namespace: its runs by key, bookings and reversals by (load, step), and the unpublished messages."""

    runs: dict[str, RunFacts]
    booked: Counter[tuple[str, str]] = field(default_factory=Counter)
    unbooked: Counter[tuple[str, str]] = field(default_factory=Counter)
    outbox: int = 0


def read_facts(store: Store, namespace: str) -> Facts:
    """Read a namespace, in one transaction; ``chaos_booked`` must exist."""
    with store.read() as connection:
        found = {run.id: (key, run) for key, run in _runs(connection, namespace)}
        rows = _journal(connection, namespace)
        owed = _owed(connection, namespace)
        late_frames = _of(frames.c.run_id, namespace).where(frames.c.state == FrameState.LATE)
        late_rows = _of(late_effects.c.run_id, namespace).where(late_effects.c.state == "open")
        late = _count(connection, late_frames) + _count(connection, late_rows)
        live = (FaultState.OPEN, FaultState.WAITING)
        open_faults = _count(connection, _of(faults.c.run_id, namespace).where(faults.c.state.in_(live)))
        booked, unbooked = (_booked(connection, namespace, what) for what in ("book", "unbook"))
        left = connection.execute(select(func.count()).where(outbox.c.namespace == namespace)).scalar_one()
    complete = {
        key: replace(
            run, journal=tuple(rows[run_id]), owed=tuple(owed[run_id]), late=late[run_id], faults=open_faults[run_id]
        )
        for run_id, (key, run) in found.items()
    }
    return Facts(complete, booked, unbooked, left)


def _runs(connection: Connection, namespace: str) -> Iterator[tuple[str, RunFacts]]:
    columns = [runs.c.id, runs.c.key, runs.c.status, runs.c.reason, runs.c.epoch, runs.c.created_at, runs.c.ended_at]
    shift = time.time() - time.monotonic()
    for row in connection.execute(select(*columns).where(runs.c.namespace == namespace)):
        made, ended = (None if at is None else at.timestamp() - shift for at in (row.created_at, row.ended_at))
        yield row.key or row.id, RunFacts(row.id, row.status, row.reason, row.epoch, made=made, ended=ended)


def _journal(connection: Connection, namespace: str) -> dict[str, list[JournalRow]]:
    found: dict[str, list[JournalRow]] = defaultdict(list)
    columns = [journal.c.run_id, journal.c.path, journal.c.seq, journal.c.epoch, journal.c.outcome]
    statement = select(*columns).join(runs, runs.c.id == journal.c.run_id).where(runs.c.namespace == namespace)
    for row in connection.execute(statement.order_by(journal.c.run_id, journal.c.seq)):
        found[row.run_id].append(JournalRow(row.path, row.seq, row.epoch, row.outcome))
    return found


def _owed(connection: Connection, namespace: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    statement = select(frames.c.run_id, frames.c.path).join(runs, runs.c.id == frames.c.run_id)
    pending = statement.where(runs.c.namespace == namespace, frames.c.state.in_(PENDING))
    for row in connection.execute(pending.order_by(frames.c.run_id, frames.c.seq)):
        found[row.run_id].append(row.path)
    return found


def _of(run_id: ColumnElement[str], namespace: str) -> Select[str, int]:
    """Build the query that counts the rows of another table for each run."""
    statement = select(run_id.label("run_id"), func.count().label("rows")).join(runs, runs.c.id == run_id)
    return statement.where(runs.c.namespace == namespace).group_by(run_id)


def _count(connection: Connection, statement: Select[str, int]) -> Counter[str]:
    return Counter({row.run_id: row.rows for row in connection.execute(statement)})


def _booked(connection: Connection, namespace: str, what: str) -> Counter[tuple[str, str]]:
    statement = text(
        "SELECT b.load, b.step, count(*) FROM chaos_booked b JOIN aft_runs r ON r.id = b.run_id "
        "WHERE r.namespace = :namespace AND b.what = :what GROUP BY b.load, b.step"
    )
    found = connection.execute(statement, {"namespace": namespace, "what": what})
    return Counter({(load, step): count for load, step, count in found})
