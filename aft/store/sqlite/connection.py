"""The SQLite connection that aft lends to activities: counted while open, and watched for changes of its state."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import partial, wraps
from typing import Any, TypeVar

from aft.store.access import Access

#: The savepoint in which an activity works.
WORK = "aft_work"
#: The beginnings of statements that do not change the connection's state. ``CREATE`` may make a temporary table.
_HARMLESS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
_LONGEST = max(map(len, _HARMLESS))
#: Temporary objects that shadow, or are triggered by, a table of aft's; tables last, after what belongs to them.
_SHADOWS = (
    "SELECT type, name FROM sqlite_temp_master "
    "WHERE tbl_name LIKE 'aft!_%' ESCAPE '!' AND type IN ('trigger', 'view', 'table') ORDER BY type = 'table'"
)
#: Methods that change a connection without a statement; ``setconfig`` since Python 3.12.
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

#: Other methods of a connection, and of a cursor, that are checked with ``Access``.
_END = ("commit", "rollback", "__exit__")
_USE = ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall", "__next__")
#: Seconds to wait for a statement that another thread of the activity may have under way.
PATIENCE = 1.0

#: Reads texts that are not UTF-8, too: a damaged one must not fail a statement that reads others with it.
LENIENT = partial(str, encoding="utf-8", errors="replace")

T = TypeVar("T")


class UnusableReason(Enum):
    """The way in which an activity left its connection unusable."""

    #: The activity ended the transaction that its work began in.
    ENDED = auto()
    #: The database has ended the transaction by itself, and nothing of it remains.
    LOST = auto()
    #: An operation on the connection has not ended.
    UNFINISHED = auto()


class SqliteCursor(sqlite3.Cursor):
    """A cursor that checks each use with the ``Access`` of its connection."""

    connection: SqliteConnection


class SqliteConnection(sqlite3.Connection):
    """A connection that aft lends to activities.

    It is counted as open until SQLite has closed it: SQLite may be at work on the file while it closes it, and a
    process that forks at that time gives its child a SQLite that waits for ever, or assumes a lock that is not held.

    While it is watched, SQLite reports every statement, however it was executed. There is no reset of all that may be
    set for a connection (pragmas, attached files, temporary tables), and opening another one costs as much as an
    activity; so only a connection that was changed is closed.

    SQLite can end a transaction by itself (``ON CONFLICT ROLLBACK``, a full disk, an interrupt), and would commit each
    further statement at once. So statements outside a transaction are refused while it is watched: SQLite raises
    "interrupted".

    Methods that may call Python while SQLite is at work are restricted to permitted threads, one at a time: SQLite has
    a lock of its own, and two threads could deadlock on that lock and Python's.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.access = Access(nested=True)

    counted: set[object] | None = None
    #: Whether its state was changed while it was watched.
    changed = False
    #: Whether it refused a statement, because its transaction had ended before.
    refused = False
    #: Whether it was closed.
    was_closed = False
    #: Whether an activity works on it.
    _at_work = False
    #: Whether a statement of another thread was interrupted because it took too long, and has not ended even so.
    _was_cut_off = _is_busy = False
    #: The limits before they were changed.
    _limits: dict[int, int]
    #: The trace callback of the activity, besides ours.
    _tracer: Callable[[str], object] | None = None

    def cursor(self, factory: Any = None) -> Any:
        """Make a cursor; raises DefinitionError if this thread may not use the connection.

        Other threads get one only while an activity works on the connection: only then its uses have to be checked.
        """
        self.access.check()
        return super().cursor(factory or (SqliteCursor if self._at_work else sqlite3.Cursor))

    def execute(self, *given: Any) -> Any:
        """Execute a statement on a checked cursor; sqlite3 itself would make another kind of cursor."""
        return self.cursor().execute(*given)

    def executemany(self, *given: Any) -> Any:
        """Execute a statement for each of several rows, on a checked cursor."""
        return self.cursor().executemany(*given)

    def executescript(self, *given: Any) -> Any:
        """Execute several statements on a checked cursor; sqlite3 commits before."""
        return self.cursor().executescript(*given)

    def count(self, counted: set[object]) -> None:
        """Add a token of this connection to the set until it is closed."""
        self._token = object()
        self.counted = counted
        counted.add(self._token)

    def close(self) -> None:
        """Close it, and remove its token."""
        if self._at_work:
            self._close_results()  # else SQLite would close it only when the last of them is
        super().close()
        self.was_closed = True
        if self.counted is not None:
            self.counted.discard(self._token)

    def __del__(self) -> None:
        # A connection that is returned to a pool just as that is disposed of would not be closed otherwise.
        if self.counted is not None:
            self.close()

    # The work of an activity ------------------------------------------------------------------------------------

    def begin_work(self) -> None:
        """Make the savepoint, which does not exist in another transaction; any thread may use the connection now."""
        self.execute(f"SAVEPOINT {WORK}")
        self._at_work, self._was_cut_off = True, False
        self.access.open()

    def reclaim(self) -> None:
        """Permit only this thread; waits for a statement that another has under way, then interrupts it."""
        if not self.access.reclaim(PATIENCE):
            self.interrupt()
            self._was_cut_off = True
            self._is_busy = not self.access.reclaim(PATIENCE)

    def find_unusable_reason(self) -> UnusableReason | None:
        """Return why it is unusable: its transaction is over, or a statement does not end; None if it is usable."""
        if self._is_busy:
            return UnusableReason.UNFINISHED
        return None if self.was_closed or self.in_transaction else self._over()

    def _over(self) -> UnusableReason:
        if self._was_cut_off:
            return UnusableReason.UNFINISHED
        return (
            UnusableReason.ENDED if self.changed else UnusableReason.LOST
        )  # ending it on purpose takes a statement that was traced

    def end_work(self) -> UnusableReason | None:
        """Release the savepoint; returns how the connection was left unusable, None if it is usable."""
        left = self._do(f"RELEASE {WORK}")
        if left is None and self._was_cut_off:
            return UnusableReason.UNFINISHED
        if left is None and self.changed:
            left = self._drop_shadows()
        return left

    def _drop_shadows(self) -> UnusableReason | None:
        try:
            for kind, name in self.execute(_SHADOWS).fetchall():
                self.execute(f'DROP {kind} temp."{name}"')
        except sqlite3.Error:
            return UnusableReason.UNFINISHED
        return None

    def rollback_work(self) -> UnusableReason | None:
        """Roll back to the savepoint; returns how the connection was left unusable, None if it is usable."""
        return self._do(f"ROLLBACK TO {WORK}")

    def _do(self, statement: str) -> UnusableReason | None:
        """Execute a statement when no result is open any more.

        A result that was not read to its end, or an open blob, would keep the connection at an old snapshot as long as
        it is referenced. After an interrupt, SQLite refuses statements while there is one; then they are closed.
        """
        if self._is_busy:
            return UnusableReason.UNFINISHED
        self.interrupt()
        left = self._try(statement)
        if left is UnusableReason.UNFINISHED:
            self._close_results()
            left = self._try(statement)
        self._at_work = left is not None
        return left

    def _try(self, statement: str) -> UnusableReason | None:
        try:
            self.execute(statement)
        except sqlite3.Error as error:
            interrupted = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
            return UnusableReason.UNFINISHED if interrupted else self._over()
        return None

    def _close_results(self) -> None:
        for one in gc.get_referrers(self):  # milliseconds; each refers to its connection, and there is no list of them
            if isinstance(one, sqlite3.Cursor | sqlite3.Blob):
                with suppress(sqlite3.Error):  # another thread uses it just now
                    one.close()

    # What was changed -------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Detect changes of the connection inside the block; after it values are read as before."""
        self.changed = self.refused = False
        self._limits = {}
        self.text_factory = str
        super().set_trace_callback(self._notice)
        try:
            yield
        finally:
            if not (self.was_closed or self._is_busy):
                super().set_trace_callback(None)
                self._tracer = None
                if (self.isolation_level, self.row_factory, self.text_factory) != (None, None, str):
                    self.changed = True
                    self.row_factory = None
                self.text_factory = LENIENT
                self.reset_settings()

    def reset_settings(self) -> None:
        """Reset settings that would prevent writing."""
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
        """Set the activity's trace callback, besides ours."""
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
