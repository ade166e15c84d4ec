"""A connection to SQLite that knows whether it is open, and whether it is still as it was when it was opened."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import wraps
from typing import Any, TypeVar

from aft.store.access import Access

#: The savepoint in which an activity works.
WORK = "aft_work"
#: What a statement begins with that changes nothing about its connection. ``CREATE`` may make a temporary table.
_HARMLESS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
_LONGEST = max(map(len, _HARMLESS))
#: Temporary objects that are found, or called, where a table of aft's is meant; those that belong to a table before it.
_SHADOWS = (
    "SELECT type, name FROM sqlite_temp_master "
    "WHERE tbl_name LIKE 'aft!_%' ESCAPE '!' AND type IN ('trigger', 'view', 'table') ORDER BY type = 'table'"
)
#: What changes a connection without a statement; ``setconfig`` since Python 3.12.
_CHANGE = (
    "blobopen",
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "enable_load_extension",
    "set_authorizer",
    "set_progress_handler",
    "setconfig",
)

#: What else is done with a connection, or with a cursor, by those who may use it.
_END = ("commit", "rollback", "__exit__")
_USE = ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall", "__next__")
#: Seconds that a statement is waited for which another thread of the activity's may have under way.
PATIENCE = 1.0

T = TypeVar("T")


class Left(Enum):
    """How an activity left the connection that it worked on, if not well."""

    #: The transaction that the work began in was ended.
    ENDED = auto()
    #: The database has ended it by itself, and nothing of it remains.
    LOST = auto()
    #: Something that was begun on the connection has not ended.
    UNFINISHED = auto()


class SqliteCursor(sqlite3.Cursor):
    """A cursor for those who may use its connection."""

    connection: SqliteConnection


class SqliteConnection(sqlite3.Connection):
    """A connection that aft lends to activities.

    It is counted as open until SQLite has closed it: SQLite may be at work on the file while it closes it, and a
    process that forks in that moment gives its child a SQLite that waits for ever, or takes a lock for held that nobody
    holds.

    While it is watched, SQLite tells of every statement, whichever way it was given. Nothing takes back all that one
    may have set for the connection (pragmas, attached files, temporary tables), and opening another one costs as much
    as an activity; so only one that was changed is closed.

    SQLite ends a transaction by itself (``ON CONFLICT ROLLBACK``, a full disk, an interrupt), and would commit each
    further statement at once. So what is in no transaction is refused while it is watched: SQLite says "interrupted".

    Whatever may call Python while SQLite is at work is done by those only who may use the connection, one at a time:
    SQLite has a lock of its own, and two threads would wait for each other's, of SQLite and of Python.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.access = Access(nested=True)

    counted: set[object] | None = None
    #: Whether somebody changed it while it was watched.
    changed = False
    #: Whether it refused a statement, because its transaction had ended before.
    refused = False
    #: Whether somebody closed it.
    was_closed = False
    #: Whether an activity works on it.
    _at_work = False
    #: Whether another thread of the activity's had something under way for too long, and has not ended it even so.
    _was_cut_off = _is_busy = False
    #: The limits before somebody set others.
    _limits: dict[int, int]
    #: Who wants to be told of its statements, besides us.
    _tracer: Callable[[str], object] | None = None

    def cursor(self, factory: Any = None) -> Any:
        """Make a cursor, for one who may use it.

        Only while an activity works on the connection may another thread get one: only then it is one that asks.
        """
        self.access.check()
        return super().cursor(factory or (SqliteCursor if self._at_work else sqlite3.Cursor))

    def execute(self, *given: Any) -> Any:
        """Execute a statement, if one may; sqlite3 itself would make another kind of cursor."""
        return self.cursor().execute(*given)

    def executemany(self, *given: Any) -> Any:
        """Execute a statement for each of several rows, if one may."""
        return self.cursor().executemany(*given)

    def executescript(self, *given: Any) -> Any:
        """Execute several statements, if one may; sqlite3 commits before."""
        return self.cursor().executescript(*given)

    def count(self, counted: set[object]) -> None:
        """Be a member of the set for as long as the connection is open."""
        self._token = object()
        self.counted = counted
        counted.add(self._token)

    def close(self) -> None:
        """Close it, and be counted no more."""
        if self._at_work:
            self._close_results()  # else SQLite would close it only when the last of them is
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
        self._at_work, self._was_cut_off = True, False
        self.access.open()

    def take_back(self) -> None:
        """Let nobody but this thread use it: a statement that another has under way is waited for, then interrupted."""
        if not self.access.take_back(PATIENCE):
            self.interrupt()
            self._was_cut_off = True
            self._is_busy = not self.access.take_back(PATIENCE)

    def hopeless(self) -> Left | None:
        """Tell whether its transaction is over: SQLite begins no other one by itself. One that was closed refuses."""
        if self._is_busy:
            return Left.UNFINISHED
        return None if self.was_closed or self.in_transaction else self._over()

    def _over(self) -> Left:
        if self._was_cut_off:
            return Left.UNFINISHED
        return Left.ENDED if self.changed else Left.LOST  # what ends it on purpose is a statement that was noticed

    def end_work(self) -> Left | None:
        """Leave the savepoint, and tell how the connection was left; None: well."""
        left = self._do(f"RELEASE {WORK}")
        if left is None and self._was_cut_off:
            return Left.UNFINISHED
        if left is None and self.changed:
            left = self._drop_shadows()
        return left

    def _drop_shadows(self) -> Left | None:
        try:
            for kind, name in self.execute(_SHADOWS).fetchall():
                self.execute(f'DROP {kind} temp."{name}"')
        except sqlite3.Error:
            return Left.UNFINISHED
        return None

    def take_back_work(self) -> Left | None:
        """Go back to the savepoint, and tell how the connection was left; None: well."""
        return self._do(f"ROLLBACK TO {WORK}")

    def _do(self, statement: str) -> Left | None:
        """Execute it when nothing is read any more.

        A result that nobody has read to its end, or a blob that is open, would keep the connection where the database
        was then, so long as somebody knows it. After an interrupt, SQLite refuses what is said while there is one.
        """
        if self._is_busy:
            return Left.UNFINISHED
        self.interrupt()
        left = self._try(statement)
        if left is Left.UNFINISHED:
            self._close_results()
            left = self._try(statement)
        self._at_work = left is not None
        return left

    def _try(self, statement: str) -> Left | None:
        try:
            self.execute(statement)
        except sqlite3.Error as error:
            interrupted = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
            return Left.UNFINISHED if interrupted else self._over()
        return None

    def _close_results(self) -> None:
        for one in gc.get_referrers(self):  # milliseconds; each of them knows its connection, and nobody knows them all
            if isinstance(one, sqlite3.Cursor | sqlite3.Blob):
                with suppress(sqlite3.Error):  # another thread uses it just now
                    one.close()

    # What was changed -------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice what is changed inside the block; after it values are read as before."""
        self.changed = self.refused = False
        self._limits = {}
        super().set_trace_callback(self._notice)
        try:
            yield
        finally:
            if not (self.was_closed or self._is_busy):
                super().set_trace_callback(None)
                self._tracer = None
                if (self.isolation_level, self.row_factory, self.text_factory) != (None, None, str):
                    self.changed = True
                    self.row_factory, self.text_factory = None, str
                self.loosen()

    def loosen(self) -> None:
        """Take back what would keep one from writing."""
        if self.changed and not (self.was_closed or self._is_busy):
            super().set_authorizer(None)
            super().set_progress_handler(None, 0)
            for category, limit in self._limits.items():
                super().setlimit(category, limit)
            self._try("PRAGMA query_only = OFF")

    def setlimit(self, category: int, limit: int, /) -> int:
        """Set a limit of SQLite's; returns the one before."""
        before = super().setlimit(category, limit)
        self.changed = True
        self._limits.setdefault(category, before)
        return before

    def set_trace_callback(self, trace_callback: Callable[[str], object] | None) -> None:
        """Have somebody told of the statements, besides us."""
        self._tracer = trace_callback

    def _notice(self, statement: str) -> None:
        if self.refused or not self.in_transaction:
            self.refused = True
            self.interrupt()
        elif not statement[:_LONGEST].upper().startswith(_HARMLESS):
            self.changed = True
        if self._tracer is not None:
            self._tracer(statement)


def _noticing(change: Callable[..., T]) -> Callable[..., T]:
    @wraps(change)
    def noticing(self: SqliteConnection, *given: Any, **named: Any) -> T:
        self.changed = True
        return change(self, *given, **named)

    return noticing


def _asking(use: Callable[..., T]) -> Callable[..., T]:
    @wraps(use)
    def asking(self: SqliteConnection, *given: Any, **named: Any) -> T:
        with self.access:
            return use(self, *given, **named)

    return asking


def _asking_its_connection(use: Callable[..., T]) -> Callable[..., T]:
    @wraps(use)
    def asking(self: SqliteCursor, *given: Any, **named: Any) -> T:
        with self.connection.access:
            return use(self, *given, **named)

    return asking


for _name in _CHANGE:
    if hasattr(sqlite3.Connection, _name):
        setattr(SqliteConnection, _name, _asking(_noticing(getattr(sqlite3.Connection, _name))))
for _name in _END:
    setattr(SqliteConnection, _name, _asking(getattr(sqlite3.Connection, _name)))
for _name in _USE:
    setattr(SqliteCursor, _name, _asking_its_connection(getattr(sqlite3.Cursor, _name)))
