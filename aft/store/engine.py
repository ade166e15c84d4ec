"""``Store``, the database of a process: transactions that read or write, batches, and prepared queries.

``Store`` is thread-safe. ``write()`` gives one connection in one transaction, committed at the end of the block, rolled
back if it raises; ``read()`` one that only reads, in a transaction on SQLite. There a write begins ``IMMEDIATE``: a
deferred one that reads first and writes later can be refused half-way; this one waits its turn at the beginning.

No exception of SQLAlchemy or of a driver leaves a block: each becomes a :class:`~aft.errors.StoreError`. A SQLite file
that was deleted, moved or replaced meanwhile (``store.sqlite.file_identity``) is neither read nor written:
DatabaseMoved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, ExceptionContext, PoolProxiedConnection, event, exc
from sqlalchemy.pool import ConnectionPoolEntry

from aft import after_fork
from aft.clock import Clock, SystemClock
from aft.store.batch.committer import BatchWrite, Committer
from aft.store.batch.execute_batch import write_postgresql, write_sqlite
from aft.store.batch.statements import PreparedQuery, Rows, execute_sqlite, query_postgresql, query_sqlite
from aft.store.checkout import CheckedOutConnection, keep_open
from aft.store.connect import (
    IDLE_AT_WORK,
    SQLITE_BUSY,
    WRITES,
    format_url,
    idle_for,
    idle_limit,
    limit_waits,
    make_drivers,
    make_engine,
    parse_url,
)
from aft.store.explain import LOCKED, explain, explain_text, wrap
from aft.store.postgres.transport import find_exposure
from aft.store.sqlite.connection import SqliteConnection
from aft.store.sqlite.file_identity import FileIdentity, resolve
from aft.store.sqlite.forks import PoolGuard
from aft.store.sqlite.write_queue import turns

#: PostgreSQL's states that leave a connection usable: a lock timeout, a deadlock, a violated constraint. After others
#: its prepared statements may be for tables that have changed.
_HARMLESS = (LOCKED, "40P01", "23")

T = TypeVar("T")
Item = TypeVar("Item")


class Store:
    """One database. Making a Store connects to nothing. ``lease`` is how long, in seconds, its user owns runs."""

    def __init__(self, url: str, *, pool_size: int = 20, clock: Clock | None = None, lease: float = 30.0) -> None:
        self._url = parse_url(url)
        #: Where the database is, for people to read; without its password.
        self.url = format_url(self._url)
        #: ``postgresql`` or ``sqlite``.
        self.dialect = self._url.get_backend_name()
        #: The SQLite file, if it is one.
        self.file = self._url.database if self.dialect == "sqlite" else None
        #: How others could read the traffic to the database; None if they cannot.
        self.exposure = find_exposure(self._url)
        self._pool_size, self._lease = pool_size, lease
        self._ticks = (clock or SystemClock()).ticks
        self._identity = None if self.file is None else FileIdentity(self.file, self.url)
        #: The key of this file's write queue.
        self._real_file = "" if self.file is None else resolve(self.file)
        self._make_engines()
        self._pool_guard: PoolGuard | None = None
        if self.file is not None:
            self._pool_guard = PoolGuard(self.engine, self._real_file, self.url, self._close_idle)
        #: Execution options of connections that read (False) and that write (True).
        self._options: dict[bool, dict[str, Any]] = {False: {WRITES: False}, True: {WRITES: True}}
        if self.file is None:
            self._options[False]["isolation_level"] = "AUTOCOMMIT"
        self._idle = idle_limit(lease)
        self._lost_at = float("-inf")
        self._closed = False
        #: What the driver raises.
        self._driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        after_fork.register(self)

    def _make_engines(self) -> None:
        self.engine = make_engine(self._url, self._pool_size, self._lease)
        #: The pool of connections for batches and prepared queries.
        self._drivers = self.engine if self.file is not None else make_drivers(self._url, self._lease)
        if self._identity is not None:
            self._identity.watch(self.engine, self._real_file)
        event.listen(self.engine, "handle_error", self._notice_loss, insert=True)  # before it may be called one
        for engine in {self.engine, self._drivers}:
            event.listen(engine, "checkin", self._close_returned)
        #: Share commits among the threads of this process.
        self._committers: dict[BatchWrite[Any], Committer[Any]] = {}

    @property
    def closed(self) -> bool:
        """Whether the store was closed, or the process is about to fork: then no connection is kept."""
        return self._closed or (self._pool_guard is not None and self._pool_guard.closing)

    def check_file(self) -> None:
        """Raise DatabaseMoved if the SQLite file in use was deleted, moved or replaced; else return."""
        if self._identity is not None:
            self._identity.check()

    def has_been_connected_for(self, seconds: float) -> bool:
        """Return whether no connection was lost in that time; a server's answers right after an outage may mislead."""
        return self._ticks() - self._lost_at >= seconds

    def _notice_loss(self, context: ExceptionContext) -> None:
        if context.is_disconnect:
            self._lost_at = self._ticks()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that only reads.

        On PostgreSQL each statement is its own transaction: at READ COMMITTED it would see others' commits in a longer
        one as well, and a process that is paused between two statements has no transaction that the server would end.
        """
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self, *, patient: bool = True) -> Iterator[Connection]:
        """Give a connection in a transaction that writes; it has committed when the block has ended.

        PostgreSQL ends a transaction that is idle for seconds (``connect.idle_limit``). One that is not ``patient``
        waits only a moment for a row that somebody has locked, who may be paused: then StoreError says ``locked``.
        """
        with self._transaction(writes=True) as connection:
            yield connection if patient else limit_waits(connection)

    @contextmanager
    def lend(self, connection: Connection) -> Iterator[CheckedOutConnection]:
        """Lend a transaction's connection to an activity, inside the block; there it may be idle for a minute.

        In the block it has locked no row of aft's. After it, it may be idle only for seconds again: others would wait
        for the rows it locks then, should our connection fall silent before the COMMIT. Code that ends the transaction
        inside the block gets DefinitionError, and the block raises WorkLost: nothing of its work remains but what the
        driver itself was told to commit. What it sets for the session is reset before others get the connection.
        """
        with keep_open(connection, idle_for(IDLE_AT_WORK), idle_for(self._idle)) as lent:
            yield lent

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        self.check_file()
        try:
            with (
                self.turn() if writes else nullcontext(),
                self.engine.connect().execution_options(**self._options[writes]) as connection,
                nullcontext() if self._pool_guard is None else self._pool_guard.in_use(),
            ):
                with connection.begin() as transaction:
                    yield connection
                    if not transaction.is_active:
                        transaction.commit()  # raises: SQLAlchemy ignores a transaction that was ended elsewhere
                if writes and self._identity is not None:
                    # Before it is returned: the last connection that is closed removes the -wal file.
                    self._identity.check_written(connection.info)
        except exc.SQLAlchemyError as error:
            raise explain(error, self.url, self.file) from error
        except UnicodeEncodeError as error:
            if writes:
                raise  # what is written may be a user's, and so may be the error
            raise explain_text(error, self.url) from error

    # Batches ----------------------------------------------------------------------------------------------------

    def commit(self, batch_write: BatchWrite[Item], item: Item) -> Any:
        """Write an item in a commit that other threads may share; returns its answer after the commit."""
        if self.file is not None:
            turns[self._real_file].check(self.url)
        committer = self._committers.get(batch_write)
        if committer is None:
            committer = self._committers.setdefault(batch_write, Committer(self, batch_write))
        return committer.commit(item)

    def checkout(self) -> PoolProxiedConnection:
        """Lend a connection for batches; ``write_batch`` invalidates it if it is not usable any more."""
        self.check_file()
        try:
            return self._drivers.raw_connection()
        except exc.SQLAlchemyError as error:
            raise explain(error, self.url, self.file) from error
        except self._driver_error as error:
            raise explain(wrap(error, self.engine.dialect), self.url, self.file) from error

    def write_batch(
        self, lent: PoolProxiedConnection, batch_write: BatchWrite[Item], items: Sequence[Item]
    ) -> list[Any]:
        """Write items in one transaction of their own, on the driver itself; returns their answers. Inside ``turn``.

        Raises StoreError; then none of them was written, or, if the connection was lost, the outcome is unknown.
        """
        if self.file is None:
            return self._drive(lent, lambda driver: write_postgresql(driver, _prepared(lent), batch_write, items))
        return self._drive(lent, lambda driver: self._checked(lent, lambda: write_sqlite(driver, batch_write, items)))

    def write_now(self, batch_write: BatchWrite[Item], items: Sequence[Item]) -> list[Any]:
        """Write items at once, in one transaction of their own; returns their answers."""
        with self.turn(), self._lent() as lent:
            return self.write_batch(lent, batch_write, items)

    def query(self, questions: Sequence[tuple[PreparedQuery, str]]) -> list[Rows]:
        """Execute queries on the driver itself, in one round trip; returns the rows of each. Raises StoreError."""
        with self._lent() as lent:
            if self.file is None:
                return self._drive(lent, lambda connection: query_postgresql(connection, _prepared(lent), questions))
            return self._drive(lent, lambda connection: query_sqlite(connection, questions))

    def execute(self, words: PreparedQuery, given: str) -> Rows:
        """Execute one statement that writes, on the driver itself, in a transaction of its own; returns its rows.

        Raises StoreError; then nothing was written, or, if the connection was lost, the outcome is unknown.
        """
        if self.file is None:
            return self.query([(words, given)])[0]
        with self.turn(), self._lent() as lent:
            return self._drive(lent, lambda driver: self._checked(lent, lambda: execute_sqlite(driver, words, given)))

    @contextmanager
    def _lent(self) -> Iterator[PoolProxiedConnection]:
        lent = self.checkout()
        try:
            yield lent
        finally:
            if lent.is_valid:  # else it was ended
                lent.close()

    def _checked(self, lent: PoolProxiedConnection, work: Callable[[], T]) -> T:
        self.check_file()
        answer = work()
        if self._identity is not None:
            self._identity.check_written(lent.info)
        return answer

    def _drive(self, lent: PoolProxiedConnection, work: Callable[[Any], T]) -> T:
        """Call ``work`` with the driver's own connection; its errors become StoreError, and most invalidate it."""
        driver = lent.driver_connection
        if isinstance(driver, SqliteConnection):
            driver.access.take()  # those who share commits share it, too
        try:
            return work(driver)
        except self._driver_error as error:
            lost = self.engine.dialect.is_disconnect(cast(Any, error), cast(Any, lent), None)
            if lost:
                self._lost_at = self._ticks()
            if lost or not str(getattr(error, "sqlstate", None)).startswith(_HARMLESS):
                lent.invalidate()
            raise explain(wrap(error, self.engine.dialect, lost=lost), self.url, self.file) from error
        except UnicodeEncodeError as error:
            raise explain_text(error, self.url) from error
        except BaseException:
            lent.invalidate()  # Ctrl-C, perhaps: its state is unknown
            raise

    def turn(self) -> AbstractContextManager[None]:
        """Wait for a turn to write to SQLite before taking a connection (``sqlite.write_queue``, ``sqlite.forks``)."""
        return _NO_TURN if self.file is None else self._turn()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._identity is not None:
            self._identity.check_unopened()  # the turn makes a file behind the link
        turn = turns[self._real_file]
        turn.take(SQLITE_BUSY, self.url)
        try:
            yield
        finally:
            turn.release()

    def close(self) -> None:
        """Close every connection; one that is in use, or is taken later, is closed when it is returned. Idempotent."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for committer in list(self._committers.values()):
            committer.close()
        for engine in {self.engine, self._drivers}:  # each once: a pool made in between would be lost
            engine.dispose()

    def forget_in_child(self) -> None:
        """After a fork: drop every connection, which is the parent's, and make new engines.

        New engines, because a thread of the parent may have been initializing the old one with its first connection.
        """
        for engine in (self.engine, self._drivers):
            engine.dispose(close=False)
        self._make_engines()
        if self._pool_guard is not None:
            self._pool_guard.watch(self.engine)

    def _close_returned(self, connection: Any, record: ConnectionPoolEntry) -> None:
        # In a pool that was disposed of it would stay open until it is collected.
        if self.closed:
            record.close()


#: PostgreSQL's writers wait for nobody.
_NO_TURN: AbstractContextManager[None] = nullcontext()


def _prepared(lent: PoolProxiedConnection) -> set[bytes]:
    """Return the names of the statements that are prepared on a connection."""
    known: set[bytes] = lent.info.setdefault("aft_prepared", set())
    return known
