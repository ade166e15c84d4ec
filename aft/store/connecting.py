"""How is a database connected to? What its address may be, and what each connection is told first."""

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
from aft.store.apart import watch_line
from aft.store.far_times import read_far_times
from aft.store.lending import WORKED_ON, Lent, drop_after_error, drop_hopeless, refuse_to_end
from aft.store.sqlite import SqliteConnection

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
#: Connections for deeds and questions: two are kept by those who share commits, the others are lent for one statement.
#: So a few serve many threads; whoever finds none waits, which is sooner over than connecting.
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
#: Seconds after which PostgreSQL ends a transaction of ours that does nothing, at the least and at the most: a process
#: that is paused, or whose line fell silent, must not keep its row locks, or nobody can rescue its runs. In between it
#: is the lease: nobody may rescue them earlier, and one that just got no CPU for a while goes on.
IDLE_LEAST, IDLE_MOST = 3.0, 10.0
#: The same for a transaction in which an activity works: between two statements it may be about something else.
IDLE_AT_WORK = 60

#: What is in the pool of transactions.
Pooled: TypeAlias = SqliteConnection | PostgresqlConnection

#: Milliseconds that a batch of deeds waits for a row that somebody else has locked.
LOCK_PATIENCE = 500


#: Options of a database URL whose values nobody needs to read.
_SECRET = ("pass", "secret", "token", "key")


def show(url: URL) -> str:
    """Spell a database URL for people to read: without passwords, wherever in it they are."""
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
    """Make the connections on which transactions are written and read."""
    engine = _make_plain_engine(url, pool_size, lease)
    for end in ("commit", "rollback"):
        event.listen(engine, end, refuse_to_end)
    for step in ("savepoint", "rollback_savepoint", "release_savepoint"):
        event.listen(engine, step, drop_hopeless)
    event.listen(engine, "handle_error", drop_after_error)
    event.listen(engine, "checkout", _take)
    event.listen(engine, "reset", _take_to_return)
    event.listen(engine, "checkin", _leave)
    return engine


def _make_plain_engine(url: URL, pool_size: int, lease: float) -> Engine:
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
    """Make the connections on which deeds are written: each statement is a transaction, and is planned once."""
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_size=MOST_DRIVERS,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args={**_POSTGRESQL, "autocommit": True},
        # Nothing to be rolled back: whoever borrows one leaves no transaction behind.
        pool_reset_on_return=None,
    )
    event.listen(engine, "connect", _preparing(lease))
    event.listen(engine, "connect", lambda connection, record: read_far_times(connection))
    event.listen(engine, "connect", _prepare_driver)
    return engine


def _prepare_driver(connection: psycopg.Connection[Any], record: Any) -> None:
    connection.execute("SET default_transaction_isolation = 'read committed'")
    # Deeds find every row by its key. A plan that was made while the tables were small must not go through them from
    # end to end once they are large.
    connection.execute("SET enable_seqscan = off")
    # Nor gather all that wait for their time, to find who is first.
    connection.execute("SET enable_bitmapscan = off")
    # Somebody may have locked one of many runs, and be paused: then the others are written without it.
    connection.execute(f"SET lock_timeout = '{LOCK_PATIENCE}ms'")


def idle_limit(lease: float) -> float:
    """Tell how many seconds a transaction of ours may do nothing."""
    return min(max(lease, IDLE_LEAST), IDLE_MOST)


def idle_for(seconds: float) -> str:
    """Spell the setting that ends a transaction which does nothing for so long."""
    return f"idle_in_transaction_session_timeout = '{seconds * 1000:.0f}ms'"


def _preparing(lease: float) -> Callable[[psycopg.Connection[Any], Any], None]:
    def prepare(connection: psycopg.Connection[Any], record: Any) -> None:
        watch_line(connection, f"SET {idle_for(idle_limit(lease))}")
        connection.commit()

    return prepare


def _take(connection: Pooled, record: ConnectionPoolEntry, proxy: Any) -> None:
    """Let the thread use a connection that takes it, unless another one was about to."""
    if connection.access.strayed:
        raise exc.DisconnectionError("a thread knows it that it was lent to before")
    connection.access.take()


def _take_to_return(connection: Pooled, record: ConnectionPoolEntry, state: Any) -> None:
    connection.access.take()  # some are shared by threads of aft's, and any of them may return it


def _leave(connection: Pooled | None, record: ConnectionPoolEntry) -> None:
    """Let nobody use a connection that is returned; one that other threads know is closed."""
    if connection is not None:
        connection.access.leave()
        if connection.access.strayed:
            record.close()


def _cleaning(lease: float) -> Callable[[psycopg.Connection[Any] | None, ConnectionPoolEntry], None]:
    """Make what returns a connection to the pool as it was when it was new; one that cannot be is closed.

    To connect anew each time would take an activity three times as long.
    """
    prepare = _preparing(lease)

    def clean(connection: psycopg.Connection[Any] | None, record: ConnectionPoolEntry) -> None:
        lent: Lent | None = record.info.pop(WORKED_ON, None)
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
    """Have another connection taken if this one is in a transaction: somebody still uses it whom it was lent to."""
    if connection.pgconn.transaction_status != IDLE:
        raise exc.DisconnectionError("it is in use")


def _close_changed(connection: sqlite3.Connection | None, record: ConnectionPoolEntry) -> None:
    lent: Lent | None = record.info.pop(WORKED_ON, None)
    if connection is not None and ((lent is not None and lent.changed) or connection.in_transaction):
        record.close()


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
    writes = connection.get_execution_options().get(WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
