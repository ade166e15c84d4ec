"""Is a namespace well? Reads only: what a person looks at who wants to know. Judging it is the caller's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, select, text

from aft.fault import FaultState
from aft.rules.plans import PlanState
from aft.runs import rows
from aft.runs.notices import NoticeState
from aft.runs.quarantine import QuarantineState
from aft.runs.rows import RunRow
from aft.runs.states import ENDS, Status
from aft.store import tables
from aft.store.moments import later, now
from aft.store.signs import find_dead

#: Parked runs that are read; the others are counted.
MOST_PARKED = 10
#: Runs that are named by their ids; the others are counted.
MOST_NAMED = 5

#: Parked, and nobody has said yet what to do; one that was given an order waits for a worker.
_FOR_A_PERSON = (tables.runs.c.status == Status.PARKED.value) & tables.runs.c.wake_id.is_(None)


#: Stopped by hand, and not resumed yet.
_STOPPED = (tables.runs.c.status == Status.SUSPENDED.value) & tables.runs.c.wake_id.is_(None)


#: Waits for something, and there is nothing for a worker to do about it yet.
_WAITS = (
    (tables.runs.c.status == Status.WAITING.value)
    & tables.runs.c.worker_id.is_(None)
    & (tables.runs.c.due_at.is_(None) | (tables.runs.c.due_at > now()))
)


@dataclass(frozen=True, slots=True)
class HangingCall:
    """An attempt that a worker gave up and whose function has not returned."""

    run: str
    path: str
    activity: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Hanging:
    """The attempts of one worker that hang: how many, how many it may have, and the oldest of them."""

    count: int = 0
    most: int = 0
    oldest: tuple[HangingCall, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether the worker claims no run because of them."""
        return 0 < self.most <= self.count

    @classmethod
    def read(cls, text: str | None) -> Hanging:
        """Read what a worker's row says (``flows.abandonment``)."""
        if text is None:
            return cls()
        found = json.loads(text)
        oldest = [
            HangingCall(one["run"], one["path"], one["activity"], datetime.fromisoformat(one["since"]))
            for one in found["oldest"]
        ]
        return cls(found["count"], found["most"], tuple(oldest))


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker whose lease has not run out; ``dead``: its process has ended all the same, its lock is free."""

    id: str
    host: str
    pid: int
    roles: tuple[str, ...]
    flows: tuple[str, ...]
    started_at: datetime
    expires_at: datetime
    watched: bool  #: whether others see by its lock that it lives
    runs: int  #: that it has
    dead: bool = False
    hanging: Hanging = Hanging()

    def heartbeat(self, lease: timedelta) -> datetime:
        """Tell when it last gave a sign of life, if its leases are that long."""
        return self.expires_at - lease


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many of something wait, and since when the oldest one does."""

    count: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Health:
    """How a namespace stands, all seen at one moment of the database's clock."""

    at: datetime
    workers: tuple[WorkerSeen, ...]  #: that are alive
    dead: tuple[WorkerSeen, ...]  #: whose process has ended, and whose lease has not
    unfinished: dict[str, int]  #: runs that a worker has to go on with, now or later, by ``flow@version``
    waiting: int  #: those of them that wait for a signal, a child, or a time that has not come
    parked: tuple[RunRow, ...]  #: runs that wait for a person; the newest of them
    parked_count: int
    undecided: Backlog  #: faults that are open for longer than the grace
    unpublished: Backlog  #: outbox rows that nobody holds
    stalled: Backlog  #: runs that should have gone on longer than the grace ago, and have no owner
    stalled_runs: tuple[str, ...]  #: the ids of those that wait longest
    overdue: Backlog  #: runs that have not ended in the time they were expected to take (``aft runs list --overdue``)
    overdue_runs: tuple[str, ...]  #: the ids of the oldest
    orphans: int  #: runs whose worker is lost, and that nobody has rescued yet
    quarantined: int
    late_effects: int
    stuck_exlets: Backlog  #: plans that should have gone on longer than the grace ago
    unheard: Backlog  #: notices that were sent and not heard, and will be again
    given_up: int  #: notices that nobody heard

    @property
    def roles(self) -> set[str]:
        """The roles that some live worker has."""
        return {role for worker in self.workers for role in worker.roles}

    @property
    def homeless(self) -> dict[str, int]:
        """Flows with runs that have not ended, and that no live worker has the code of."""
        known = {flow for worker in self.workers if "work" in worker.roles for flow in worker.flows}
        return {flow: count for flow, count in self.unfinished.items() if flow not in known}


def look(connection: Connection, namespace: str, grace: timedelta) -> Health:
    """Look at everything, in one transaction."""
    seen = seen_workers(connection, namespace)
    dead = tuple(worker for worker in seen if worker.dead)
    stalled, stalled_runs = _stalled(connection, namespace, grace)
    overdue, overdue_runs = _overdue(connection, namespace)
    return Health(
        at=connection.execute(select(now())).scalar_one(),
        workers=tuple(worker for worker in seen if not worker.dead),
        dead=dead,
        unfinished=_unfinished(connection, namespace),
        waiting=_count(connection, tables.runs, namespace, _WAITS),
        parked=tuple(_parked(connection, namespace)),
        parked_count=_count(connection, tables.runs, namespace, _FOR_A_PERSON),
        undecided=_undecided(connection, namespace, grace),
        unpublished=_unpublished(connection, namespace),
        stalled=stalled,
        stalled_runs=stalled_runs,
        overdue=overdue,
        overdue_runs=overdue_runs,
        orphans=_orphans(connection, namespace) + sum(worker.runs for worker in dead),
        quarantined=_count(
            connection, tables.quarantine, namespace, tables.quarantine.c.state == QuarantineState.HELD.value
        ),
        late_effects=_count(connection, tables.late_effects, namespace, tables.late_effects.c.state == "open"),
        stuck_exlets=_stuck_exlets(connection, namespace, grace),
        unheard=_unheard(connection, namespace),
        given_up=_count(connection, tables.notices, namespace, tables.notices.c.state == NoticeState.GIVEN_UP.value),
    )


def live_workers(connection: Connection, namespace: str) -> list[WorkerSeen]:
    """Return the workers that are alive, as far as anybody can tell, oldest first."""
    return [worker for worker in seen_workers(connection, namespace) if not worker.dead]


def seen_workers(connection: Connection, namespace: str) -> list[WorkerSeen]:
    """Return the workers whose lease has not run out, oldest first; those whose lock is free are dead."""
    workers = tables.workers
    owned = select(func.count()).where(tables.runs.c.worker_id == workers.c.id).scalar_subquery()
    statement = (
        select(workers, owned.label("owned"))
        .where(workers.c.namespace == namespace, workers.c.expires_at > now(), workers.c.stopped_at.is_(None))
        .order_by(workers.c.id)
    )
    found = connection.execute(statement).all()
    dead = find_dead(connection, {row.id: row.sign for row in found if row.sign is not None})
    return [
        WorkerSeen(
            row.id,
            row.host,
            row.pid,
            tuple(json.loads(row.roles)),
            tuple(json.loads(row.flows)),
            row.started_at,
            row.expires_at,
            row.sign is not None,
            row.owned,
            row.id in dead,
            Hanging.read(row.abandoned),
        )
        for row in found
    ]


def server_version(connection: Connection) -> str:
    """Tell which database it is, for people: ``PostgreSQL 15.4``."""
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
    statement = select(*rows.COLUMNS).where(runs.c.namespace == namespace, _FOR_A_PERSON)
    found = connection.execute(statement.order_by(runs.c.id.desc()).limit(MOST_PARKED))
    return [rows.from_row(row) for row in found]


def _undecided(connection: Connection, namespace: str, grace: timedelta) -> Backlog:
    faults = tables.faults
    return _backlog(
        connection,
        faults.c.raised_at,
        faults.c.namespace == namespace,
        faults.c.state == FaultState.OPEN.value,
        faults.c.raised_at <= later(-grace.total_seconds()),
    )


def _unpublished(connection: Connection, namespace: str) -> Backlog:
    outbox = tables.outbox
    return _backlog(connection, outbox.c.taken_until, outbox.c.namespace == namespace, outbox.c.taken_until <= now())


def _stalled(connection: Connection, namespace: str, grace: timedelta) -> tuple[Backlog, tuple[str, ...]]:
    runs = tables.runs
    return _backlog_of_runs(
        connection,
        runs.c.sweep_at,
        runs.c.namespace == namespace,
        runs.c.worker_id.is_(None),
        runs.c.wake_id.is_not(None),
        runs.c.sweep_at <= later(-grace.total_seconds()),
    )


def _overdue(connection: Connection, namespace: str) -> tuple[Backlog, tuple[str, ...]]:
    runs = tables.runs
    return _backlog_of_runs(connection, runs.c.created_at, runs.c.namespace == namespace, rows.is_overdue())


def _backlog_of_runs(
    connection: Connection, since: ColumnElement[Any], *where: ColumnElement[bool]
) -> tuple[Backlog, tuple[str, ...]]:
    """Count runs, and name the first of them."""
    backlog = _backlog(connection, since, *where)
    named = select(tables.runs.c.id).where(*where).order_by(since, tables.runs.c.id).limit(MOST_NAMED)
    return backlog, tuple(connection.execute(named).scalars()) if backlog.count else ()


def _stuck_exlets(connection: Connection, namespace: str, grace: timedelta) -> Backlog:
    plans = tables.plans
    return _backlog(
        connection,
        plans.c.due_at,
        plans.c.namespace == namespace,
        plans.c.state == PlanState.OPEN.value,
        plans.c.due_at <= later(-grace.total_seconds()),
    )


def _unheard(connection: Connection, namespace: str) -> Backlog:
    notices = tables.notices
    return _backlog(
        connection,
        notices.c.made_at,
        notices.c.namespace == namespace,
        notices.c.state == NoticeState.OPEN.value,
        notices.c.attempts > 0,
    )


def _orphans(connection: Connection, namespace: str) -> int:
    runs, workers = tables.runs, tables.workers
    statement = (
        select(func.count())
        .select_from(runs.join(workers, workers.c.id == runs.c.worker_id))
        .where(runs.c.namespace == namespace, workers.c.expires_at < now())
    )
    return connection.execute(statement).scalar_one()


def _backlog(connection: Connection, since: ColumnElement[Any], *where: ColumnElement[bool]) -> Backlog:
    count, oldest = connection.execute(select(func.count(), func.min(since)).where(*where)).one()
    return Backlog(count, oldest)


def _count(connection: Connection, table: Table, namespace: str, *where: ColumnElement[bool]) -> int:
    statement = select(func.count()).select_from(table).where(table.c.namespace == namespace, *where)
    return connection.execute(statement).scalar_one()
