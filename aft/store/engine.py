"""How does aft talk to its database? Through transactions that say whether they read or write.

``Store`` is thread-safe. ``read()`` and ``write()`` each give one connection in one transaction, committed at the
end of the block, rolled back if it raises. On SQLite a write begins ``IMMEDIATE``: a deferred one that reads first
and writes then can be refused half-way; this one waits its turn at the beginning.

No exception of SQLAlchemy or of a driver leaves a block: each becomes a :class:`~aft.errors.StoreError`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, exc, make_url
from sqlalchemy.pool import ConnectionPoolEntry
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random

from aft.clock import Clock, SystemClock
from aft.errors import ConfigError, NotMigrated, StoreError
from aft.store.turns import turns

if TYPE_CHECKING:
    import psycopg

#: Seconds a SQLite connection waits for another process's write.
SQLITE_BUSY = 30
#: Seconds to wait for a connection to PostgreSQL, and for a free one in the pool.
CONNECT_TIMEOUT = 10

#: Connections to PostgreSQL beyond those that are kept: each thread uses one at a time, and threads are counted.
MOST_OVERFLOW = 256

_WRITES = "aft_writes"
#: What SQLite says of troubles that may pass.
_SQLITE_PASSES = ("locked", "busy", "disk I/O error", "is full", "unable to open")
#: PostgreSQL's state for a server that is a standby, for now.
_READ_ONLY = "25006"
#: A server that falls silent is noticed within half a minute.
_POSTGRESQL = {
    "connect_timeout": CONNECT_TIMEOUT,
    "application_name": "aft",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
#: Seconds after which PostgreSQL ends a transaction of ours that does nothing: a paused process must not keep its
#: row locks, or nobody can rescue its runs. Transactional activities have to be quicker than this.
IDLE_IN_TRANSACTION = 60


class Store:
    """One database. Making a Store connects to nothing."""

    def __init__(self, url: str, *, pool_size: int = 20, clock: Clock | None = None) -> None:
        self._url = parse_url(url)
        self._ticks = (clock or SystemClock()).ticks
        self.engine = _make_engine(self._url, pool_size)
        self._lost_at = float("-inf")
        self._closed = False
        event.listen(self.engine, "handle_error", self._notice_loss)
        event.listen(self.engine, "checkin", self._close_returned)

    @property
    def url(self) -> str:
        """Where the database is, for people to read; without its password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def dialect(self) -> str:
        """``postgresql`` or ``sqlite``."""
        return self.engine.dialect.name

    @property
    def file(self) -> str | None:
        """The SQLite file, if it is one."""
        return self._url.database if self.dialect == "sqlite" else None

    def has_been_well_for(self, seconds: float) -> bool:
        """Tell whether no connection was lost in that time; what a server says right after it was away may mislead."""
        return self._ticks() - self._lost_at >= seconds

    def _notice_loss(self, context: ExceptionContext) -> None:
        if context.is_disconnect:
            self._lost_at = self._ticks()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection in a transaction that only reads."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection in a transaction that writes; it has committed when the block has ended."""
        with self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        try:
            with (
                self._turn() if writes else nullcontext(),
                self.engine.connect().execution_options(**{_WRITES: writes}) as connection,
                connection.begin(),
            ):
                yield connection
        except exc.SQLAlchemyError as error:
            raise self.explain(error) from error

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the turn to write to SQLite (``store.turns``)."""
        if self.file is None:
            yield
            return
        turn = turns[self.file]
        turn.take(SQLITE_BUSY, self.url)
        try:
            yield
        finally:
            turn.give()

    def explain(self, error: exc.SQLAlchemyError) -> StoreError:
        """Say in one line what went wrong, and whether it may pass."""
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        if "no such table: aft_" in text or (_sqlstate(error) == "42P01" and 'relation "aft_' in text):
            return NotMigrated(f"the database {self.url!r} has no aft tables; run `aft db upgrade`")
        return StoreError(f"the database {self.url!r} refused: {text}", transient=is_transient(error))

    def close(self) -> None:
        """Let go of every connection; one that is lent out, or asked for later, is closed when it comes back.

        Harmless twice.
        """
        self._closed = True
        self.engine.dispose()

    def _close_returned(self, connection: Any, record: ConnectionPoolEntry) -> None:
        # Into a pool that nobody looks after any more it would go open, until it is collected.
        if self._closed:
            record.close()


def is_transient(error: exc.SQLAlchemyError) -> bool:
    """Tell whether the same statement may succeed later: lost connections, locks, a full pool, a full disk."""
    if isinstance(error, exc.TimeoutError):
        return True
    if not isinstance(error, exc.DBAPIError):
        return False
    if error.connection_invalidated or _sqlstate(error) == _READ_ONLY:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return any(word in str(error.orig) for word in _SQLITE_PASSES)
    return isinstance(error, exc.OperationalError | exc.InterfaceError)


def _sqlstate(error: exc.SQLAlchemyError) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def parse_url(text: str) -> URL:
    """Read a database URL, or raise ConfigError that says what would be right."""
    hint = "write 'sqlite:///aft.db' or 'postgresql://user:password@host/database' (AFT_DATABASE_URL)"
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        shown = "that" if "@" in text else repr(text)  # it may hold a password
        raise ConfigError(f"{shown} is not a database URL; {hint}") from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise ConfigError(f"aft does not know the database {url.drivername!r}; {hint}")
    return _anchor(url) if url.drivername == "sqlite" else url


def _anchor(url: URL) -> URL:
    """Make a SQLite file's path absolute, so that a process that changes its folder keeps its database."""
    if not url.database or ":memory:" in url.database or url.database.startswith("file:"):
        shown = "that" if "@" in str(url.database) or url.host else repr(url.render_as_string())
        raise ConfigError(
            f"{shown} is not a file, and a database in memory cannot keep a promise; write 'sqlite:///aft.db'"
        )
    return url.set(database=str(Path(url.database).absolute()))


def _make_engine(url: URL, pool_size: int) -> Engine:
    if url.drivername == "sqlite":
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=-1,
            connect_args={"timeout": SQLITE_BUSY, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=MOST_OVERFLOW,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args=_POSTGRESQL,
        isolation_level="READ COMMITTED",
    )
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: psycopg.Connection[Any], record: Any) -> None:
    connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION}s'")
    connection.commit()


def _prepare_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite chooses the kind.
    connection.isolation_level = None
    _use_wal(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


@retry(
    retry=retry_if_exception(lambda error: isinstance(error, sqlite3.OperationalError) and "locked" in str(error)),
    stop=stop_after_delay(SQLITE_BUSY),
    wait=wait_random(0.005, 0.05),
    reraise=True,
)
def _use_wal(connection: sqlite3.Connection) -> None:
    # On a new file that several open at once this is refused without the busy timeout being waited for.
    connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
