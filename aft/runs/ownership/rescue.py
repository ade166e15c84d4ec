"""Rescues runs from owners whose lease has expired. Each rescue raises a fault of kind *abort*.

An expired lease need not be a death: a process may be paused, or starved, and its liveness lock still be held; or it
goes on under another worker id; or an error ended the run's thread. That is not counted as a death, unless it happens
to a run again and again without progress: then the run may be what keeps its workers from their heartbeats, or what
ends whole machines, whose locks outlive them.

A death is shared by all runs of its process, so it proves little against one of them. After two such deaths a run is
executed alone (``Owner.solitary``), and only deaths then count towards parking it. Both counts are reset by the run's
next write: then it was not what killed its worker.

Who may run at the same time: several sweepers, the owner that is not dead after all, and its heartbeat. Rows that
another sweeper has locked are skipped. The UPDATE names the epoch it saw: an owner's writes do not change the epoch, so
a run whose owner wrote meanwhile is rescued all the same, and the owner is fenced from its next write on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, exists, func, insert, select, true, tuple_, update

from aft import names
from aft.envelope import Message, MessageKind
from aft.fault import Fault, FaultKind, FaultState, Recoverability
from aft.ids import FaultId, RunId, WorkerId, new_id
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.records import faults
from aft.runs.states import ENDS, Status
from aft.store import outbox, tables
from aft.store.batch.row_format import MOST_COUNT
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import now
from aft.store.leases import is_leased
from aft.store.outbox import HOLD, OutboxRow
from aft.store.tables import journal, runs, workers
from aft.telemetry import RunRescued

#: Rescues in a row without progress that count as no death; each further one counts as a death.
MOST_LAPSES = 5
#: A namespace that no user can have.
WARM_UP = "~"

_COLUMNS = [runs.c.id, runs.c.flow, runs.c.epoch, runs.c.worker_id, runs.c.deaths, runs.c.deaths_alone]
#: The fault's message: the worker died; its lease expired although it lives; it owns the run but does not execute it.
DIED = "worker {worker} was lost while it executed this run"
LAPSED = "the lease of worker {worker} ran out while it executed this run"
ORPHANED = "its worker {worker} could not go on with it"
#: An owner's death leaves these states as they are; any other becomes ``recovering``.
_KEPT = [status.value for status in (Status.COMPENSATING, *ENDS)]


def is_orphaned() -> ColumnElement[bool]:
    """Return the condition, over runs joined with workers, that a run's owner has no lease, or no row any more."""
    return runs.c.worker_id.is_not(None) & (workers.c.id.is_(None) | ~is_leased())


#: Whether there is a run to rescue in a namespace.
ANY_EXPIRED = PreparedQuery.of(
    select(runs.c.id)
    .outerjoin(workers, workers.c.id == runs.c.worker_id)
    .where(runs.c.namespace == GIVEN, is_orphaned())
    .limit(1)
)


def find_expired(
    connection: Connection, namespace: str, limit: int, of: Collection[WorkerId] | None = None
) -> list[RunId]:
    """Return runs to rescue; ``of``: only the runs of these workers. Locks nothing."""
    statement = (
        select(runs.c.id)
        .outerjoin(workers, workers.c.id == runs.c.worker_id)
        .where(runs.c.namespace == namespace, is_orphaned(), true() if of is None else runs.c.worker_id.in_(list(of)))
        .limit(limit)
    )
    return list(connection.execute(statement).scalars())


def rescue_expired(
    connection: Connection,
    namespace: str,
    at: datetime,
    limit: int,
    living: Collection[WorkerId] = (),
    of: Collection[WorkerId] | None = None,
    just: RunId | None = None,
) -> tuple[list[RunRescued], list[OutboxRow]]:
    """Rescue up to ``limit`` runs of workers without a lease; the caller publishes the returned messages.

    ``living`` are workers that are alive though their lease has expired. ``of``: only the runs of these workers;
    ``just``: only this run.
    """
    ended_alive = workers.c.stopped_at.is_not(None) & ~workers.c.died
    expired = (
        select(*_COLUMNS, (ended_alive | workers.c.id.in_(list(living))).label("lives"))
        .outerjoin(workers, workers.c.id == runs.c.worker_id)
        .where(runs.c.namespace == namespace, is_orphaned(), true() if of is None else runs.c.worker_id.in_(list(of)))
        .where(true() if just is None else runs.c.id == just)
        .limit(limit)
        .with_for_update(of=runs, skip_locked=True)
    )
    # Checked again in the UPDATE: PostgreSQL may return a run that was rescued and claimed meanwhile, joined with the
    # row of its former owner.
    leased = exists().where(workers.c.id == runs.c.worker_id, is_leased())
    return _rescue(connection, namespace, at, expired, ~leased, hold=HOLD)


def rescue_for_warm_up(connection: Connection, at: datetime) -> None:
    """Rescue a run that is made for this, in a transaction that the caller rolls back.

    The first rescue in a process compiles its statements and takes several times as long as the next ones; runs wait
    for each rescue.
    """
    values = {"id": new_id(), "namespace": WARM_UP, "flow": WARM_UP, "version": 0, "args": "{}", "epoch": 1}
    values |= {"root_id": values["id"], "worker_id": new_id(), "status": Status.RUNNING.value}
    connection.execute(insert(runs).values(created_at=at, updated_at=at, **values))
    rescue_expired(connection, WARM_UP, at, 1)


def rescue_orphans(
    connection: Connection, namespace: str, at: datetime, worker: WorkerId, orphans: Sequence[tuple[RunId, int]]
) -> list[RunRescued]:
    """Rescue runs that a living worker owns, in these epochs, and does not execute; the relay publishes the messages.

    No worker has died: the database did not answer in time, or an error ended the run's thread. Like an expired lease,
    that counts as a death only when it happens again and again.
    """
    found = (
        select(*_COLUMNS, true().label("lives"))
        .where(tuple_(runs.c.id, runs.c.epoch).in_(orphans), runs.c.worker_id == worker)
        .with_for_update(skip_locked=True)
    )
    events, _ = _rescue(connection, namespace, at, found, hold=0.0, why=ORPHANED)
    return events


def take_away(
    connection: Connection, namespace: str, at: datetime, by: str, *of: ColumnElement[bool]
) -> list[RunRescued]:
    """Take runs away from their owners on a person's order; no death is counted. The relay publishes the messages."""
    found = select(*_COLUMNS, true().label("lives")).where(
        runs.c.namespace == namespace, runs.c.worker_id.is_not(None), *of
    )
    found = found.order_by(runs.c.id)  # the lock order of all who lock several runs
    why = f"{by} took it away from its worker {{worker}}"
    events, _ = _rescue(connection, namespace, at, found.with_for_update(), hold=0.0, why=why, asked=True)
    return events


def _rescue(
    connection: Connection,
    namespace: str,
    at: datetime,
    found: Select[Any],
    *still: ColumnElement[bool],
    hold: float,
    why: str | None = None,
    asked: bool = False,
) -> tuple[list[RunRescued], list[OutboxRow]]:
    events: list[RunRescued] = []
    messages: list[tuple[str, str]] = []
    for row in connection.execute(found).all():
        died, was_alone = not row.lives, row.deaths >= MOST_SHARED_DEATHS
        counts = died or (not asked and _lapses(connection, row.id) >= MOST_LAPSES)
        taken = connection.execute(
            update(runs)
            .where(runs.c.id == row.id, runs.c.epoch == row.epoch, runs.c.worker_id == row.worker_id, *still)
            .values(
                epoch=row.epoch + 1,
                worker_id=None,
                wake_id=None,
                savepoints=None,  # not known any more: stored at its last release
                deaths=_raise(row.deaths, counts and not was_alone),
                deaths_alone=_raise(row.deaths_alone, counts and was_alone),
                updated_at=now(),
                status=case((runs.c.status.in_(_KEPT), runs.c.status), else_=Status.RECOVERING.value),
            )
        )
        if not taken.rowcount:
            continue
        reason = (why or (DIED if died else LAPSED)).format(worker=row.worker_id)
        deaths = _raise(row.deaths + row.deaths_alone, counts)
        fault = make_abort(row.id, row.flow, row.epoch + 1, deaths, reason, at)
        faults.add(connection, namespace, fault)
        message = Message.about_fault(MessageKind.FAULT, fault.run_id, fault.id, at)
        messages.append((names.faults(namespace), message.encode()))
        events.append(RunRescued(run=row.id, flow=row.flow, worker=row.worker_id, fault=fault.id))
    return events, outbox.put(connection, namespace, messages, hold=hold)


def _raise(count: int, by: int) -> int:
    """Return a count that is raised, as far as its column goes: a damaged one must not prevent a rescue."""
    return min(count + by, MOST_COUNT)


def _lapses(connection: Connection, run_id: RunId) -> int:
    """Count a run's rescues since its last journaled outcome; frames undone since then do not reset this count."""
    recorded = select(func.coalesce(func.max(journal.c.epoch), 0)).where(journal.c.run_id == run_id).scalar_subquery()
    statement = select(func.count()).where(
        tables.faults.c.run_id == run_id,
        tables.faults.c.kind == FaultKind.ABORT.value,
        tables.faults.c.epoch > recorded,
    )
    return int(connection.execute(statement).scalar_one())


def make_abort(run_id: RunId, flow: str, epoch: int, deaths: int, why: str, at: datetime, steps: str = "[]") -> Fault:
    """Make the fault of a run whose owner was lost; ``deaths`` in a row.

    ``steps`` are the steps in doubt, as ``flows.session.unknown_outcomes`` encodes them; empty: those where the
    journal ends.
    """
    return Fault(
        id=FaultId(new_id()),
        run_id=run_id,
        path=None,
        kind=FaultKind.ABORT,
        name=flow,
        state=FaultState.OPEN,
        epoch=epoch,
        attempt=deaths,
        type="aft.Abort",
        lineage=("aft.Abort",),
        message=why,
        args=steps,
        args_exact=True,
        traceback="",
        own_answer=Recoverability.RECOVERABLE,
        declared_answer=None,
        http_status=None,
        after=None,
        ladder="[]",
        raised_at=at,
    )
