"""Becoming a run's owner, and writing as one.

Who may run at the same time: any number of workers that want the run, a sweeper that rescues it, an owner that does
not know yet that it lost the run, operators that append to its inbox.

- ``claim`` is one guarded UPDATE: whoever changes ``wake_id`` to null has the run, everybody else finds no row.
  The epoch rises with it; the journal is read only after that has committed.
- Each write of the owner first updates the run's row ``WHERE epoch, worker and seq are mine``. That statement checks
  and locks at once: a rescuer either waits until the write has committed, or has committed before, and then the
  statement finds no row. A plain ``WHERE EXISTS (SELECT … epoch …)`` would read a snapshot and could commit after a
  rescuer took over.
- ``seq`` counts the owner's writes. It orders journal and frames, and it answers the question that a lost COMMIT
  leaves: if the row says ``seq + 1`` under our epoch, the commit happened; if ``seq``, it did not.

What a crash leaves: before the commit nothing; after it everything, and the row still names the dead owner until its
lease runs out and the sweeper takes the run away from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, bindparam, case, exists, func, select, true, tuple_, update
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from aft.errors import StoreError
from aft.fault import FaultState
from aft.ids import RunId, WorkerId
from aft.runs.inbox import Letter
from aft.runs.rows import COLUMNS, RunRow, from_row
from aft.runs.states import Status, sources
from aft.runs.waits import Wait
from aft.store import Store
from aft.store.leases import Lease, is_leased
from aft.store.moments import now
from aft.store.tables import faults, runs, workers

#: Deaths beside others, since it last wrote anything, after which a run is executed alone: it may be what kills them.
MOST_SHARED_DEATHS = 2
#: Due runs among which the most urgent is chosen.
WINDOW = 500
#: (flow, version) pairs that a process has code for.
Known = Sequence[tuple[str, int]]
T = TypeVar("T")
#: A run, and the fault or order that wakes it.
Wake = tuple[RunId, str]


class Fenced(Exception):
    """Raised when a write was refused because the run has another owner, or none; nothing was written."""


class LeaseOver(Fenced):
    """Raised when this process may start nothing for a run any more, because its lease is over."""


#: States in which a fault's own wake counts; a run that is parked or suspended awaits a person's.
_CALLABLE = (Status.RUNNING, Status.WAITING, Status.RECOVERING, Status.COMPENSATING)
_CLAIMED: dict[str, Any] = {
    "epoch": runs.c.epoch + 1,
    "wake_id": None,
    "due_at": None,
    "sweep_at": None,
    "reason": None,
    "started_at": func.coalesce(runs.c.started_at, now()),
    "updated_at": now(),
    # An ended run is claimed only to settle something late, and keeps its end.
    "status": case(
        (runs.c.ended_as.is_not(None), runs.c.ended_as),
        (runs.c.cause.is_not(None), Status.COMPENSATING.value),
        else_=Status.RUNNING.value,
    ),
}


def claim(
    connection: Connection,
    namespace: str,
    worker: WorkerId,
    wakes: Sequence[Wake],
    known: Known,
    *,
    alone: bool = False,
) -> list[RunRow]:
    """Become the owner of those runs that await exactly the wake named for them; the others are not touched.

    Runs that must be executed alone are claimed only if the caller says that it does so.
    """
    statement = (
        update(runs)
        .where(
            runs.c.id.in_([run for run, _ in wakes]),
            tuple_(runs.c.id, runs.c.wake_id).in_(list(wakes)) | _is_called(wakes),
            # Not the column alone: SQLite would go through the namespace instead of looking the ids up.
            runs.c.namespace.concat("") == namespace,
            runs.c.worker_id.is_(None),
            tuple_(runs.c.flow, runs.c.version).in_(list(known)),
            is_solitary() if alone else ~is_solitary(),
            # A lease may have been ended by others, who then rescue what it claims, again and again.
            exists().where(workers.c.id == worker, is_leased()),
        )
        .values(worker_id=worker, **_CLAIMED)
        .returning(*COLUMNS)
    )
    return [from_row(row) for row in connection.execute(statement)]


def _is_called(wakes: Sequence[Wake]) -> ColumnElement[bool]:
    """The condition that a run is free, and one of its faults that were decided about names it.

    Several branches of a run may be in their ladders at once; the run's own wake can be that of one only.
    """
    decided = select(faults.c.run_id).where(
        tuple_(faults.c.run_id, faults.c.id).in_(list(wakes)),
        faults.c.state.in_([FaultState.WAITING.value, FaultState.FINAL.value]),
    )
    return (
        runs.c.id.in_(decided) & runs.c.wake_id.is_not(None) & runs.c.status.in_([status.value for status in _CALLABLE])
    )


def is_solitary() -> ColumnElement[bool]:
    """The condition that a run must be executed with no other beside it."""
    return runs.c.deaths >= MOST_SHARED_DEATHS


def is_urgent_due(connection: Connection, namespace: str, known: Known) -> bool:
    """Tell whether a run is due that somebody gave a priority."""
    statement = select(runs.c.id).where(*_is_due(namespace, known, alone=False), runs.c.priority > 0)
    return connection.execute(statement.limit(1)).first() is not None


def _is_due(namespace: str, known: Known, *, alone: bool) -> list[ColumnElement[bool]]:
    return [
        runs.c.namespace == namespace,
        runs.c.sweep_at <= now(),
        runs.c.worker_id.is_(None),
        runs.c.wake_id.is_not(None),
        tuple_(runs.c.flow, runs.c.version).in_(list(known)),
        is_solitary() if alone else ~is_solitary(),
    ]


def find_due(
    connection: Connection, namespace: str, known: Known, limit: int, *, alone: bool = False, urgent: bool = False
) -> list[Wake]:
    """Find runs whose time has come and that no message woke, and lock them for a claim in this transaction.

    The most urgent of those that have waited longest: looking at all of a million would cost more than the runs do.
    With ``urgent`` only those that somebody gave a priority.
    """
    waiting = (
        select(runs.c.id, runs.c.priority, runs.c.sweep_at)
        .where(*_is_due(namespace, known, alone=alone), runs.c.priority > 0 if urgent else true())
        .order_by(runs.c.sweep_at)
        .limit(max(limit, WINDOW))
        .subquery()
    )
    due = (
        select(runs.c.id, runs.c.wake_id)
        .join(waiting, waiting.c.id == runs.c.id)
        .where(runs.c.worker_id.is_(None), runs.c.wake_id.is_not(None))
        .order_by(waiting.c.priority.desc(), waiting.c.sweep_at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=runs)
    )
    return [(RunId(row.id), str(row.wake_id)) for row in connection.execute(due)]


class Owner:
    """This process's hold on one run: every write of the run's owner goes through ``write``.

    Thread-safe: branches of a run are executed side by side, and their writes come one after the other, under ``lock``.
    """

    def __init__(self, store: Store, lease: Lease, run: RunRow) -> None:
        self.store = store
        self.lease = lease
        self.run = run
        self.worker = run.worker_id
        self.epoch = run.epoch
        self.seq = run.seq
        #: Whether it must be executed alone: until it has written anything that is progress.
        self.solitary = run.deaths >= MOST_SHARED_DEATHS
        self.inbox_seq = run.inbox_seq
        #: Up to which number the inbox was read, and what was only to be heard: that a child has ended.
        self.read_to = 0
        self.heard: list[int] = []
        #: A person's order to undo everything since a savepoint, until a step in it has been told.
        self.unheeded: Letter | None = None
        #: The savepoints that the flow's code is in, by path, with their names.
        self.savepoints = dict(run.savepoints)
        self.lock = threading.RLock()

    @property
    def run_id(self) -> RunId:
        return self.run.id

    def holds(self) -> bool:
        """Tell whether something may be started for the run: our lease is not over, as far as we can tell."""
        return self.lease.holds(self.worker)

    def write(
        self, then: Callable[[Connection, int], None], after: Callable[[], None] | None = None, **changes: Any
    ) -> None:
        """Change the run's row and do ``then`` in one transaction, if the run is still ours; else raise Fenced.

        The database being away is waited for until our lease is over; then StoreError tells that the outcome is
        unknown. ``then`` may be called again; it gets the sequence number of this write. ``after`` is called once that
        has committed, before any other write.
        """
        with self.lock:
            for attempt in self._while_leased():
                with attempt:
                    if attempt.retry_state.attempt_number > 1 and self._committed():
                        break
                    with self.store.write() as connection:
                        self.write_in(connection, then, **changes)
            self.seq += 1
            self.solitary = self.solitary and "deaths" in changes
            if after is not None:
                after()

    def write_in(self, connection: Connection, then: Callable[[Connection, int], None], **changes: Any) -> None:
        """Do the same inside a transaction that is already open, under ``lock``; ``seq`` is raised after its commit."""
        self.inbox_seq = guard(connection, self.run_id, self.worker, self.epoch, self.seq, changes)
        then(connection, self.seq + 1)

    def read(self, read: Callable[[Connection], T]) -> T:
        """Read something in a transaction; the database being away is waited for as by ``write``."""
        found: list[T] = []
        for attempt in self._while_leased():
            with attempt, self.store.read() as connection:
                found.append(read(connection))
        return found[-1]

    def settle_unknown(self) -> bool:
        """After a transaction whose COMMIT had no answer: tell whether it happened, and count it if so."""
        happened = False
        with self.lock:
            for attempt in self._while_leased():
                with attempt:
                    happened = self._committed()
            self.seq += happened
        return happened

    def begin_wait(self, wait: Wait) -> Wait:
        """Remember that the run waits for something, until that has come or nobody cares any more."""
        with self.lock:
            self.change(waits=(*(other for other in self.run.waits if other.path != wait.path), wait))
        return wait

    def forget_wait(self, path: str) -> None:
        """Say that a step waits for nothing any more."""
        with self.lock:
            self.change(waits=tuple(wait for wait in self.run.waits if wait.path != path))

    def change(self, **changes: Any) -> None:
        """Remember what a write has made of the row, or will when the run is let go."""
        with self.lock:
            self.run = replace(self.run, **changes)

    def _committed(self) -> bool:
        with self.store.read() as connection:
            row = connection.execute(select(runs.c.epoch, runs.c.seq).where(runs.c.id == self.run_id)).one_or_none()
        return row is not None and row.epoch == self.epoch and row.seq == self.seq + 1

    def _while_leased(self) -> Retrying:
        def lease_over(state: RetryCallState) -> bool:
            # Heartbeats may be heard while this cannot be written (a full disk): one lease is enough to try.
            return not self.holds() or (state.seconds_since_start or 0.0) >= self.lease.seconds

        return Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.transient),
            stop=lease_over,
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )


#: What a write adds to its changes that is no progress: deaths are counted on.
NO_PROGRESS: dict[str, Any] = {"deaths": runs.c.deaths, "deaths_alone": runs.c.deaths_alone}

#: Made once: each outcome of each activity goes through it.
_GUARD = (
    update(runs)
    .where(
        runs.c.id == bindparam("its_id"),
        runs.c.epoch == bindparam("its_epoch"),
        runs.c.worker_id == bindparam("its_worker"),
        runs.c.seq == bindparam("its_seq"),
    )
    # Whatever it wrote: it has got on, and earlier deaths are no sign any more that it kills its workers.
    .values(seq=runs.c.seq + 1, updated_at=now(), deaths=0, deaths_alone=0)
    .returning(runs.c.inbox_seq)
)


def guard(
    connection: Connection, run_id: RunId, worker: WorkerId | None, epoch: int, seq: int, changes: dict[str, Any]
) -> int:
    """Check and lock in one statement that the run is ours, and change it; returns its inbox's length."""
    statement = _GUARD
    if "status" in changes:
        # The states decide here too: an edge that does not exist finds no row.
        statement = statement.where(runs.c.status.in_([source.value for source in sources(changes["status"])]))
    if changes:
        statement = statement.values(**changes)
    ours = {"its_id": run_id, "its_epoch": epoch, "its_worker": worker, "its_seq": seq}
    row = connection.execute(statement, ours).one_or_none()
    if row is None:
        raise Fenced(f"run {run_id} is no longer owned by {worker} in epoch {epoch}")
    return int(row.inbox_seq)
