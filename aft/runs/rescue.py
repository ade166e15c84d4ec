"""Taking runs away from owners whose lease is over. Each becomes a fault of kind *abort*, counted apart.

A lease that ran out need not be a death: a process may be paused, or starved, and its lock still be held; or it has
gone on under another name; or an error ended the run's thread. That is not counted, unless it happens to a run again
and again while it gets no further: then it may be what keeps its workers from their heartbeats, or ends whole machines,
whose locks outlive them.

A death is shared by all runs of its process, so it proves little against one of them. After two such deaths a run is
executed alone (``owner.is_solitary``), and only deaths then count towards parking it. Both counts begin anew when the
run has written anything: then it was not what killed its worker.

Who may run at the same time: several sweepers, the owner that is not dead after all, and its heartbeat. Rows that
another sweeper holds are skipped. The UPDATE names the epoch it saw: an owner that wrote meanwhile does not change the
epoch, so it is taken over all the same, and fenced from its next write on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, exists, func, insert, select, true, tuple_, update

from aft import names
from aft.envelope import Message, MessageKind
from aft.fault import Answer, Fault, FaultKind, FaultState
from aft.ids import FaultId, RunId, WorkerId, new_id
from aft.runs import faults
from aft.runs.owner import MOST_SHARED_DEATHS
from aft.runs.states import ENDS, Status
from aft.store import outbox, tables
from aft.store.leases import is_leased
from aft.store.moments import now
from aft.store.outbox import HOLD, OutboxRow
from aft.store.tables import journal, runs, workers
from aft.telemetry import RunRescued

#: Rescues in a row, of a run that got no further meanwhile, which need not be deaths; one more counts as one.
MOST_LAPSES = 5
#: A namespace that nobody can have.
REHEARSAL = "~"

_COLUMNS = [runs.c.id, runs.c.flow, runs.c.epoch, runs.c.worker_id, runs.c.deaths, runs.c.deaths_alone]
#: What is said of a run whose worker has died, and of one whose worker's lease ran out although it lives.
DIED = "worker {worker} was lost while it executed this run"
LAPSED = "the lease of worker {worker} ran out while it executed this run"
ORPHANED = "its worker {worker} could not go on with it"
#: An owner's death leaves these states as they are; any other becomes ``recovering``.
_KEPT = [status.value for status in (Status.COMPENSATING, *ENDS)]


def is_orphaned() -> ColumnElement[bool]:
    """The condition, over runs joined with their workers, that a run's owner is dead: expired, or long forgotten."""
    return runs.c.worker_id.is_not(None) & (workers.c.id.is_(None) | ~is_leased())


def any_expired(connection: Connection, namespace: str) -> bool:
    """Tell whether there is anything to be rescued; reads only."""
    statement = (
        select(runs.c.id)
        .outerjoin(workers, workers.c.id == runs.c.worker_id)
        .where(runs.c.namespace == namespace, is_orphaned())
        .limit(1)
    )
    return connection.execute(statement).first() is not None


def find_expired(
    connection: Connection, namespace: str, limit: int, of: Collection[WorkerId] | None = None
) -> list[RunId]:
    """Return runs that are to be rescued; ``of``: only the runs of these workers. Locks nothing."""
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
    """Take away up to ``limit`` runs of expired workers; their messages are the caller's to publish.

    ``living`` are workers that are seen to live, though their lease is over. ``of``: only the runs of these; ``just``:
    only this run.
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
    # Asked again when it is taken: PostgreSQL may have found a run that another rescuer had just sent on, under its new
    # owner, and have joined that one with a row that it did not have before.
    leased = exists().where(workers.c.id == runs.c.worker_id, is_leased())
    return _rescue(connection, namespace, at, expired, ~leased, hold=HOLD)


def rehearse(connection: Connection, at: datetime) -> None:
    """Rescue a run that is made for it, in a transaction that the caller takes back.

    The first rescue in a process costs several times what the next ones do, and somebody waits for each.
    """
    values = {"id": new_id(), "namespace": REHEARSAL, "flow": REHEARSAL, "version": 0, "args": "{}", "epoch": 1}
    values |= {"root_id": values["id"], "worker_id": new_id(), "status": Status.RUNNING.value}
    connection.execute(insert(runs).values(created_at=at, updated_at=at, **values))
    rescue_expired(connection, REHEARSAL, at, 1)


def rescue_orphans(
    connection: Connection, namespace: str, at: datetime, worker: WorkerId, orphans: Sequence[tuple[RunId, int]]
) -> list[RunRescued]:
    """Take away runs that a living worker owns, in these epochs, and does not execute; the relay publishes.

    Nobody has died: the database did not answer in time, or an error ended the run's thread. Like a lease that ran out,
    that counts when it happens again and again.
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
    """Take these runs away from their owners because a person says so; no death is counted, the relay publishes."""
    found = select(*_COLUMNS, true().label("lives")).where(
        runs.c.namespace == namespace, runs.c.worker_id.is_not(None), *of
    )
    found = found.order_by(runs.c.id)  # as everybody who locks several
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
                savepoints=None,  # those that it was in when it was let go last
                deaths=row.deaths + (counts and not was_alone),
                deaths_alone=row.deaths_alone + (counts and was_alone),
                updated_at=now(),
                status=case((runs.c.status.in_(_KEPT), runs.c.status), else_=Status.RECOVERING.value),
            )
        )
        if not taken.rowcount:
            continue
        told = (why or (DIED if died else LAPSED)).format(worker=row.worker_id)
        fault = make_abort(row.id, row.flow, row.epoch + 1, row.deaths + row.deaths_alone + counts, told, at)
        faults.add(connection, namespace, fault)
        message = Message.about_fault(MessageKind.FAULT, fault.run_id, fault.id, at)
        messages.append((names.faults(namespace), message.encode()))
        events.append(RunRescued(run=row.id, flow=row.flow, worker=row.worker_id, fault=fault.id))
    return events, outbox.put(connection, namespace, messages, hold=hold)


def _lapses(connection: Connection, run_id: RunId) -> int:
    """How often a run was rescued since its last outcome; too high where it was undone meanwhile, which counts anew."""
    recorded = select(func.coalesce(func.max(journal.c.epoch), 0)).where(journal.c.run_id == run_id).scalar_subquery()
    statement = select(func.count()).where(
        tables.faults.c.run_id == run_id,
        tables.faults.c.kind == FaultKind.ABORT.value,
        tables.faults.c.epoch > recorded,
    )
    return int(connection.execute(statement).scalar_one())


def make_abort(run_id: RunId, flow: str, epoch: int, deaths: int, why: str, at: datetime, steps: str = "[]") -> Fault:
    """Make the fault of a run whose owner was lost; ``deaths`` in a row.

    ``steps`` are those that are in doubt, as ``flows.doubts`` spells them; none: nobody knows which.
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
        exact=True,
        traceback="",
        said=Answer.RECOVERABLE,
        declared=None,
        status=None,
        after=None,
        ladder="[]",
        raised_at=at,
    )
