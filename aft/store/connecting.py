"""How is a database connected to? What its address may be, and what each connection is told first."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.pool import ConnectionPoolEntry
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random

from aft.errors import ConfigError
from aft.store.apart import watch_line
from aft.store.lending import WORKED_ON, Lent, refuse_to_end

if TYPE_CHECKING:
    import psycopg

#: Seconds a SQLite connection waits for another process's write.
SQLITE_BUSY = 30
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

#: Milliseconds that a batch of deeds waits for a row that somebody else has locked.
LOCK_PATIENCE = 500


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
    event.listen(engine, "commit", refuse_to_end)
    event.listen(engine, "rollback", refuse_to_end)
    return engine


def _make_plain_engine(url: URL, pool_size: int, lease: float) -> Engine:
    if url.drivername == "sqlite":
        engine = create_engine(
            url,
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
        pool_size=pool_size,
        max_overflow=MOST_OVERFLOW,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args=_POSTGRESQL,
        isolation_level="READ COMMITTED",
    )
    event.listen(engine, "connect", _preparing(lease))
    event.listen(engine, "checkin", _cleaning(lease))
    return engine


def make_drivers(url: URL, lease: float) -> Engine:
    """Make the connections on which deeds are written: each statement is a transaction, and is planned once."""
    engine = create_engine(
        url,
        pool_size=MOST_DRIVERS,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args={**_POSTGRESQL, "autocommit": True},
        # Nothing to be rolled back: whoever borrows one leaves no transaction behind.
        pool_reset_on_return=None,
    )
    event.listen(engine, "connect", _preparing(lease))
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


def _close_changed(connection: sqlite3.Connection | None, record: ConnectionPoolEntry) -> None:
    lent: Lent | None = record.info.pop(WORKED_ON, None)
    if lent is not None and connection is not None and lent.changed:
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
