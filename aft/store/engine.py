"""How does aft talk to its database? Through transactions that say whether they read or write.

``Store`` is thread-safe. ``read()`` and ``write()`` each give one connection in one transaction, committed at the
end of the block, rolled back if it raises. On SQLite a write begins ``IMMEDIATE``: a deferred one that reads first
and writes then can be refused half-way; this one waits its turn at the beginning.

No exception of SQLAlchemy or of a driver leaves a block: each becomes a :class:`~aft.errors.StoreError`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from aft.errors import ConfigError, StoreError

#: Seconds a SQLite connection waits for another process's write.
SQLITE_BUSY = 30
#: Seconds to wait for a connection to PostgreSQL, and for a free one in the pool.
CONNECT_TIMEOUT = 10

_WRITES = "aft_writes"


class Store:
    """One database. Making a Store connects to nothing."""

    def __init__(self, url: str, *, pool_size: int = 20) -> None:
        self._url = parse_url(url)
        self.engine = _make_engine(self._url, pool_size)

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
                self.engine.connect().execution_options(**{_WRITES: writes}) as connection,
                connection.begin(),
            ):
                yield connection
        except exc.SQLAlchemyError as error:
            raise self.explain(error) from error

    def explain(self, error: exc.SQLAlchemyError) -> StoreError:
        """Say in one line what went wrong, and whether it may pass."""
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        if "no such table" in text or 'relation "aft_' in text:
            return StoreError(f"the database {self.url!r} has no aft tables; run `aft db upgrade`")
        return StoreError(f"the database {self.url!r} refused: {text}", transient=is_transient(error))

    def close(self) -> None:
        """Let go of every connection. Harmless twice."""
        self.engine.dispose()


def is_transient(error: exc.SQLAlchemyError) -> bool:
    """Tell whether the same statement may succeed later: lost connections, locks, a full pool, a full disk."""
    if isinstance(error, exc.TimeoutError):
        return True
    if isinstance(error, exc.DBAPIError):
        return error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InterfaceError)
    return False


def parse_url(text: str) -> URL:
    """Read a database URL, or raise ConfigError that says what would be right."""
    hint = "write 'sqlite:///aft.db' or 'postgresql+psycopg://user@host/database' (AFT_DATABASE_URL)"
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise ConfigError(f"{text!r} is not a database URL; {hint}") from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigError("a SQLite database in memory cannot keep a promise; name a file: 'sqlite:///aft.db'")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise ConfigError(f"aft does not know the database {url.drivername!r}; {hint}")
    return url


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
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=CONNECT_TIMEOUT,
        connect_args={"connect_timeout": CONNECT_TIMEOUT, "application_name": "aft"},
        isolation_level="READ COMMITTED",
    )


def _prepare_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite chooses the kind.
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
