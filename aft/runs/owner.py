"""Writing as a run's owner.

Who may run at the same time: any number of workers that want the run, a sweeper that rescues it, an owner that does
not know yet that it lost the run, operators that append to its inbox.

- A run is claimed by one guarded UPDATE, with which its epoch rises (``runs.claiming``).
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
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, select, update
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from aft.errors import StoreError
from aft.ids import RunId, WorkerId
from aft.runs.deeds import OWNER, Guarded, Recording, Write
from aft.runs.inbox import Letter
from aft.runs.rows import RunRow
from aft.runs.states import sources
from aft.runs.waits import Wait, WaitKind, encode
from aft.store import Store
from aft.store.leases import Lease
from aft.store.moments import now
from aft.store.questions import Answer, PreparedQuery
from aft.store.tables import runs

#: Deaths beside others, since it last wrote anything, after which a run is executed alone: it may be what kills them.
MOST_SHARED_DEATHS = 2
#: Characters from which on a write is none to be shared: it would keep the others waiting.
LARGE = 100_000
T = TypeVar("T")
#: What is done in the transaction of a guarded write; gets the number of that write.
Then = Callable[[Connection, int], None]


class Fenced(Exception):
    """Raised when a write was refused because the run has another owner, or none; nothing was written."""


@dataclass(slots=True)
class Shared:
    """A write that has committed together with others; ``message`` is the number of its message in the outbox."""

    message: int | None


class LeaseOver(Fenced):
    """Raised when this process may start nothing for a run any more, because its lease is over."""


class Owner:
    """This process's hold on one run: every write of the run's owner goes through ``write`` or ``share``.

    Thread-safe: branches of a run are executed side by side, and their writes come one after the other, under ``lock``.
    """

    def __init__(self, store: Store, lease: Lease, run: RunRow) -> None:
        self.store = store
        self.lease = lease
        self.run = run
        self.worker = run.worker_id
        self.epoch = run.epoch
        self.seq = run.seq
        #: What the run had come to when it was claimed: its last write, and how often it had begun anew.
        self._claimed_at = run.seq, run.key_generation
        #: Whether it must be executed alone: until it has written anything that is progress.
        self.solitary = run.deaths >= MOST_SHARED_DEATHS
        self.inbox_seq = run.inbox_seq
        #: Up to which number the inbox was read, and what was only to be heard: that a child has ended.
        self.read_to = 0
        self.heard: list[int] = []
        #: The length of the inbox when it was last looked whether effects of the run came late: they raise it, too.
        self.looked_to = -1
        #: Orders to undo everything since a savepoint, as they were given, each until a step in it has been told.
        self.unheeded: list[Letter] = []
        #: The savepoints that the flow's code is in, by path, with their names; None: it has to come to them first.
        self.savepoints = run.savepoints
        #: The outcome, by its place in the order, that the code had heard last when it entered each of them.
        self.entered: dict[str, int] = {}
        #: Whether the code of a run that is to end as it is was played, so that no savepoint is undone in part.
        self.has_undone = False
        self.lock = threading.RLock()
        #: The waits that lie in the run's row.
        self._stored_waits = frozenset(run.waits)
        #: Whether a write was tried whose outcome nobody knows; the next one looks first.
        self._unsure = False

    @property
    def run_id(self) -> RunId:
        return self.run.id

    def holds(self) -> bool:
        """Tell whether something may be started for the run: our lease is not over, as far as we can tell."""
        return self.lease.holds(self.worker)

    def is_first_to_hear(self, seq: int) -> bool:
        """Tell whether no earlier owner can have told the flow's code an outcome, by its place in the order.

        Then none has come as far: all that was begun since was begun by us.
        """
        claimed_at, generation = self._claimed_at
        return self.epoch == 1 or self.run.key_generation != generation or seq > claimed_at

    def write(self, then: Then, after: Callable[[], None] | None = None, **changes: Any) -> None:
        """Change the run's row and do ``then`` in one transaction, if the run is still ours; else raise Fenced.

        The database being away is waited for until our lease is over; then StoreError tells that the outcome is
        unknown. ``then`` may be called again; it gets the sequence number of this write. A ``Recording`` may share its
        commit with other runs' writes. ``after`` is called once that has committed, before any other write.
        """
        with self.lock:
            if not isinstance(then, Recording) or then.more is not None or changes or self.share(then.write) is None:
                self._write_alone(then, changes)
                self.seq += 1
                self.solitary = self.solitary and "deaths" in changes
            if after is not None:
                after()

    def share(self, write: Write, *, read_to: int | None = None) -> Shared | None:
        """Write something together with what other runs have to write; None: refused, too large, or nobody knows.

        Refused means that the run is not ours, or that its inbox goes beyond ``read_to``. Whoever hears None tries
        again by ``write``, which looks whether this one happened, and tells why if it cannot.
        """
        if write.size > LARGE:
            return None
        with self.lock:
            item = Guarded(self.run_id, self.worker, self.epoch, self.seq, write, read_to)
            try:
                answer = self.store.commit(OWNER, item)
            except StoreError:
                self._unsure = True
                return None
            if answer is None:
                return None
            self.seq += 1
            inbox_seq, message = answer
            self.inbox_seq, self.solitary = int(inbox_seq), False
            return Shared(None if message is None else int(message))

    def _write_alone(self, then: Then, changes: dict[str, Any]) -> None:
        for attempt in self._while_leased():
            with attempt:
                unsure, self._unsure = self._unsure or attempt.retry_state.attempt_number > 1, False
                if unsure and self._committed():
                    return
                with self.store.write() as connection:
                    self.write_in(connection, then, **changes)

    def write_in(self, connection: Connection, then: Then, **changes: Any) -> None:
        """Do the same inside a transaction that is already open, under ``lock``; ``seq`` is raised after its commit."""
        self.inbox_seq = guard(connection, self.run_id, self.worker, self.epoch, self.seq, changes)
        then(connection, self.seq + 1)

    def read(self, read: Callable[[Connection], T]) -> T:
        """Read something in a transaction; the database being away is waited for as by ``write``."""

        def in_transaction() -> T:
            with self.store.read() as connection:
                return read(connection)

        return self.patiently(in_transaction)

    def ask(self, questions: Sequence[tuple[PreparedQuery, str]]) -> list[Answer]:
        """Read what several questions ask for, in one round trip; the database being away is waited for, too."""
        return self.patiently(lambda: self.store.ask(questions))

    def patiently(self, read: Callable[[], T]) -> T:
        """Read something; the database being away is waited for until our lease is over."""
        found: list[T] = []
        for attempt in self._while_leased():
            with attempt:
                found.append(read())
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

    def store_waits(self) -> None:
        """Write down waits that began since the run was taken, unless all are; that is no progress of the run.

        For a run that is not let go meanwhile, because other branches are at work: the next owner, should we die, goes
        on with the same waits. The end of a child is recorded in its own row; to wait for it need not be stored.
        """
        with self.lock:
            found = self.run.waits
            if all(wait in self._stored_waits or wait.kind is WaitKind.CHILD for wait in found):
                return
            self.write(lambda connection, seq: None, waits=encode(found), **NO_PROGRESS)
            self._stored_waits = frozenset(found)

    def hear(self, inbox_seq: int) -> None:
        """Learn the length of the inbox from somebody who has looked."""
        with self.lock:
            self.inbox_seq = max(self.inbox_seq, inbox_seq)

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
