"""Group commit: the threads of a process share commits, and a write that comes during one joins the next.

A commit costs a round trip and a disk flush, whatever it holds; so the writes of a process's threads are committed
together. No thread waits for others: one that finds no commit under way begins one at once, alone.

The writes are the items of a :class:`BatchWrite`, which has one statement for any number of them. It goes to the driver
itself, under SQLAlchemy's pool, because at this rate building and compiling statements would cost more than executing
them.

Who may run at the same time: any number of threads call ``commit``; of those with the same kind of write, one *leads*.
It takes the queued items, writes them in one transaction, hands the lead to the first thread that came meanwhile, and
gives all threads of the batch their answers.
An item that is refused (its guard finds no row) has an answer like any other, and the rest of its batch is written. A
batch that fails as a whole was not written, or its outcome is unknown: all its callers get StoreError. Each checks
whether its item was written, and tries again alone: so an item that cannot be written costs the others one retry only.

A crash before the commit leaves nothing of the batch, after it all; no caller has had an answer before the commit.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sqlalchemy import PoolProxiedConnection

from aft.errors import DatabaseMoved, StoreError
from aft.store.postgres.libpq import Parameters
from aft.telemetry import logger

if TYPE_CHECKING:
    from aft.store.engine import Store

#: The most items that are written in one transaction.
MOST = 200

T = TypeVar("T", contravariant=True)


class Executor(Protocol):
    """Executes statements in the SQL of the driver, with its placeholders, in a transaction that was begun."""

    def execute(self, statement: str, given: Any = (), /) -> Any:
        """Execute a statement and return its cursor."""


class BatchWrite(Protocol[T]):
    """A kind of write; one statement writes many items. Each item has an answer, None: it was refused."""

    def for_postgresql(self, items: Sequence[T]) -> tuple[str, Parameters]:
        """Return the statement for PostgreSQL, one of few, because each is prepared, and its parameters.

        It returns rows of text that begin with the index of their item.
        """

    def write_sqlite(self, connection: Executor, items: Sequence[T]) -> list[Any]:
        """Write all of these in the connection's transaction; SQLite has no statement that writes several tables."""


#: The error of a batch whose leader was interrupted before it could set one.
_INTERRUPTED = StoreError("a commit was interrupted", transient=True)


class _Waiting:
    """A thread's item, until it is written or the thread has the lead."""

    __slots__ = ("answer", "called", "error", "item", "leads")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.answer: Any = None
        #: Set until there is an answer: the outcome is unknown.
        self.error: BaseException | None = _INTERRUPTED
        self.leads = False
        #: A lock used as a signal: released when the thread may go on. None if it does not wait.
        self.called: threading.Lock | None = None

    def set_answer(self, answer: Any) -> None:
        self.answer, self.error = answer, None


class Committer(Generic[T]):
    """Executes one process's writes of one kind on one database. Thread-safe.

    An asynchronous exception (Ctrl-C) may come between any two steps. So each waiting thread is in ``_queue`` or in
    ``_batch`` until it is signalled, and the leader signals all of its batch and hands over, whatever happens.
    """

    def __init__(self, store: Store, batch_write: BatchWrite[T]) -> None:
        self._store = store
        self._batch_write = batch_write
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        #: The items that are being written.
        self._batch: list[_Waiting] = []
        self._led = False
        self._lent: PoolProxiedConnection | None = None

    def commit(self, item: T) -> Any:
        """Return the answer after the commit; raises StoreError, which may be about another item of the batch."""
        mine = _Waiting(item)
        try:
            if (called := self._join(mine)) is not None:
                called.acquire()
            if mine.leads:
                self._lead(mine)
        finally:
            if mine.leads or mine.error is not None:
                self._leave(mine)
        if isinstance(mine.error, DatabaseMoved):
            raise DatabaseMoved(str(mine.error))
        if mine.error is not None:
            raise StoreError(str(mine.error), transient=True)
        return mine.answer

    def _join(self, mine: _Waiting) -> threading.Lock | None:
        """Take the lead and return None, or enter the queue and return a lock that is released to go on."""
        with self._lock:
            if not self._led:
                self._led = mine.leads = True
                return None
            mine.called = threading.Lock()
            mine.called.acquire()
            self._queue.append(mine)
            return mine.called

    def _lead(self, mine: _Waiting) -> None:
        with self._lock:
            self._batch = [mine, *itertools.islice(self._queue, MOST - 1)]
            for _ in self._batch[1:]:
                self._queue.popleft()
        try:
            answers = self._write([waiting.item for waiting in self._batch])
            for waiting, answer in zip(self._batch, answers, strict=True):
                waiting.set_answer(answer)
        except Exception as error:
            if not isinstance(error, StoreError):
                logger.exception("a batch cannot be written: kind=%s", type(self._batch_write).__name__)
            for waiting in self._batch:
                waiting.error = error

    def _write(self, items: Sequence[T]) -> list[Any]:
        """Write items in one transaction, on a connection that is kept from one commit to the next."""
        with self._store.turn():
            lent = self._take_kept() or self._store.checkout()
            try:
                return self._store.write_batch(lent, self._batch_write, items)
            finally:
                # Also after a lock timeout: the next leader must not wait for another connection.
                if lent.is_valid:
                    self._lent = lent
                if self._store.closed:
                    self.close()

    def close(self) -> None:
        """Return the kept connection to the pool; a commit that is using it returns it when done."""
        lent = self._take_kept()
        if lent is not None:
            lent.close()

    def _take_kept(self) -> PoolProxiedConnection | None:
        """Take the kept connection exclusively: closing one that another thread uses would crash the process."""
        with self._lock:
            lent, self._lent = self._lent, None
            return lent

    def _leave(self, mine: _Waiting) -> None:
        """Hand the lead over and signal all of the batch; a thread that does not lead leaves the queue."""
        with self._lock:
            if not mine.leads:
                if mine in self._queue:
                    self._queue.remove(mine)
                return
            batch, self._batch = self._batch, []
            following = self._queue[0] if self._queue else None
            if following is not None:
                following.leads = True
                self._queue.popleft()
            else:
                self._led = False
            mine.leads = False
            for waiting in (*batch[1:], *([] if following is None else [following])):
                if waiting.called is not None and waiting.called.locked():
                    waiting.called.release()
