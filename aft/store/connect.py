"""Connects to a database: checks its URL, makes the connection pools, and prepares each connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.pool import ConnectionPoolEntry
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random

from aft.errors import ConfigError
from aft.store.access import PostgresqlConnection
from aft.store.checkout import WORKED_ON, CheckedOutConnection, drop_after_error, drop_hopeless, refuse_to_end
from aft.store.postgres.dedicated_connection import watch_line
from aft.store.postgres.far_times import read_far_times
from aft.store.sqlite.connection import LENIENT, SqliteConnection

if TYPE_CHECKING:
    import psycopg

#: Seconds a SQLite connection waits for another process's write.
SQLITE_BUSY = 30
#: How libpq says that a connection is in no transaction.
IDLE = 0
#: Seconds to wait for a connection to PostgreSQL, and for a free one in the pool.
CONNECT_TIMEOUT = 10

#: Connections to PostgreSQL beyond those that are kept: each thread uses one at a time, and threads are counted.
MOST_OVERFLOW = 256
#: Connections for batches and prepared queries: two are kept by committers, the others are lent for one statement. So a
#: few serve many threads; a thread that finds none waits, which takes less time than connecting.
MOST_DRIVERS = 8

#: The option of a connection that says whether its transaction writes.
WRITES = "aft_writes"
#: A server that falls silent is noticed within half a minute.
_POSTGRESQL = {
    "connect_timeout": CONNECT_TIMEOUT,
    "application_name": "aft",
    "client_encoding": "utf8",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
#: Bounds, in seconds, of the time after which PostgreSQL ends an idle transaction of ours: a process that is paused, or
#: whose connection fell silent, must not keep its row locks, or its runs could not be rescued. In between it is the
#: lease: the runs may not be rescued earlier, and a process that just got no CPU for a while goes on.
IDLE_LEAST, IDLE_MOST = 3.0, 10.0
#: The same for a transaction in which an activity works: it may do other things between two statements.
IDLE_AT_WORK = 60

#: What is in the pool of transactions.
Pooled: TypeAlias = SqliteConnection | PostgresqlConnection

#: Milliseconds that a batch, or another write that is not patient, waits for a row that another transaction has locked.
LOCK_PATIENCE = 500


#: Parts of the names of URL options whose values are not shown.
_SECRET = ("pass", "secret", "token", "key")


def format_url(url: URL) -> str:
    """Format a database URL for people: without passwords, wherever in it they are."""
    hidden = {name: "***" for name in url.query if any(word in name.lower() for word in _SECRET)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


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
    if "conninfo" in url.query:
        raise ConfigError(f"a database URL says where it leads by itself, not by 'conninfo'; {hint}")
    return _anchor(url) if url.drivername == "sqlite" else url


def _anchor(url: URL) -> URL:
    """Make a SQLite file's path absolute, so that a process that changes its folder keeps its database."""
    if not url.database or ":memory:" in url.database or url.database.startswith("file:"):
        shown = "that" if "@" in str(url.database) or url.host else repr(f"sqlite:///{url.database or ''}")
        raise ConfigError(
            f"{shown} is not a file, and a database in memory cannot keep a promise; write 'sqlite:///aft.db'"
        )
    file = Path(url.database).absolute()
    if file.is_dir():
        raise ConfigError(f"{str(file)!r} is a folder; name a file in it: 'sqlite:///{file / 'aft.db'}'")
    return url.set(database=str(file))


def make_engine(url: URL, pool_size: int, lease: float) -> Engine:
    """Make the pool of connections for transactions."""
    engine = _make_engine(url, pool_size, lease)
    for end in ("commit", "rollback"):
        event.listen(engine, end, refuse_to_end)
    for step in ("savepoint", "rollback_savepoint", "release_savepoint"):
        event.listen(engine, step, drop_hopeless)
    event.listen(engine, "handle_error", drop_after_error)
    event.listen(engine, "checkout", _take)
    event.listen(engine, "reset", _take_to_return)
    event.listen(engine, "checkin", _leave)
    return engine


def _make_engine(url: URL, pool_size: int, lease: float) -> Engine:
    if url.drivername == "sqlite":
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_size=pool_size,
            max_overflow=-1,
            connect_args={"timeout": SQLITE_BUSY, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        event.listen(engine, "checkin", _close_changed)
        return engine
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=MOST_OVERFLOW,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args=_POSTGRESQL,
        isolation_level="READ COMMITTED",
    )
    event.listen(engine, "do_connect", lambda _, record, given, named: PostgresqlConnection.connect(*given, **named))
    event.listen(engine, "connect", _preparing(lease))
    event.listen(engine, "connect", lambda connection, record: read_far_times(connection))
    event.listen(engine, "checkin", _cleaning(lease))
    event.listen(engine, "checkout", _refuse_used)
    return engine


def make_drivers(url: URL, lease: float) -> Engine:
    """Make the pool of PostgreSQL connections for batches: each statement is a transaction, and is planned once."""
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_size=MOST_DRIVERS,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args={**_POSTGRESQL, "autocommit": True},
        # Nothing to be rolled back: its users leave no transaction behind.
        pool_reset_on_return=None,
    )
    event.listen(engine, "connect", _preparing(lease))
    event.listen(engine, "connect", lambda connection, record: read_far_times(connection))
    event.listen(engine, "connect", _prepare_driver)
    return engine


def _prepare_driver(connection: psycopg.Connection[Any], record: Any) -> None:
    connection.execute("SET default_transaction_isolation = 'read committed'")
    # Batches find every row by its key. A plan that was made while the tables were small must not scan them once they
    # are large.
    connection.execute("SET enable_seqscan = off")
    # Nor collect all waiting runs to find the first one.
    connection.execute("SET enable_bitmapscan = off")
    # A paused process may have locked one of many runs: then the others are written without it.
    connection.execute(f"SET lock_timeout = '{LOCK_PATIENCE}ms'")


def limit_waits(connection: Connection) -> Connection:
    """Let a transaction that has begun wait only a moment for each row that is locked; return its connection."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_PATIENCE}ms'")
    return connection


def idle_limit(lease: float) -> float:
    """Return the seconds for which a transaction of ours may be idle."""
    return min(max(lease, IDLE_LEAST), IDLE_MOST)


def idle_for(seconds: float) -> str:
    """Format the setting that ends a transaction which is idle for this many seconds."""
    return f"idle_in_transaction_session_timeout = '{seconds * 1000:.0f}ms'"


def _preparing(lease: float) -> Callable[[psycopg.Connection[Any], Any], None]:
    def prepare(connection: psycopg.Connection[Any], record: Any) -> None:
        watch_line(connection, f"SET {idle_for(idle_limit(lease))}")
        connection.commit()

    return prepare


def _take(connection: Pooled, record: ConnectionPoolEntry, proxy: Any) -> None:
    """Permit the thread that takes a connection to use it; one that another thread has a reference to is replaced."""
    if connection.access.strayed:
        raise exc.DisconnectionError("a thread knows it that it was lent to before")
    connection.access.take()


def _take_to_return(connection: Pooled, record: ConnectionPoolEntry, state: Any) -> None:
    connection.access.take()  # some are shared by threads of aft's, and any of them may return it


def _leave(connection: Pooled | None, record: ConnectionPoolEntry) -> None:
    """Permit no thread to use a returned connection; one that another thread has a reference to is closed."""
    if connection is not None:
        connection.access.leave()
        if connection.access.strayed:
            record.close()


def _cleaning(lease: float) -> Callable[[psycopg.Connection[Any] | None, ConnectionPoolEntry], None]:
    """Make the listener that resets a connection after an activity; one that cannot be reset is closed.

    A new connection each time would take an activity three times as long.
    """
    prepare = _preparing(lease)

    def clean(connection: psycopg.Connection[Any] | None, record: ConnectionPoolEntry) -> None:
        lent: CheckedOutConnection | None = record.info.pop(WORKED_ON, None)
        if lent is None or connection is None:
            return
        if lent.changed:
            record.close()
            return
        try:
            # The server forgets the statements that were prepared, the driver does not: it must not use them.
            connection.prepare_threshold = None
            connection.autocommit = True
            connection.execute("DISCARD ALL")
            prepare(connection, record)
            connection.autocommit = False
        except Exception:
            record.close()
        except BaseException:
            record.close()  # Ctrl-C
            raise

    return clean


def _refuse_used(connection: psycopg.Connection[Any], record: ConnectionPoolEntry, proxy: Any) -> None:
    """Make the pool take another connection if this one is in a transaction: a former activity still uses it."""
    if connection.pgconn.transaction_status != IDLE:
        raise exc.DisconnectionError("it is in use")


def _close_changed(connection: sqlite3.Connection | None, record: ConnectionPoolEntry) -> None:
    lent: CheckedOutConnection | None = record.info.pop(WORKED_ON, None)
    if connection is not None and ((lent is not None and lent.changed) or connection.in_transaction):
        record.close()


def _prepare_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite chooses the kind.
    connection.isolation_level = None
    connection.text_factory = LENIENT
    _use_wal(connection)
    # Erased values are overwritten, whatever SQLite was built with: `aft runs forget` promises that they are gone.
    for pragma in ("synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
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
    writes = connection.get_execution_options().get(WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
