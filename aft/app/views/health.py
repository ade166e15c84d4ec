"""Reads the health of a namespace, for people and checks. Reads only; the caller judges it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, func, select, text

from aft.codec.text import StoredJson
from aft.fault import FaultState
from aft.rules.exlets.plans import PlanState
from aft.runs import run_rows
from aft.runs.records.notices import NoticeState
from aft.runs.records.quarantine import QuarantineState
from aft.runs.run_rows import RunRow
from aft.runs.states import ENDS, Status
from aft.store import tables
from aft.store.db_time import later, now
from aft.store.leases import read_flows, read_names
from aft.store.liveness import find_dead

#: Parked runs that are read; the others are counted.
MOST_PARKED = 10
#: Runs that are named by their ids; the others are counted.
MOST_NAMED = 5

#: Parked, and without an order yet; one that was given an order waits for a worker.
_FOR_A_PERSON = (tables.runs.c.status == Status.PARKED.value) & tables.runs.c.wake_id.is_(None)


#: Stopped by hand, and not resumed yet.
_STOPPED = (tables.runs.c.status == Status.SUSPENDED.value) & tables.runs.c.wake_id.is_(None)


#: Waits for something that has not come, so no worker has to act yet.
_WAITS = (
    (tables.runs.c.status == Status.WAITING.value)
    & tables.runs.c.worker_id.is_(None)
    & (tables.runs.c.due_at.is_(None) | (tables.runs.c.due_at > now()))
)


@dataclass(frozen=True, slots=True)
class AbandonedCall:
    """An attempt that a worker gave up and whose function has not returned."""

    run: str
    path: str
    activity: str
    since: datetime


@dataclass(frozen=True, slots=True)
class AbandonedCalls:
    """The hanging attempts of one worker: how many, how many it may have, and the oldest of them."""

    count: int = 0
    most: int = 0
    oldest: tuple[AbandonedCall, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether the worker claims no run because of them."""
        return 0 < self.most <= self.count

    @classmethod
    def read(cls, text: str | None) -> AbandonedCalls:
        """Decode what a worker's row says (``flows.runtime.abandoned_attempts``); empty if that is damaged."""
        try:
            return cls() if text is None else _STORED.read(text)
        except ValueError:
            return cls()  # the row is damaged: the other workers are shown all the same


_STORED: StoredJson[AbandonedCalls] = StoredJson(AbandonedCalls)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker whose lease has not expired; ``dead``: its process has ended all the same, its liveness lock is free."""

    id: str
    host: str
    pid: int
    roles: tuple[str, ...]
    flows: tuple[str, ...]
    started_at: datetime
    expires_at: datetime
    watched: bool  #: whether it has a liveness lock
    runs: int  #: that it owns
    dead: bool = False
    hanging: AbandonedCalls = AbandonedCalls()

    def heartbeat(self, lease: timedelta) -> datetime:
        """Return when its lease was last renewed, given the length of its lease."""
        return self.expires_at - lease


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many items wait, and since when the oldest one does."""

    count: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a namespace, all read at one moment of the database's clock."""

    at: datetime
    workers: tuple[WorkerStatus, ...]  #: that are alive
    dead: tuple[WorkerStatus, ...]  #: whose process has ended, and whose lease has not expired
    unfinished: dict[str, int]  #: runs that a worker has to continue, now or later, by ``flow@version``
    waiting: int  #: those of them that wait for a signal, a child, or a time that has not come
    parked: tuple[RunRow, ...]  #: runs that wait for a person; the newest of them
    parked_count: int
    undecided: Backlog  #: faults that are open for longer than the grace
    unpublished: Backlog  #: outbox rows that no process holds
    stalled: Backlog  #: runs that should have gone on longer than the grace ago, and have no owner
    stalled_runs: tuple[str, ...]  #: the ids of those that wait longest
    overdue: Backlog  #: runs that have not ended in the time they were expected to take (``aft runs list --overdue``)
    overdue_runs: tuple[str, ...]  #: the ids of the oldest
    orphans: int  #: runs whose worker is lost, and that are not rescued yet
    quarantined: int
    late_effects: int
    stuck_exlets: Backlog  #: plans that should have gone on longer than the grace ago
    unheard: Backlog  #: notices that were sent without success, and will be sent again
    given_up: int  #: notices that were given up

    @property
    def roles(self) -> set[str]:
        """The roles that some live worker has."""
        return {role for worker in self.workers for role in worker.roles}

    @property
    def unserved(self) -> dict[str, int]:
        """Flows with runs that have not ended, and whose code no live worker has."""
        known = {flow for worker in self.workers if "work" in worker.roles for flow in worker.flows}
        return {flow: count for flow, count in self.unfinished.items() if flow not in known}


def read_health(connection: Connection, namespace: str, grace: timedelta) -> Health:
    """Read everything, in one transaction."""
    seen = seen_workers(connection, namespace)
    dead = tuple(worker for worker in seen if worker.dead)
    rows = _backlog_rows(grace)
    backlogs = {name: _backlog(connection, namespace, *which) for name, which in rows.items()}
    counts = {name: _count(connection, namespace, *which) for name, which in _COUNTED.items()}
    return Health(
        at=connection.execute(select(now())).scalar_one(),
        workers=tuple(worker for worker in seen if not worker.dead),
        dead=dead,
        unfinished=_unfinished(connection, namespace),
        waiting=counts["waiting"],
        parked=tuple(_parked(connection, namespace)),
        parked_count=counts["parked"],
        undecided=backlogs["undecided"],
        unpublished=backlogs["unpublished"],
        stalled=backlogs["stalled"],
        stalled_runs=_first_runs(connection, namespace, *rows["stalled"]) if backlogs["stalled"].count else (),
        overdue=backlogs["overdue"],
        overdue_runs=_first_runs(connection, namespace, *rows["overdue"]) if backlogs["overdue"].count else (),
        orphans=_orphans(connection, namespace) + sum(worker.runs for worker in dead),
        quarantined=counts["quarantined"],
        late_effects=counts["late_effects"],
        stuck_exlets=backlogs["stuck_exlets"],
        unheard=backlogs["unheard"],
        given_up=counts["given_up"],
    )


#: What is only counted: the rows of which table.
_COUNTED: dict[str, tuple[Table, ColumnElement[bool]]] = {
    "waiting": (tables.runs, _WAITS),
    "parked": (tables.runs, _FOR_A_PERSON),
    "quarantined": (tables.quarantine, tables.quarantine.c.state == QuarantineState.HELD.value),
    "late_effects": (tables.late_effects, tables.late_effects.c.state == "open"),
    "given_up": (tables.notices, tables.notices.c.state == NoticeState.GIVEN_UP.value),
}


def _backlog_rows(grace: timedelta) -> dict[str, tuple[Column[Any], ColumnElement[bool]]]:
    """Return which rows each backlog counts, and the column since when one of them waits."""
    late = later(-grace.total_seconds())
    runs, faults, outbox = tables.runs.c, tables.faults.c, tables.outbox.c
    plans, notices = tables.plans.c, tables.notices.c
    stalled = runs.worker_id.is_(None) & runs.wake_id.is_not(None) & (runs.sweep_at <= late)
    return {
        "undecided": (faults.raised_at, (faults.state == FaultState.OPEN.value) & (faults.raised_at <= late)),
        "unpublished": (outbox.taken_until, outbox.taken_until <= now()),
        "stalled": (runs.sweep_at, stalled),
        "overdue": (runs.created_at, run_rows.is_overdue()),
        "stuck_exlets": (plans.due_at, (plans.state == PlanState.OPEN.value) & (plans.due_at <= late)),
        "unheard": (notices.made_at, (notices.state == NoticeState.OPEN.value) & (notices.attempts > 0)),
    }


def live_workers(connection: Connection, namespace: str) -> list[WorkerStatus]:
    """Return the workers that are alive, by lease and liveness lock, oldest first."""
    return [worker for worker in seen_workers(connection, namespace) if not worker.dead]


def seen_workers(connection: Connection, namespace: str) -> list[WorkerStatus]:
    """Return the workers whose lease has not expired, oldest first; those whose liveness lock is free are ``dead``."""
    workers = tables.workers
    owned = select(func.count()).where(tables.runs.c.worker_id == workers.c.id).scalar_subquery()
    statement = (
        select(workers, owned.label("owned"))
        .where(workers.c.namespace == namespace, workers.c.expires_at > now(), workers.c.stopped_at.is_(None))
        .order_by(workers.c.id)
    )
    found = connection.execute(statement).all()
    dead = find_dead(connection, {row.id: row.liveness_lock for row in found if row.liveness_lock is not None})
    return [
        WorkerStatus(
            row.id,
            row.host,
            row.pid,
            tuple(sorted(read_names(row.roles))),
            tuple(sorted(read_flows(row.flows))),
            row.started_at,
            row.expires_at,
            row.liveness_lock is not None,
            row.owned,
            row.id in dead,
            AbandonedCalls.read(row.abandoned),
        )
        for row in found
    ]


def server_version(connection: Connection) -> str:
    """Return name and version of the database, for people: ``PostgreSQL 15.4``."""
    if connection.dialect.name == "postgresql":
        return f"PostgreSQL {connection.execute(text('SHOW server_version')).scalar_one()}"
    return f"SQLite {connection.execute(text('SELECT sqlite_version()')).scalar_one()}"


def _unfinished(connection: Connection, namespace: str) -> dict[str, int]:
    runs = tables.runs
    over = [status.value for status in ENDS]
    statement = (
        select(runs.c.flow, runs.c.version, func.count())
        .where(runs.c.namespace == namespace, runs.c.status.not_in(over), ~_FOR_A_PERSON, ~_STOPPED)
        .group_by(runs.c.flow, runs.c.version)
        .order_by(runs.c.flow, runs.c.version)
    )
    return {f"{flow}@{version}": count for flow, version, count in connection.execute(statement)}


def _parked(connection: Connection, namespace: str) -> list[RunRow]:
    runs = tables.runs
    statement = select(*run_rows.COLUMNS).where(runs.c.namespace == namespace, _FOR_A_PERSON)
    found = connection.execute(statement.order_by(runs.c.id.desc()).limit(MOST_PARKED))
    return [run_rows.from_row(row) for row in found]


def _orphans(connection: Connection, namespace: str) -> int:
    runs, workers = tables.runs, tables.workers
    statement = (
        select(func.count())
        .select_from(runs.join(workers, workers.c.id == runs.c.worker_id))
        .where(runs.c.namespace == namespace, workers.c.expires_at < now())
    )
    return connection.execute(statement).scalar_one()


def _backlog(connection: Connection, namespace: str, since: Column[Any], where: ColumnElement[bool]) -> Backlog:
    statement = select(func.count(), func.min(since)).where(since.table.c.namespace == namespace, where)
    count, oldest = connection.execute(statement).one()
    return Backlog(count, oldest)


def _first_runs(
    connection: Connection, namespace: str, since: Column[Any], where: ColumnElement[bool]
) -> tuple[str, ...]:
    """Return the ids of the runs that wait longest."""
    runs = tables.runs.c
    statement = select(runs.id).where(runs.namespace == namespace, where).order_by(since, runs.id).limit(MOST_NAMED)
    return tuple(connection.execute(statement).scalars())


def _count(connection: Connection, namespace: str, table: Table, where: ColumnElement[bool]) -> int:
    statement = select(func.count()).select_from(table).where(table.c.namespace == namespace, where)
    return connection.execute(statement).scalar_one()
