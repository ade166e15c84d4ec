"""Writes of a run's owner, each fenced by epoch, worker and sequence number.

Who may run at the same time: any number of workers that want the run, a sweeper that rescues it, an owner that does
not know yet that it lost the run, operators that append to its inbox.

- A run is claimed by one guarded UPDATE, with which its epoch rises (``runs.ownership.claims``).
- Each write of the owner first updates the run's row ``WHERE epoch, worker and seq are mine``
  (``runs.ownership.owner_statements.FENCE``). That statement checks and locks at once: a rescuer either waits until the
  write has committed, or has committed before, and then the statement finds no row. A plain
  ``WHERE EXISTS (SELECT … epoch …)`` would read a snapshot and could commit after a rescuer took over.
- ``seq`` counts the owner's writes. It orders journal and frames, and it resolves a COMMIT whose answer was lost: if
  the row says ``seq + 1`` under our epoch, the commit happened; if ``seq``, it did not.
- The last outcome may be held back for a moment (``runs.ownership.held_writes``). It is written before anything else
  that the owner writes or reads, or together with the run's end.

What a crash leaves: before the commit nothing; after it everything, and the row still names the dead owner until its
lease expires and a sweeper rescues the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, select
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from aft.errors import StoreError
from aft.ids import RunId
from aft.runs.ownership.held_writes import HeldWrite, LastOutcome
from aft.runs.ownership.owner_writes import MOST_SHARED, NO_PROGRESS, OWNER, FencedWrite, OwnerWrite, Recording, Then
from aft.runs.records.inbox import InboxItem
from aft.runs.run_rows import RunRow
from aft.runs.waits import Wait, WaitKind, encode
from aft.store import Store
from aft.store.batch.execute_batch import write_within
from aft.store.batch.statements import PreparedQuery, Rows
from aft.store.leases import Lease
from aft.store.tables import runs

#: Worker deaths since a run's last write after which it is executed alone: it may be what kills its workers.
MOST_SHARED_DEATHS = 2
T = TypeVar("T")


class Fenced(Exception):
    """Raised when a write was refused because the run has another owner, or none; nothing was written."""


@dataclass(slots=True)
class SharedWrite:
    """A write that has committed in a shared commit; ``message`` is the number of its message in the outbox."""

    message: int | None


class LeaseOver(Fenced):
    """Raised when this process may start nothing more for a run, because its lease has expired."""


class Owner:
    """This process's ownership of one run: every write of the run's owner goes through ``write`` or ``share``.

    Thread-safe: branches of a run are executed concurrently, and their writes are serialized under ``lock``.
    """

    def __init__(self, store: Store, lease: Lease, run: RunRow) -> None:
        self.store, self.lease, self.run = store, lease, run
        self.worker, self.epoch, self.seq = run.worker_id, run.epoch, run.seq
        #: The run's last write when it was claimed, and its generation (``continue_as_new``).
        self._claimed_at = run.seq, run.key_generation
        #: Whether it must be executed alone, until it has written progress.
        self.solitary = run.deaths >= MOST_SHARED_DEATHS
        self.inbox_seq = run.inbox_seq
        #: The number up to which the inbox was read, and the entries that only point at other rows (``inbox.HINTS``).
        self.read_to = 0
        self.pointers_read: list[int] = []
        #: The length of the inbox when late effects were last looked for: they raise it, too.
        self.late_checked_to = -1
        #: Orders to undo to a savepoint, oldest first, each until a step in that savepoint has been interrupted.
        self.pending_orders: list[InboxItem] = []
        #: The savepoints that the flow's code is in, by path, with their names; None until the replay has reached them.
        self.savepoints = run.savepoints
        #: For each of them, the ``seq`` of the last outcome that the code had received when it entered.
        self.entered: dict[str, int] = {}
        #: Whether a run that ends without undo was replayed first, so that no savepoint is left partly undone.
        self.has_undone = False
        self.lock = threading.RLock()
        #: The waits that are stored in the run's row.
        self._stored_waits = frozenset(run.waits)
        #: Whether the last write may or may not have committed; the next write checks first.
        self._unsure = False
        self._last_outcome = LastOutcome(lambda write: self._write(write, None))

    @property
    def run_id(self) -> RunId:
        return self.run.id

    def is_leased(self) -> bool:
        """Return whether work may be started for the run: this worker's lease has not expired by its own clock."""
        return self.lease.is_valid(self.worker)

    def is_first_to_return(self, seq: int) -> bool:
        """Return whether no earlier owner can have given the flow's code the outcome numbered ``seq``.

        Then no earlier owner has come as far: every step begun after it was begun by this owner.
        """
        claimed_at, generation = self._claimed_at
        return self.epoch == 1 or self.run.key_generation != generation or seq > claimed_at

    def write(self, recording: Recording | Then, after: Callable[[], None] | None = None, **changes: Any) -> None:
        """Write if the run is still ours, else raise Fenced; ``changes`` are more of its row's (``OwnerWrite``).

        Retries while the database is away, until our lease is over; then StoreError says that the outcome is unknown.
        What is executed in the transaction may be called again; it gets the sequence number of this write. A write of
        data only may share its commit with other runs' writes. ``after`` is called after the commit, before any other
        write.
        """
        write, more = _split(recording)
        if changes:
            write = replace(write, changes={**(write.changes or {}), **changes})
        try:
            with self.lock:
                write = self._last_outcome.join(write)
                try:
                    self._write(write, more)
                except (Fenced, StoreError) as error:
                    self._last_outcome.give_up(error)
                    raise
                self._last_outcome.end(committed=True)
                if after is not None:
                    after()
        finally:
            self._last_outcome.call_back()

    def share(self, write: OwnerWrite, *, read_to: int | None = None) -> SharedWrite | None:
        """Write in a commit that other runs' writes share; None if refused, too large, or the outcome is unknown.

        Refused means that the run is not ours, or that its inbox is longer than ``read_to``. On None the caller tries
        again with ``write``, which checks whether this one has committed, and raises if it cannot write.
        """
        try:
            with self.lock:
                shared = self._try_to_share(self._last_outcome.join(write), read_to)
                if shared is not None:
                    self._last_outcome.end(committed=True)
                return shared
        finally:
            self._last_outcome.call_back()

    def _write(self, write: OwnerWrite, more: Then | None) -> None:
        if more is not None or write.changes is not None or not self._try_to_share(write):
            self._write_alone(write, more)
            self.seq += 1
            self.solitary = self.solitary and "deaths" in (write.changes or ())

    def _try_to_share(self, write: OwnerWrite, read_to: int | None = None) -> SharedWrite | None:
        """Write in a shared commit; None if refused, too large, or the outcome is unknown."""
        if write.size > MOST_SHARED:
            return None
        with suppress(StoreError):
            return self._share(write, read_to)
        return None

    def _share(self, write: OwnerWrite, read_to: int | None = None) -> SharedWrite | None:
        try:
            answer = self.store.commit(OWNER, self._fenced(write, read_to))
        except StoreError:
            self._unsure = True
            raise
        return None if answer is None else self._note_shared(answer)

    def _fenced(self, write: OwnerWrite, read_to: int | None = None) -> FencedWrite:
        return FencedWrite(self.run_id, self.worker, self.epoch, self.seq, write, read_to)

    def _note_shared(self, answer: tuple[Any, Any]) -> SharedWrite:
        self.seq, self._unsure, self.solitary = self.seq + 1, False, False
        self.inbox_seq, message = int(answer[0]), answer[1]
        return SharedWrite(None if message is None else int(message))

    def _write_alone(self, write: OwnerWrite, more: Then | None) -> None:
        for attempt in _while_leased(self):
            with attempt:
                unsure, self._unsure = self._unsure or attempt.retry_state.attempt_number > 1, False
                if unsure and _has_committed(self):
                    return
                with self.store.write() as connection:
                    self.write_in(connection, Recording(write, more))

    def write_in(self, connection: Connection, recording: Recording | Then) -> None:
        """Write in an open transaction; the caller holds ``lock``, holds nothing back, and raises ``seq`` later."""
        write, more = _split(recording)
        self.inbox_seq = execute(connection, self._fenced(write))
        if more is not None:
            more(connection, self.seq + 1)

    # Held back ----------------------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The number of the last outcome or frame, also if it is held back; the caller holds ``lock``."""
        return self.seq + (self._last_outcome.held is not None)

    def hold(self, held: HeldWrite) -> None:
        """Hold an outcome back until the next write or read."""
        with self.lock:
            self._last_outcome.hold(held)

    def write_held(self) -> None:
        """Write what is held back, if anything."""
        if self._last_outcome.is_over:
            return
        try:
            with self.lock:
                self._last_outcome.write_now()
        finally:
            self._last_outcome.call_back()

    def finish(self) -> None:
        """Write what is held back when the run is left without any other write; raises nothing."""
        with suppress(Fenced, StoreError):
            self.write_held()

    def take_overdue(self, held: HeldWrite) -> FencedWrite | None:
        """Return this outcome for a thread that is not the run's own; it has the lock until it calls ``end_overdue``.

        None if it is held back no more, or the run's own thread is writing, or has to find out what has committed.
        """
        if held.is_over or not self.lock.acquire(blocking=False):
            return None
        if not held.is_over and (held.was_tried or not self._unsure):
            return self._fenced(held.write)
        self.lock.release()
        return None

    def end_overdue(self, held: HeldWrite, answer: tuple[Any, Any] | None, *, known: bool) -> None:
        """Note the answer to what ``take_overdue`` returned; None: refused. Or it is not ``known``."""
        if not known:
            held.was_tried = self._unsure = True
        elif answer is not None:
            self._note_shared(answer)
            self._last_outcome.end(committed=True)
        self.lock.release()

    # Reading ------------------------------------------------------------------------------------------------------

    def read(self, read: Callable[[Connection], T]) -> T:
        """Read in a transaction; retries while the database is away, as ``write`` does."""

        def in_transaction() -> T:
            with self.store.read() as connection:
                return read(connection)

        return self.retry_while_leased(in_transaction)

    def query(self, questions: Sequence[tuple[PreparedQuery, str]]) -> list[Rows]:
        """Execute several queries in one round trip; retries while the database is away, as ``write`` does."""
        return self.retry_while_leased(lambda: self.store.query(questions))

    def retry_while_leased(self, read: Callable[[], T]) -> T:
        """Call ``read``, after what is held back; retries while the database is away, until our lease is over."""
        self.write_held()
        return _while_leased(self)(read)

    def resolve_unknown_commit(self) -> bool:
        """Return whether a transaction whose COMMIT had no answer has committed, and raise ``seq`` if so."""
        happened = False
        with self.lock:
            for attempt in _while_leased(self):
                with attempt:
                    happened = _has_committed(self)
            self.seq += happened
        return happened

    def begin_wait(self, wait: Wait) -> Wait:
        """Add a wait to the run in memory; it replaces an earlier wait of the same step."""
        with self.lock:
            self.change(waits=(*(other for other in self.run.waits if other.path != wait.path), wait))
        return wait

    def store_waits(self) -> None:
        """Store waits that began since the run was claimed, if there are any; does not count as progress.

        For a run that is not released meanwhile, because other branches are at work: if we die, the next owner goes on
        with the same waits. The end of a child is recorded in its own row; to wait for it need not be stored.
        """
        self.write_held()  # what that calls is called without the lock
        with self.lock:
            found = self.run.waits
            if all(wait in self._stored_waits or wait.kind is WaitKind.CHILD for wait in found):
                return
            self.write(lambda connection, seq: None, waits=encode(found), **NO_PROGRESS)
            self._stored_waits = frozenset(found)

    def update_inbox_length(self, inbox_seq: int) -> None:
        """Take over a newer length of the inbox that another component has read."""
        with self.lock:
            self.inbox_seq = max(self.inbox_seq, inbox_seq)

    def remove_wait(self, path: str) -> None:
        """Remove a step's wait from the run in memory."""
        with self.lock:
            self.change(waits=tuple(wait for wait in self.run.waits if wait.path != path))

    def change(self, **changes: Any) -> None:
        """Apply changes to the run in memory: those of a write, or those that its release will write."""
        with self.lock:
            self.run = replace(self.run, **changes)


def _has_committed(owner: Owner) -> bool:
    """Return whether the write after the last one that is known to have committed has committed, too."""
    with owner.store.read() as connection:
        row = connection.execute(select(runs.c.epoch, runs.c.seq).where(runs.c.id == owner.run_id)).one_or_none()
    return row is not None and row.epoch == owner.epoch and row.seq == owner.seq + 1


def _while_leased(owner: Owner) -> Retrying:
    def lease_over(state: RetryCallState) -> bool:
        # Heartbeats may succeed while this cannot be written (a full disk): one lease is enough to try.
        return not owner.is_leased() or (state.seconds_since_start or 0.0) >= owner.lease.seconds

    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.transient),
        stop=lease_over,
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    )


def _split(recording: Recording | Then) -> tuple[OwnerWrite, Then | None]:
    """Return the data of a write, and what is executed after it in its transaction."""
    return (recording.write, recording.more) if isinstance(recording, Recording) else (OwnerWrite(), recording)


def execute(connection: Connection, item: FencedWrite) -> int:
    """Execute one write in an open transaction; returns the length of the run's inbox, or raises Fenced."""
    (answer,) = write_within(connection, OWNER, [item])
    if answer is None:
        raise Fenced(f"run {item.run_id} is no longer owned by {item.worker} in epoch {item.epoch}")
    return int(answer[0])
