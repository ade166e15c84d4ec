"""How do many threads write at once? They share commits: whoever comes while one is under way joins the next.

A commit costs a round trip and a flush of the disk, whatever it holds; so what the threads of a process have to write
is written together. Nobody waits for company: a thread that finds no commit under way begins one at once, alone.

What is written is a :class:`BatchWrite`: plain data, and one statement that writes any number of them. It goes to the
driver itself, under SQLAlchemy's pool, because at this rate building and compiling statements would cost more than
executing them.

Who may run at the same time: any number of threads call ``commit``; of those with the same kind of deed, one *leads*.
It takes what is queued, writes it in one transaction, hands the lead to the first who came meanwhile, and gives
everybody their answer.
A deed that is refused (its guard finds no row) has an answer like any other, and the rest of its batch is written. A
batch that fails as a whole has not been written, or nobody knows: everybody is told so. Whoever brought a deed looks
whether it happened, and tries again alone: so one that cannot be written costs the others a second try only.

A crash before the commit leaves nothing of the batch, after it all; nobody has been told yet what was not committed.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sqlalchemy import PoolProxiedConnection

from aft.errors import DatabaseMoved, StoreError
from aft.telemetry import logger

if TYPE_CHECKING:
    from aft.store.engine import Store

#: Deeds that are written in one transaction, at the most.
MOST = 200

T = TypeVar("T", contravariant=True)


class BatchWrite(Protocol[T]):
    """A kind of write, of which one statement writes many; each has an answer, None: it was refused."""

    def statement(self, items: Sequence[T]) -> str:
        """The statement for PostgreSQL, one of few: each is prepared.

        It takes what ``spell`` makes, and returns rows of text that begin with the place of their item.
        """

    def spell(self, items: Sequence[T]) -> bytes:
        """Spell items as a JSON array."""

    def write_sqlite(self, connection: sqlite3.Connection, items: Sequence[T]) -> list[Any]:
        """Write all of these in the connection's transaction; SQLite has no statement that writes several tables."""


#: Stands for an error that nobody has had the time to make.
_INTERRUPTED = StoreError("a commit was interrupted", transient=True)


class _Waiting:
    """One who has something to write, until it is written or has the lead."""

    __slots__ = ("answer", "called", "error", "item", "leads")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.answer: Any = None
        #: Until it is told: nobody knows whether it was written.
        self.error: BaseException | None = _INTERRUPTED
        self.leads = False
        #: A lock as a bell: held until somebody lets it go. Only who has to wait needs one.
        self.called: threading.Lock | None = None

    def told(self, answer: Any) -> None:
        self.answer, self.error = answer, None


class Committer(Generic[T]):
    """Writes the deeds of one kind, of one process, to one database. Thread-safe.

    An exception from outside (Ctrl-C) may come between any two steps. So whoever takes part is in ``_queue`` or in
    ``_batch`` until it was called, and whoever leads calls all of its batch and hands over, whatever happens.
    """

    def __init__(self, store: Store, deed: BatchWrite[T]) -> None:
        self._store = store
        self._deed = deed
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        #: Whose deeds are being written.
        self._batch: list[_Waiting] = []
        self._led = False
        self._lent: PoolProxiedConnection | None = None

    def commit(self, item: T) -> Any:
        """Return the answer when it has committed; raises StoreError, which may be about another's deed."""
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
        """Take the lead, or get into the line; then what is returned is let go when it is time to go on."""
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
                waiting.told(answer)
        except Exception as error:
            if not isinstance(error, StoreError):
                logger.exception("a deed cannot be written: deed=%s", type(self._deed).__name__)
            for waiting in self._batch:
                waiting.error = error

    def _write(self, items: Sequence[T]) -> list[Any]:
        """Write in one transaction, on a connection that is kept from one commit to the next."""
        with self._store.turn():
            lent = self._take_kept() or self._store.lend()
            try:
                return self._store.write_deeds(lent, self._deed, items)
            finally:
                # Also after a row that somebody has locked: whoever leads next must not queue up for another one.
                if lent.is_valid:
                    self._lent = lent
                if self._store.closed:
                    self.close()

    def close(self) -> None:
        """Let go of the connection, if nobody is using it; else whoever is does."""
        lent = self._take_kept()
        if lent is not None:
            lent.close()

    def _take_kept(self) -> PoolProxiedConnection | None:
        """Nobody else has it then: a connection that is closed while it is used ends the process."""
        with self._lock:
            lent, self._lent = self._lent, None
            return lent

    def _leave(self, mine: _Waiting) -> None:
        """Hand the lead over and call everybody of the batch, or, not leading, get out of the line."""
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
