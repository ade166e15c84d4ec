"""Which thread may use a connection? The one that has taken it; while an activity works on it, any thread.

A thread that an activity has begun may outlast it. What it does on the connection then would be in no transaction, or
in somebody else's. So it is refused, whichever way it comes there: each use of a driver's connection goes through its
``Access``.

Who may run at the same time: the thread that has taken the connection, and any number of others. One of them uses it
at a time. Whoever takes it back first says so and then waits for the use that is under way; all that come later are
refused. A connection that another thread has used, or tried to, is closed when it is returned: that thread knows it,
and may come again while somebody else works on it. What is left: a thread that has kept the connection of the driver
itself, and uses it for the first time while another activity works on it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import psycopg

from aft.errors import DefinitionError

#: Instead of the number of a thread: nobody has it.
_NOBODY = 0
_REFUSED = (
    "the transactional activity that this connection was lent to has ended, and what a thread of it does now is no "
    "part of its outcome: wait for its threads before it returns"
)


class Access:
    """Lets one thread at a time use a connection, if it may; stands for the lock of a driver's connection."""

    def __init__(self, *, nested: bool) -> None:
        lock: Any = threading.RLock() if nested else threading.Lock()
        #: As with any lock, and without asking whether one may.
        self.acquire, self.release = lock.acquire, lock.release
        #: The thread that may; None: any.
        self._only: int | None = threading.get_ident()
        #: The thread that lets others use it.
        self._owner: int | None = None
        #: Whether a thread has used it, or tried to, that had not taken it.
        self.strayed = False

    def take(self) -> None:
        """Let nobody but this thread use it from now on."""
        self._only = threading.get_ident()

    def open(self) -> None:
        """Let any thread use it; by whoever has taken it."""
        self._owner, self._only = self._only, None

    def take_back(self, patience: float) -> bool:
        """Take it again, and wait for the use that is under way; False if that lasts longer."""
        self.take()
        if ended := self.acquire(timeout=patience):
            self.release()
        return bool(ended)

    def leave(self) -> None:
        """Let nobody use it."""
        self._only = _NOBODY

    def check(self) -> None:
        """Raise DefinitionError if this thread may not use it; else note that it does, or is about to."""
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
    """A connection of psycopg's that is used by those who may."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.access = Access(nested=False)
        self.lock: Any = self.access  # of each statement, and of whatever else is said to the server

    def cursor(self, *given: Any, **named: Any) -> Any:
        """Make a cursor, for one who may use it."""
        self.access.check()
        return super().cursor(*given, **named)
