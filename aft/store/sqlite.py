"""A connection to SQLite that knows whether it is open, and whether it is still as it was when it was opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakSet

#: The savepoint in which an activity works.
WORK = "aft_work"
#: What a statement begins with that changes nothing about its connection. ``CREATE`` may make a temporary table.
_HARMLESS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
_LONGEST = max(map(len, _HARMLESS))
#: What changes a connection without a statement, or reads on after the block; ``setconfig`` since Python 3.12.
_CHANGE = (
    "blobopen",
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "enable_load_extension",
    "set_authorizer",
    "set_progress_handler",
    "set_trace_callback",
    "setconfig",
    "setlimit",
)

T = TypeVar("T")


class SqliteConnection(sqlite3.Connection):
    """A connection that aft lends to activities.

    It is counted as open until SQLite has closed it: SQLite may be at work on the file while it closes it, and a
    process that forks in that moment gives its child a SQLite that waits for ever, or takes a lock for held that nobody
    holds.

    While it is watched, SQLite tells of every statement, whichever way it was given. Nothing takes back all that one
    may have set for the connection (pragmas, attached files, temporary tables), and opening another one costs as much
    as an activity; so only one that was changed is closed. A result that nobody has read to its end would keep it where
    the database was then, so long as somebody knows the result: it ends with the block.
    """

    counted: set[object] | None = None
    #: Whether somebody changed it while it was watched.
    changed = False
    #: Whether somebody closed it.
    was_closed = False
    #: Those that were made while it was watched.
    _cursors: WeakSet[sqlite3.Cursor] | None = None

    def count(self, counted: set[object]) -> None:
        """Be a member of the set for as long as the connection is open."""
        self._token = object()
        self.counted = counted
        counted.add(self._token)

    def close(self) -> None:
        """Close it, and be counted no more."""
        super().close()
        self.was_closed = True
        if self.counted is not None:
            self.counted.discard(self._token)

    def __del__(self) -> None:
        # A connection that came back to a pool in the moment it was disposed of is closed by nobody else.
        if self.counted is not None:
            self.close()

    # The work of an activity ------------------------------------------------------------------------------------

    def begin_work(self) -> None:
        """Make a savepoint that is not there in another transaction."""
        self.execute(f"SAVEPOINT {WORK}")

    def end_work(self) -> bool:
        """Leave the savepoint; False if it is not there."""
        return self._does(f"RELEASE {WORK}")

    def take_back_work(self) -> bool:
        """Go back to the savepoint; False if it is not there."""
        return self._does(f"ROLLBACK TO {WORK}")

    def _does(self, statement: str) -> bool:
        try:
            self.execute(statement)
        except sqlite3.Error:
            return False
        return True

    # What was changed -------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice what is changed inside the block; after it values are read as before, and no result is half read."""
        self.changed = False
        self._cursors = WeakSet()
        super().set_trace_callback(self._notice)
        try:
            yield
        finally:
            cursors, self._cursors = [*self._cursors], None
            if not self.was_closed:
                super().set_trace_callback(None)
                for cursor in cursors:
                    cursor.close()
                if (self.isolation_level, self.row_factory, self.text_factory) != (None, None, str):
                    self.changed = True
                    self.row_factory, self.text_factory = None, str

    def cursor(self, *given: Any, **named: Any) -> Any:
        """Make a cursor; one that is made while the connection is watched is closed after it."""
        cursor = super().cursor(*given, **named)
        if self._cursors is not None:
            self._cursors.add(cursor)
        return cursor

    def _notice(self, statement: str) -> None:
        if not statement[:_LONGEST].upper().startswith(_HARMLESS):
            self.changed = True


def _noticing(change: Callable[..., T]) -> Callable[..., T]:
    @wraps(change)
    def noticing(self: SqliteConnection, *given: Any, **named: Any) -> T:
        self.changed = True
        return change(self, *given, **named)

    return noticing


for _name in _CHANGE:
    if hasattr(sqlite3.Connection, _name):
        setattr(SqliteConnection, _name, _noticing(getattr(sqlite3.Connection, _name)))
