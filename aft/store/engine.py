"""How does aft talk to its database? Through transactions that say whether they read or write.

``Store`` is thread-safe. ``write()`` gives one connection in one transaction, committed at the end of the block, rolled
back if it raises; ``read()`` one that only looks, in a transaction on SQLite. There a write begins ``IMMEDIATE``: a
deferred one that reads first and writes then can be refused half-way; this one waits its turn at the beginning.

No exception of SQLAlchemy or of a driver leaves a block: each becomes a :class:`~aft.errors.StoreError`. A SQLite file
that was deleted, moved or replaced meanwhile (``store.identity``) is neither read nor written: DatabaseMoved.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, ExceptionContext, PoolProxiedConnection, event, exc
from sqlalchemy.pool import ConnectionPoolEntry

from aft import forked
from aft.clock import Clock, SystemClock
from aft.errors import NotMigrated, StoreError
from aft.store.committer import BatchWrite, Committer
from aft.store.connecting import (
    IDLE_AT_WORK,
    SQLITE_BUSY,
    WRITES,
    idle_for,
    idle_limit,
    make_drivers,
    make_engine,
    parse_url,
    show,
)
from aft.store.driving import write_postgresql, write_sqlite
from aft.store.exposure import find_exposure
from aft.store.forking import PoolGuard
from aft.store.identity import FileIdentity, resolve
from aft.store.lending import Lent, keep_open
from aft.store.private import make_database
from aft.store.questions import Answer, PreparedQuery, ask_postgresql, ask_sqlite, tell_sqlite
from aft.store.sqlite import SqliteConnection
from aft.store.turns import turns

#: What SQLite says of troubles that may pass.
_SQLITE_PASSES = ("locked", "busy", "disk I/O error", "is full", "unable to open")
#: PostgreSQL's state for a row that somebody else has locked for longer than one waits.
LOCKED = "55P03"
#: PostgreSQL's states for what leaves a connection as it was: a row that somebody has locked, or that is there already.
#: After others it may be prepared for tables that have changed.
_HARMLESS = (LOCKED, "40P01", "23")
#: PostgreSQL's classes of states for values that it does not take: data, a constraint, a limit, a trigger that raises.
_REFUSES = ("22", "23", "44", "54", "P0")
#: PostgreSQL's state for a server that is a standby, for now.
_READ_ONLY = "25006"
#: What PostgreSQL says to whoever connects to a database that is not there; it comes without a state.
_NO_DATABASE = re.compile(r'FATAL: +database ".*" does not exist')

T = TypeVar("T")
Item = TypeVar("Item")


class Store:
    """One database. Making a Store connects to nothing. ``lease`` is how long, in seconds, its user owns runs."""

    def __init__(self, url: str, *, pool_size: int = 20, clock: Clock | None = None, lease: float = 30.0) -> None:
        self._url = parse_url(url)
        #: Where the database is, for people to read; without its password.
        self.url = show(self._url)
        #: ``postgresql`` or ``sqlite``.
        self.dialect = self._url.get_backend_name()
        #: The SQLite file, if it is one.
        self.file = self._url.database if self.dialect == "sqlite" else None
        #: How others could read what is said to the database; None if they cannot.
        self.exposure = find_exposure(self._url)
        self._pool_size, self._lease = pool_size, lease
        self._ticks = (clock or SystemClock()).ticks
        self._identity = None if self.file is None else FileIdentity(self.file, self.url)
        #: Whose turn it is to write is asked by this name.
        self._real_file = "" if self.file is None else resolve(self.file)
        self._make_engines()
        self._pool_guard: PoolGuard | None = None
        if self.file is not None:
            self._pool_guard = PoolGuard(self.engine, self._real_file, self.url, self._close_idle)
        #: How connections are used that read, and that write.
        self._options: dict[bool, dict[str, Any]] = {False: {WRITES: False}, True: {WRITES: True}}
        if self.file is None:
            self._options[False]["isolation_level"] = "AUTOCOMMIT"
        self._idle = idle_limit(lease)
        self._lost_at = float("-inf")
        self._closed = False
        #: What the driver raises.
        self._driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        forked.tell(self)

    def _make_engines(self) -> None:
        self.engine = make_engine(self._url, self._pool_size, self._lease)
        #: Lends connections for deeds.
        self._drivers = self.engine if self.file is not None else make_drivers(self._url, self._lease)
        if self._identity is not None:
            self._watch_file(self._identity)
        event.listen(self.engine, "handle_error", self._notice_loss, insert=True)  # before it may be called one
        for engine in {self.engine, self._drivers}:
            event.listen(engine, "checkin", self._close_returned)
        #: Share commits among the threads of this process.
        self._committers: dict[BatchWrite[Any], Committer[Any]] = {}

    @property
    def closed(self) -> bool:
        """Whether nobody looks after its connections any more, or the process is about to fork: none is kept."""
        return self._closed or (self._pool_guard is not None and self._pool_guard.closing)

    def check_file(self) -> None:
        """Raise DatabaseMoved if the SQLite file in use was deleted, moved or replaced; else return."""
        if self._identity is not None:
            self._identity.check()

    def _watch_file(self, identity: FileIdentity) -> None:
        # Before connecting: SQLite would make a new, empty file in the place of the lost one.
        event.listen(self.engine, "do_connect", lambda *_: self._open_file(identity))
        event.listen(self.engine, "connect", lambda _, record: identity.note(record.info))

    def _open_file(self, identity: FileIdentity) -> None:
        identity.check()
        make_database(self._real_file)

    def has_been_well_for(self, seconds: float) -> bool:
        """Tell whether no connection was lost in that time; what a server says right after it was away may mislead."""
        return self._ticks() - self._lost_at >= seconds

    def _notice_loss(self, context: ExceptionContext) -> None:
        if context.is_disconnect:
            self._lost_at = self._ticks()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that only reads.

        On PostgreSQL each statement is its own transaction: it would see what others commit meanwhile in one of several
        as well, and a process that is paused between two of them has none that the server would end.
        """
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection in a transaction that writes; it has committed when the block has ended.

        PostgreSQL ends one that does nothing for seconds.
        """
        with self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def at_work(self, connection: Connection) -> Iterator[Lent]:
        """Let a transaction do nothing for a minute, inside the block: there it has locked no row of aft's.

        After it, it may again only for seconds: what is locked from then on others wait for, should our line fall
        silent before the COMMIT. Whoever ends the transaction inside the block gets DefinitionError, and Spoilt leaves
        it: of what it did nothing remains but what it told the driver itself to commit. What it sets for the session
        nobody else finds.
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
                        transaction.commit()  # raises: SQLAlchemy passes over one that somebody else has ended
                if writes and self._identity is not None:
                    # Before it is returned: the last connection that is closed removes the -wal file.
                    self._identity.check_written(connection.info)
        except exc.SQLAlchemyError as error:
            raise self.explain(error) from error
        except UnicodeEncodeError as error:
            if writes:
                raise  # what is written may be a user's, and so may be the error
            raise self._explain_text(error) from error

    # Deeds ------------------------------------------------------------------------------------------------------

    def commit(self, deed: BatchWrite[Item], item: Item) -> Any:
        """Write a deed, together with those of other threads; returns its answer when that has committed."""
        if self.file is not None:
            turns[self._real_file].check(self.url)
        committer = self._committers.get(deed)
        if committer is None:
            committer = self._committers.setdefault(deed, Committer(self, deed))
        return committer.commit(item)

    def lend(self) -> PoolProxiedConnection:
        """Lend a connection for deeds; ``write_deeds`` ends it if it is not well any more."""
        self.check_file()
        try:
            return self._drivers.raw_connection()
        except exc.SQLAlchemyError as error:
            raise self.explain(error) from error
        except self._driver_error as error:
            raise self.explain(self._wrap(error, lost=False)) from error

    def write_deeds(self, lent: PoolProxiedConnection, deed: BatchWrite[Item], items: Sequence[Item]) -> list[Any]:
        """Write deeds in one transaction of their own, on the driver itself; returns their answers. In a ``turn``.

        Raises StoreError; then none of them was written, or, if the connection was lost, nobody knows.
        """
        if self.file is None:
            return self._drive(lent, lambda connection: write_postgresql(connection, _prepared(lent), deed, items))
        return self._drive(lent, lambda connection: self._checked(lent, lambda: write_sqlite(connection, deed, items)))

    def write_now(self, deed: BatchWrite[Item], items: Sequence[Item]) -> list[Any]:
        """Write deeds that come together anyway, in one transaction of their own; returns their answers."""
        with self.turn(), self._lent() as lent:
            return self.write_deeds(lent, deed, items)

    def ask(self, questions: Sequence[tuple[PreparedQuery, str]]) -> list[Answer]:
        """Read on the driver itself, all questions at once; returns each one's rows. Raises StoreError."""
        with self._lent() as lent:
            if self.file is None:
                return self._drive(lent, lambda connection: ask_postgresql(connection, _prepared(lent), questions))
            return self._drive(lent, lambda connection: ask_sqlite(connection, questions))

    def tell(self, words: PreparedQuery, given: str) -> Answer:
        """Execute one statement that writes, on the driver itself, in a transaction of its own; returns its rows.

        Raises StoreError; then nothing was written, or, if the connection was lost, nobody knows.
        """
        if self.file is None:
            return self.ask([(words, given)])[0]
        with self.turn(), self._lent() as lent:
            return self._drive(
                lent, lambda connection: self._checked(lent, lambda: tell_sqlite(connection, words, given))
            )

    @contextmanager
    def _lent(self) -> Iterator[PoolProxiedConnection]:
        lent = self.lend()
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
        """Do something with a connection of the driver's own; its errors become ours, and most of them end it."""
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
            raise self.explain(self._wrap(error, lost=lost)) from error
        except UnicodeEncodeError as error:
            raise self._explain_text(error) from error
        except BaseException:
            lent.invalidate()  # Ctrl-C, perhaps: nobody knows what it was at
            raise

    def _explain_text(self, error: UnicodeEncodeError) -> StoreError:
        """Tell of a text that no driver takes: one that was looked for, or is to be written."""
        return StoreError(f"the database {self.url!r} takes no text with half a character: {error}", refused=True)

    def _wrap(self, error: Exception, *, lost: bool) -> exc.SQLAlchemyError:
        """The exception that SQLAlchemy would have raised."""
        wrapped = exc.DBAPIError.instance(
            None, None, error, self._driver_error, connection_invalidated=lost, dialect=self.engine.dialect
        )
        return cast(exc.SQLAlchemyError, wrapped)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn to write to SQLite (``store.turns``); before one has a connection (``store.forking``)."""
        if self.file is None:
            yield
            return
        turn = turns[self._real_file]
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
        if self.file is not None and not (folder := Path(self.file).parent).is_dir():
            text += f"; there is no directory {str(folder)!r}"
        elif _NO_DATABASE.search(text):
            text += "; create it, or correct the URL (AFT_DATABASE_URL)"
        return StoreError(
            f"the database {self.url!r} refused: {text}",
            transient=is_transient(error),
            locked=_sqlstate(error) == LOCKED,
            refused=is_refusal(error),
        )

    def close(self) -> None:
        """Let go of every connection; one that is lent out, or asked for later, is closed when it comes back.

        Harmless twice.
        """
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for committer in list(self._committers.values()):
            committer.close()
        for engine in {self.engine, self._drivers}:  # each once: of a pool in between nobody would know
            engine.dispose()

    def forget_in_child(self) -> None:
        """After a fork: every connection is the parent's; new ones are made, and nobody waits for its threads.

        SQLAlchemy learns with the first connection what the database is like; a thread of the parent's may be at it.
        """
        for engine in (self.engine, self._drivers):
            engine.dispose(close=False)
        self._make_engines()
        if self._pool_guard is not None:
            self._pool_guard.watch(self.engine)

    def _close_returned(self, connection: Any, record: ConnectionPoolEntry) -> None:
        # Into a pool that nobody looks after any more it would go open, until it is collected.
        if self.closed:
            record.close()


def _prepared(lent: PoolProxiedConnection) -> set[bytes]:
    """The names of the statements that a connection knows."""
    known: set[bytes] = lent.info.setdefault("aft_prepared", set())
    return known


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


def is_refusal(error: exc.SQLAlchemyError) -> bool:
    """Tell whether the database refused the values of a statement, not the statement or the connection."""
    if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
        return True  # a value that SQLAlchemy cannot convert for its column
    if is_transient(error) or not isinstance(error, exc.DBAPIError):
        return False
    if isinstance(error, exc.DataError | exc.IntegrityError):
        return True
    return (_sqlstate(error) or "").startswith(_REFUSES)


def _sqlstate(error: exc.SQLAlchemyError) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)
