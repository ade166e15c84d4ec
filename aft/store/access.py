"""Restricts a connection to the thread that took it from the pool, or to any thread while an activity works on it.

A thread that an activity has begun may outlast it. What it did on the connection then would be in no transaction, or
in that of another user. So it is refused: each use of a driver's connection goes through its ``Access``.

Who may run at the same time: the thread that has taken the connection, and any number of others. One of them uses it
at a time. The thread that takes it back first forbids further use and then waits for the use that is under way; later
ones are refused. A connection that another thread has used, or tried to, is closed when it is returned: that thread has
a reference, and could use it again during another activity. Not covered: a thread that has kept the driver's own
connection, and uses it for the first time while another activity works on it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import psycopg

from aft.errors import DefinitionError

#: Instead of a thread's number: no thread may use it.
_NOBODY = 0
_REFUSED = (
    "the transactional activity that this connection was lent to has ended, and what a thread of it does now is no "
    "part of its outcome: wait for its threads before it returns"
)


class Access:
    """Admits one permitted thread at a time to a connection; replaces the lock of a driver's connection."""

    def __init__(self, *, nested: bool) -> None:
        lock: Any = threading.RLock() if nested else threading.Lock()
        #: As with any lock, without the check.
        self.acquire, self.release = lock.acquire, lock.release
        #: The thread that may use it; None: any.
        self._only: int | None = threading.get_ident()
        #: The thread that opened it to others.
        self._owner: int | None = None
        #: Whether a thread that had not taken it has used it, or tried to.
        self.strayed = False

    def take(self) -> None:
        """Permit only this thread from now on."""
        self._only = threading.get_ident()

    def open(self) -> None:
        """Permit any thread; called by the thread that has taken it."""
        self._owner, self._only = self._only, None

    def reclaim(self, patience: float) -> bool:
        """Permit only this thread again, and wait for the use that is under way; False after ``patience`` seconds."""
        self.take()
        if ended := self.acquire(timeout=patience):
            self.release()
        return bool(ended)

    def leave(self) -> None:
        """Permit no thread."""
        self._only = _NOBODY

    def check(self) -> None:
        """Raise DefinitionError if this thread may not use it; records the use by a thread that has not taken it."""
        only, me = self._only, threading.get_ident()
        if only == me:
            return
        if only is not None:
            self.strayed = True
            raise DefinitionError(_REFUSED)
        if me != self._owner:
            self.strayed = True

    def __enter__(self) -> None:
        self.acquire()
        if self._only != threading.get_ident():
            try:
                self.check()
            except DefinitionError:
                self.release()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class PostgresqlConnection(psycopg.Connection[Any]):
    """A psycopg connection that checks each use with its ``Access``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.access = Access(nested=False)
        self.lock: Any = self.access  # psycopg takes it for each statement, and all else that is sent to the server

    def cursor(self, *given: Any, **named: Any) -> Any:
        """Make a cursor; raises DefinitionError if this thread may not use the connection."""
        self.access.check()
        return super().cursor(*given, **named)
