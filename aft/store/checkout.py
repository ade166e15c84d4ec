"""Lends a transaction's connection to an activity, and restores the connection's state before aft goes on."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, ExceptionContext, exc

from aft.errors import DefinitionError, StoreError
from aft.store.access import PostgresqlConnection
from aft.store.postgres.far_times import refuse_far_times
from aft.store.sqlite.connection import PATIENCE, WORK, SqliteConnection, UnusableReason

#: The key, in a connection's info, of the ``CheckedOutConnection`` that an activity has worked on.
WORKED_ON = "aft_worked_on"
#: The option of a connection whose transaction must not be ended by the activity.
_KEPT_OPEN = "aft_kept_open"
_ENDED = (
    "a transactional activity ended the transaction of its connection, which aft commits with the outcome: "
    "call commit() and rollback() of aft.session() itself, or neither"
)
#: The attributes of psycopg's connection that decide how rows are read.
_FACTORIES = ("row_factory", "cursor_factory", "server_cursor_factory")
#: Resets the session's settings, also those of SET LOCAL: aft's tables are found before temporary ones of the same
#: names, and with aft's role.
_RESET = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT set_config("
    "'search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true)"
)
#: PostgreSQL's states for a savepoint that does not exist, and for no transaction.
_NOT_THERE = ("3B001", "25P01")


#: The error message for each way in which an activity leaves its connection unusable.
_WRONG = {
    UnusableReason.ENDED: f"{_ENDED}; what its driver was told to commit remains",
    UnusableReason.LOST: (
        "SQLite itself has ended the transaction of a transactional activity, as it does at OR ROLLBACK or on a full "
        "disk; nothing of it remains"
    ),
    UnusableReason.UNFINISHED: (
        "a transactional activity left its connection in the middle of something: what it begins there, as with "
        "cursor.stream(), cursor.copy(), pipeline() or transaction() of its driver, must have ended when it returns"
    ),
}


class CheckedOutConnection(Protocol):
    """A driver's connection that an activity works on, in a savepoint, which does not exist in another transaction."""

    #: Whether its state was changed while it was watched; then it is not used again.
    changed: bool
    #: Whether it refused a statement, because the transaction had ended before.
    refused: bool

    @property
    def was_closed(self) -> bool:
        """Whether it was closed on purpose; a lost connection does not count."""

    def begin_work(self) -> None:
        """Make the savepoint; from now on any thread may use the connection."""

    def reclaim(self) -> None:
        """Permit only this thread to use the connection from now on; waits for a use that is under way."""

    def watched(self) -> AbstractContextManager[None]:
        """Detect changes of the connection inside the block; after it values are read and written as before."""

    def reset_settings(self) -> None:
        """Reset settings that would prevent writing, before the savepoint is left."""

    def find_unusable_reason(self) -> UnusableReason | None:
        """Return why the connection is unusable; None if it is usable. Called while an activity works on it."""

    def end_work(self) -> UnusableReason | None:
        """Release the savepoint; returns how the connection was left unusable, None if it is usable."""

    def rollback_work(self) -> UnusableReason | None:
        """Roll back to the savepoint; returns how the connection was left unusable, None if it is usable."""


class WorkLost(Exception):
    """Raised when nothing of an activity's work can be committed; ``error`` is the activity's failure."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def keep_open(connection: Connection, idle_at_work: str, idle: str) -> Iterator[CheckedOutConnection]:
    """Refuse to end the transaction of a connection inside the block.

    SQLAlchemy takes a transaction that could not be ended for ended. So its connection is closed: the database rolls
    back, and the block raises WorkLost, whatever happened to the first exception; StoreError if the connection had been
    lost before. A commit or rollback by the driver itself cannot be refused: it is detected after the block, and has
    the same end, but what was committed so remains.

    An unusable connection is closed as soon as that is detected: SQLite has ended its transaction by itself, or an
    operation on it is unfinished. Then an exception of the block leaves it as it is, as nothing of its work remains;
    WorkLost, with the database's error, if the exception was only the refusal to go on, or if there was none.

    What is set in the block for the connection itself ends when it is returned: a role or a tenant, locks, temporary
    tables, pragmas. How its driver reads and writes values is as before when the block has ended, as are the settings
    of PostgreSQL. ``idle_at_work`` and ``idle`` are the settings of the idle limit inside the block and after it.
    """
    driver: Any = connection.connection.driver_connection
    sqlite = isinstance(driver, SqliteConnection)
    lent: CheckedOutConnection = driver if sqlite else CheckedOutPostgresql(connection, driver, idle_at_work, idle)
    connection.info[WORKED_ON] = lent
    kept = _KeptOpen(lent)
    connection.execution_options(**{_KEPT_OPEN: kept})
    lent.begin_work()
    try:
        with described_as_before(connection), lent.watched():
            yield lent
    except Exception as raised:
        _end(connection, kept, lent.rollback_work, raised)
        raise
    except BaseException:
        kept.over = True
        _drop(connection)  # Ctrl-C: its state is unknown
        raise
    _end(connection, kept, lent.end_work, None)


@dataclass
class _KeptOpen:
    """Marks a connection whose transaction must not be ended, and records attempts to do so."""

    lent: CheckedOutConnection
    over: bool = False
    #: The activity's failure, whatever it raises.
    refused: DefinitionError | StoreError | None = None
    #: Its failure unless it raises an exception of its own: the reason for which the connection was closed.
    unusable: Exception | None = None


def _kept(connection: Connection | None) -> _KeptOpen | None:
    # Not in the connection's info: a lost connection has none.
    kept: _KeptOpen | None = None if connection is None else connection.get_execution_options().get(_KEPT_OPEN)
    return None if kept is None or kept.over else kept


def refuse_to_end(connection: Connection) -> None:
    """Raise if the transaction must not be ended; a listener that is called before it is."""
    if (kept := _kept(connection)) is None:
        return
    if kept.unusable is not None:
        raise kept.unusable
    if connection.invalidated and not kept.lent.was_closed:
        kept.refused = StoreError("the connection to the database was lost while it worked", transient=True)
    else:
        kept.refused = DefinitionError(_ENDED)
    raise kept.refused


def drop_hopeless(connection: Connection, *_: object) -> None:
    """Close an activity's connection if it is unusable; a listener that is called before savepoint statements.

    A statement would wait for ever, or be in no transaction. On a closed connection SQLAlchemy does nothing.
    """
    kept = _kept(connection)
    if kept is None or connection.closed or connection.invalidated:
        return
    if (left := kept.lent.find_unusable_reason()) is not None:
        kept.unusable = DefinitionError(_WRONG[left])
        _drop(connection)


def drop_after_error(context: ExceptionContext) -> None:
    """Have an activity's connection closed if an error has left it unusable; a listener for failed statements."""
    kept, error = _kept(context.connection), context.sqlalchemy_exception
    if kept is not None and error is not None and (left := kept.lent.find_unusable_reason()) is not None:
        kept.unusable = kept.unusable or (DefinitionError(_WRONG[left]) if kept.lent.refused else error)
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


def _drop(connection: Connection) -> None:
    if not connection.closed:
        connection.invalidate()


def _end(
    connection: Connection, kept: _KeptOpen, end: Callable[[], UnusableReason | None], raised: Exception | None
) -> None:
    """Permit the end of the transaction again; raises if it is not the one in which the work began."""
    kept.over = True
    if kept.refused is None and kept.unusable is None:
        if (connection.closed or connection.invalidated) and not kept.lent.was_closed:
            raise StoreError("the connection to the database was lost while it worked", transient=True) from raised
        left = UnusableReason.ENDED if kept.lent.was_closed else end()
        if left is None:
            return
        wrong = DefinitionError(_WRONG[left])
        kept.refused, kept.unusable = (wrong, None) if left is UnusableReason.ENDED else (None, wrong)
    _drop(connection)
    if isinstance(kept.refused, StoreError):
        raise kept.refused
    if kept.refused is not None:
        raise WorkLost(kept.refused)
    if kept.unusable is not None and (raised is None or _is_only_the_refusal(kept, raised.__cause__ or raised)):
        raise WorkLost(kept.unusable)


def _is_only_the_refusal(kept: _KeptOpen, raised: BaseException) -> bool:
    """Return whether an exception is only the refusal to go on, and not its reason."""
    if isinstance(raised, exc.PendingRollbackError):
        return True
    of_the_database = isinstance(raised, exc.SQLAlchemyError | psycopg.Error | sqlite3.Error)
    return of_the_database and (kept.lent.refused or not isinstance(kept.unusable, DefinitionError))


class CheckedOutPostgresql:
    """A PostgreSQL connection that an activity works on.

    The server resets the settings of its session; changes of the driver's object are undone, or detected, here.
    """

    def __init__(self, connection: Connection, driver: PostgresqlConnection, idle_at_work: str, idle: str) -> None:
        self._connection = connection
        self._driver = driver
        self._begin = f"SET LOCAL {idle_at_work}; SAVEPOINT {WORK}"
        self._end = f"RELEASE SAVEPOINT {WORK}; {_RESET}; SET LOCAL {idle}"
        self.changed = False
        self.refused = False

    @property
    def was_closed(self) -> bool:
        """Whether it was closed on purpose; a lost connection does not count."""
        return self._driver.closed and not self._driver.broken

    def begin_work(self) -> None:
        """Make the savepoint."""
        self._connection.exec_driver_sql(self._begin)
        self._driver.access.open()

    def reclaim(self) -> None:
        """Permit only this thread; a use that is under way for longer is detected when the work ends."""
        self._driver.access.reclaim(PATIENCE)

    def reset_settings(self) -> None:
        """Do nothing: the savepoint can be left whatever was set, and settings are reset with that."""

    def find_unusable_reason(self) -> UnusableReason | None:
        """Detect an unfinished operation: a result that is streamed or copied, or a wait for notifications.

        It holds the driver's lock; after an exception, the traceback keeps it alive.
        """
        if not self._driver.lock.acquire(timeout=PATIENCE):
            return UnusableReason.UNFINISHED
        self._driver.lock.release()
        server = self._driver.pgconn
        waits = server.transaction_status == TransactionStatus.ACTIVE and not server.pipeline_status
        return UnusableReason.UNFINISHED if waits else None

    def _is_unfinished(self) -> bool:
        driver = self._driver
        return self.find_unusable_reason() is not None or bool(
            driver.pgconn.pipeline_status or driver._num_transactions
        )

    def end_work(self) -> UnusableReason | None:
        """Release the savepoint; returns how the connection was left unusable, None if it is usable."""
        if self._is_unfinished():
            return UnusableReason.UNFINISHED
        try:
            self._connection.exec_driver_sql(self._end)
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) in _NOT_THERE:
                return UnusableReason.ENDED
            raise
        return None

    def rollback_work(self) -> UnusableReason | None:
        """Roll back to the savepoint; returns how the connection was left unusable, None if it is usable."""
        if self._is_unfinished():
            return UnusableReason.UNFINISHED
        try:
            self._driver.execute(f"ROLLBACK TO SAVEPOINT {WORK}")
        except psycopg.Error as error:
            return UnusableReason.ENDED if error.sqlstate in _NOT_THERE else None
        return None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Detect changes of the connection inside the block; after it values are read and written as before."""
        driver, adapters = self._driver, self._driver.adapters
        driver._adapters = AdaptersMap(adapters)  # a copy, of what is registered for it
        refuse_far_times(driver._adapters)
        before, known = dict(vars(driver)), _identities(driver)
        try:
            yield
        finally:
            self.changed = _identities(driver) != known
            driver._adapters = adapters
            for name in _FACTORIES:
                setattr(driver, name, before[name])


def _identities(driver: psycopg.Connection[Any]) -> dict[str, object]:
    """Return the identities of a connection's attributes; of lists, those of their items."""
    return {
        name: [*map(id, value)] if isinstance(value, list | deque) else id(value)
        for name, value in vars(driver).items()
    }


@contextmanager
def described_as_before(connection: Connection) -> Iterator[None]:
    """Restore a connection's info and execution options in SQLAlchemy after the block."""
    info, options = connection.info, connection.get_execution_options()
    noted = dict(info)
    try:
        yield
    finally:
        if not (connection.closed or connection.invalidated):
            info.clear()
            info.update(noted)
            now = connection.get_execution_options()
            if now is not options:
                connection.execution_options(**{name: options.get(name) for name in now if name != "isolation_level"})
