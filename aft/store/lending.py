"""A connection while an activity works on it: its transaction, and what of it must be as before when aft goes on."""

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
from aft.store.far_times import refuse_far_times
from aft.store.sqlite import PATIENCE, WORK, Left, SqliteConnection

#: Where somebody else than aft has worked on a connection, what is known of it.
WORKED_ON = "aft_worked_on"
#: The option of a connection whose transaction must not be ended by whoever works on it.
_KEPT_OPEN = "aft_kept_open"
_ENDED = (
    "a transactional activity ended the transaction of its connection, which aft commits with the outcome: "
    "call commit() and rollback() of aft.session() itself, or neither"
)
#: What of psycopg's connection decides how rows are read.
_FACTORIES = ("row_factory", "cursor_factory", "server_cursor_factory")
#: Takes back what was set for the session, also by SET LOCAL: aft's tables are found, before temporary ones of their
#: names, and are its own.
_RESET = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT set_config("
    "'search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true)"
)
#: PostgreSQL's states for a savepoint that is not there, and for no transaction.
_NOT_THERE = ("3B001", "25P01")


#: What an activity did wrong.
_WRONG = {
    Left.ENDED: f"{_ENDED}; what its driver was told to commit remains",
    Left.LOST: (
        "SQLite itself has ended the transaction of a transactional activity, as it does at OR ROLLBACK or on a full "
        "disk; nothing of it remains"
    ),
    Left.UNFINISHED: (
        "a transactional activity left its connection in the middle of something: what it begins there, as with "
        "cursor.stream(), cursor.copy(), pipeline() or transaction() of its driver, must have ended when it returns"
    ),
}


class Lent(Protocol):
    """A connection of a driver's that an activity works on, in a savepoint: it is not there in another transaction."""

    #: Whether somebody changed it while it was watched; then it is nobody else's any more.
    changed: bool
    #: Whether it refused a statement, because the transaction had ended before.
    refused: bool

    @property
    def was_closed(self) -> bool:
        """Whether somebody closed it; one that was lost is something else."""

    def begin_work(self) -> None:
        """Make the savepoint; from now on any thread may use the connection."""

    def take_back(self) -> None:
        """Let nobody but this thread use the connection from now on; what another has under way is waited for."""

    def watched(self) -> AbstractContextManager[None]:
        """Notice what is changed inside the block; after it values are read and written as before."""

    def loosen(self) -> None:
        """Take back what would keep one from writing, before the savepoint is left."""

    def hopeless(self) -> Left | None:
        """Tell why nothing can be done on it any more; None: something can. Asked while somebody works on it."""

    def end_work(self) -> Left | None:
        """Leave the savepoint, and tell how the connection was left; None: well."""

    def take_back_work(self) -> Left | None:
        """Go back to the savepoint, and tell how the connection was left; None: well."""


class Spoilt(Exception):
    """Raised when nothing of what an activity did can be committed; ``error`` is what it has failed with."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def keep_open(connection: Connection, idle_at_work: str, idle: str) -> Iterator[Lent]:
    """Refuse to end the transaction of a connection inside the block.

    SQLAlchemy takes a transaction that could not be ended for ended. So its connection is closed: the database takes
    back what was done in it, and Spoilt leaves the block, whatever became of the first exception; StoreError if the
    connection had been lost before. Nothing can refuse what a driver is told to do by itself: that is noticed after the
    block, and has the same end, but what was committed so remains.

    A connection on which nothing can be done any more is closed as soon as that is noticed: SQLite has ended its
    transaction by itself, or it waits for somebody to read on. What the block raises leaves it then, as nothing of its
    work remains; Spoilt with what the database said if that was only the refusal to go on, or if it raises nothing.

    What is set in the block for the connection itself ends when it is returned: a role or a tenant, locks, temporary
    tables, pragmas. How its driver reads and writes values is as before when the block has ended, as are the settings
    of PostgreSQL; how long it may do nothing, inside the block and after it, is said as settings.
    """
    driver: Any = connection.connection.driver_connection
    sqlite = isinstance(driver, SqliteConnection)
    lent: Lent = driver if sqlite else LentPostgresql(connection, driver, idle_at_work, idle)
    connection.info[WORKED_ON] = lent
    kept = _KeptOpen(lent)
    connection.execution_options(**{_KEPT_OPEN: kept})
    lent.begin_work()
    try:
        with described_as_before(connection), lent.watched():
            yield lent
    except Exception as raised:
        _end(connection, kept, lent.take_back_work, raised)
        raise
    except BaseException:
        kept.over = True
        _drop(connection)  # Ctrl-C: nobody knows what it was at
        raise
    _end(connection, kept, lent.end_work, None)


@dataclass
class _KeptOpen:
    """Says of a connection that its transaction must not be ended, and what became of it when somebody tried."""

    lent: Lent
    over: bool = False
    #: What the activity has failed with, whatever it raises.
    refused: DefinitionError | StoreError | None = None
    #: What it has failed with unless it raises something of its own: the connection was closed because of this.
    hopeless: Exception | None = None


def _kept(connection: Connection | None) -> _KeptOpen | None:
    # Not among what is known of the connection itself: of one that was lost nothing is.
    kept: _KeptOpen | None = None if connection is None else connection.get_execution_options().get(_KEPT_OPEN)
    return None if kept is None or kept.over else kept


def refuse_to_end(connection: Connection) -> None:
    """Raise if the transaction must not be ended; heard before it is."""
    if (kept := _kept(connection)) is None:
        return
    if kept.hopeless is not None:
        raise kept.hopeless
    if connection.invalidated and not kept.lent.was_closed:
        kept.refused = StoreError("the connection to the database was lost while it worked", transient=True)
    else:
        kept.refused = DefinitionError(_ENDED)
    raise kept.refused


def drop_hopeless(connection: Connection, *_: object) -> None:
    """Close a connection that is worked on if nothing can be done on it any more; heard before savepoints are.

    A statement would wait for ever, or be in no transaction. On one that was closed SQLAlchemy does nothing.
    """
    kept = _kept(connection)
    if kept is None or connection.closed or connection.invalidated:
        return
    if (left := kept.lent.hopeless()) is not None:
        kept.hopeless = DefinitionError(_WRONG[left])
        _drop(connection)


def drop_after_error(context: ExceptionContext) -> None:
    """Have it closed if an error has left it so; heard when a statement has failed."""
    kept, error = _kept(context.connection), context.sqlalchemy_exception
    if kept is not None and error is not None and (left := kept.lent.hopeless()) is not None:
        kept.hopeless = kept.hopeless or (DefinitionError(_WRONG[left]) if kept.lent.refused else error)
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


def _drop(connection: Connection) -> None:
    if not connection.closed:
        connection.invalidate()


def _end(connection: Connection, kept: _KeptOpen, end: Callable[[], Left | None], raised: Exception | None) -> None:
    """Let the transaction be ended again; raise if it is not the one any more in which the work began."""
    kept.over = True
    if kept.refused is None and kept.hopeless is None:
        if (connection.closed or connection.invalidated) and not kept.lent.was_closed:
            raise StoreError("the connection to the database was lost while it worked", transient=True) from raised
        left = Left.ENDED if kept.lent.was_closed else end()
        if left is None:
            return
        wrong = DefinitionError(_WRONG[left])
        kept.refused, kept.hopeless = (wrong, None) if left is Left.ENDED else (None, wrong)
    _drop(connection)
    if isinstance(kept.refused, StoreError):
        raise kept.refused
    if kept.refused is not None:
        raise Spoilt(kept.refused)
    if kept.hopeless is not None and (raised is None or _tells_only_that(kept, raised.__cause__ or raised)):
        raise Spoilt(kept.hopeless)


def _tells_only_that(kept: _KeptOpen, raised: BaseException) -> bool:
    """Whether it tells only that nothing can be done any more, and not why."""
    if isinstance(raised, exc.PendingRollbackError):
        return True
    of_the_database = isinstance(raised, exc.SQLAlchemyError | psycopg.Error | sqlite3.Error)
    return of_the_database and (kept.lent.refused or not isinstance(kept.hopeless, DefinitionError))


class LentPostgresql:
    """A connection to PostgreSQL.

    The server forgets what was set for its session; of what was set on the object of the driver it does not know.
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
        """Whether somebody closed it; one that was lost is something else."""
        return self._driver.closed and not self._driver.broken

    def begin_work(self) -> None:
        """Make the savepoint."""
        self._connection.exec_driver_sql(self._begin)
        self._driver.access.open()

    def take_back(self) -> None:
        """Let nobody but this thread use it; what another has under way for long is noticed when the work ends."""
        self._driver.access.take_back(PATIENCE)

    def loosen(self) -> None:
        """Nothing: the savepoint can be left whatever was set, and what was is taken back with that."""

    def hopeless(self) -> Left | None:
        """Tell whether it waits for somebody to read on, or to write: a result that is streamed, copied, listened to.

        Whoever asks for the driver's lock waits then; what keeps it, after an exception, is its traceback.
        """
        if not self._driver.lock.acquire(timeout=PATIENCE):
            return Left.UNFINISHED
        self._driver.lock.release()
        server = self._driver.pgconn
        waits = server.transaction_status == TransactionStatus.ACTIVE and not server.pipeline_status
        return Left.UNFINISHED if waits else None

    def _is_unfinished(self) -> bool:
        driver = self._driver
        return self.hopeless() is not None or bool(driver.pgconn.pipeline_status or driver._num_transactions)

    def end_work(self) -> Left | None:
        """Leave the savepoint, and tell how the connection was left; None: well."""
        if self._is_unfinished():
            return Left.UNFINISHED
        try:
            self._connection.exec_driver_sql(self._end)
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) in _NOT_THERE:
                return Left.ENDED
            raise
        return None

    def take_back_work(self) -> Left | None:
        """Go back to the savepoint, and tell how the connection was left; None: well."""
        if self._is_unfinished():
            return Left.UNFINISHED
        try:
            self._driver.execute(f"ROLLBACK TO SAVEPOINT {WORK}")
        except psycopg.Error as error:
            return Left.ENDED if error.sqlstate in _NOT_THERE else None
        return None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice what is changed inside the block; after it values are read and written as before."""
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
    """What the attributes of an object are; of those that are a list, what is in it."""
    return {
        name: [*map(id, value)] if isinstance(value, list | deque) else id(value)
        for name, value in vars(driver).items()
    }


@contextmanager
def described_as_before(connection: Connection) -> Iterator[None]:
    """Put back what SQLAlchemy knows of a connection: what anybody noted of it, and options of its statements."""
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
