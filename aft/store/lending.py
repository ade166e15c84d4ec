"""A connection while an activity works on it: its transaction, and what of it must be as before when aft goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg.adapt import AdaptersMap
from sqlalchemy import Connection, exc

from aft.errors import DefinitionError, StoreError
from aft.store.sqlite import WORK, SqliteConnection

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
#: Takes back what was set for the session, also by SET LOCAL: aft's tables are found, and are its own.
_RESET = "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL"
#: PostgreSQL's states for a savepoint that is not there, and for no transaction.
_NOT_THERE = ("3B001", "25P01")


class Lent(Protocol):
    """A connection of a driver's that an activity works on, in a savepoint: it is not there in another transaction."""

    #: Whether somebody changed it while it was watched; then it is nobody else's any more.
    changed: bool

    @property
    def was_closed(self) -> bool:
        """Whether somebody closed it; one that was lost is something else."""

    def begin_work(self) -> None:
        """Make the savepoint."""

    def watched(self) -> AbstractContextManager[None]:
        """Notice what is changed inside the block; after it values are read and written as before."""

    def end_work(self) -> bool:
        """Leave the savepoint; False if it is not there."""

    def take_back_work(self) -> bool:
        """Go back to the savepoint; False if it is not there."""


@contextmanager
def keep_open(connection: Connection, idle_at_work: str, idle: str) -> Iterator[None]:
    """Refuse to end the transaction of a connection inside the block.

    SQLAlchemy takes a transaction that could not be ended for ended. So its connection is closed: the database takes
    back what was done in it, and DefinitionError leaves the block, whatever became of the first one; StoreError if the
    connection had been lost before. Nothing can refuse what a driver is told to do by itself: that is noticed after the
    block, and has the same end, but what was committed so remains.

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
            yield
    except Exception:
        _end(connection, kept, lent.take_back_work)
        raise
    except BaseException:
        _end(connection, kept, None)  # Ctrl-C
        raise
    _end(connection, kept, lent.end_work)


@dataclass
class _KeptOpen:
    """Says of a connection that its transaction must not be ended, and what became of it when somebody tried."""

    lent: Lent
    over: bool = False
    refused: DefinitionError | StoreError | None = None


def refuse_to_end(connection: Connection) -> None:
    """Raise if the transaction must not be ended; heard before it is."""
    # Not among what is known of the connection itself: of one that was lost nothing is.
    kept: _KeptOpen | None = connection.get_execution_options().get(_KEPT_OPEN)
    if kept is None or kept.over:
        return
    if connection.invalidated and not kept.lent.was_closed:
        kept.refused = StoreError("the connection to the database was lost while it worked", transient=True)
    else:
        kept.refused = DefinitionError(_ENDED)
    raise kept.refused


def _end(connection: Connection, kept: _KeptOpen, end: Callable[[], bool] | None) -> None:
    """Let the transaction be ended again; raise if it is not the one any more in which the work began."""
    kept.over = True
    if kept.refused is None and end is not None:
        lost = connection.closed or connection.invalidated
        if kept.lent.was_closed or not (lost or end()):
            kept.refused = DefinitionError(f"{_ENDED}; what its driver was told to commit remains")
    if kept.refused is not None:
        if not connection.closed:
            connection.invalidate()
        raise kept.refused


class LentPostgresql:
    """A connection to PostgreSQL.

    The server forgets what was set for its session; of what was set on the object of the driver it does not know.
    """

    def __init__(self, connection: Connection, driver: psycopg.Connection[Any], idle_at_work: str, idle: str) -> None:
        self._connection = connection
        self._driver = driver
        self._begin = f"SET LOCAL {idle_at_work}; SAVEPOINT {WORK}"
        self._end = f"RELEASE SAVEPOINT {WORK}; {_RESET}; SET LOCAL {idle}"
        self.changed = False

    @property
    def was_closed(self) -> bool:
        """Whether somebody closed it; one that was lost is something else."""
        return self._driver.closed and not self._driver.broken

    def begin_work(self) -> None:
        """Make the savepoint."""
        self._connection.exec_driver_sql(self._begin)

    def end_work(self) -> bool:
        """Leave the savepoint; False if it is not there."""
        try:
            self._connection.exec_driver_sql(self._end)
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) in _NOT_THERE:
                return False
            raise
        return True

    def take_back_work(self) -> bool:
        """Go back to the savepoint; False if it is not there."""
        try:
            self._driver.execute(f"ROLLBACK TO SAVEPOINT {WORK}")
        except psycopg.Error as error:
            return error.sqlstate not in _NOT_THERE
        return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice what is changed inside the block; after it values are read and written as before."""
        driver, adapters = self._driver, self._driver.adapters
        driver._adapters = AdaptersMap(adapters)  # a copy, of what is registered for it
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
