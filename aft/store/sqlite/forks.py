"""Closes SQLite connections before a fork: a child would take its parent's locks for its own, and could lose writes.

SQLite keeps in the memory of the process which files it has locked; a child gets a copy of that memory, but no lock. So
the connections of this process are closed before it forks; new ones are opened after it, on both sides. The fork waits
``PATIENCE`` seconds for one that is in use; if it stays open, the child is refused that database.

Who may run at the same time: any thread forks while others read and write. No thread opens a connection until the fork
is over, and one that is returned meanwhile is closed. Of two threads that fork, one waits for the other. A crash leaves
nothing behind.

There is no deadlock, because all threads wait in one order: for the turn to write (``store.sqlite.write_queue``), then
for the end of the fork, then for nothing. So the turn is taken before the connection, and the fork waits only for
threads that have one. A thread that has one and opens another does not wait for the fork, which waits for it. Nor does
it wait for long for a lock that a thread without one may hold: that of the rule cache (``rules.trees.rule_cache``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol
from weakref import WeakSet

from sqlalchemy import Engine, Pool, event

from aft.errors import StoreError
from aft.store.sqlite.connection import SqliteConnection

#: Seconds that a fork waits for what is under way.
PATIENCE = 5.0


class Holder(Protocol):
    """An object that may have a SQLite file open."""

    def close_for_fork(self, deadline: float) -> str | None:
        """Close the connections, and open none before the fork is over; returns the file if one is still open."""
        ...

    def resume(self) -> None:
        """Open connections again: the fork is over, in the parent or in the child."""
        ...


class _Forks:
    """Coordinates the forks of this process with its holders of SQLite files."""

    def __init__(self) -> None:
        #: Held while a connection is opened, and while the process forks.
        self.gate = threading.Lock()
        self.holders: WeakSet[Holder] = WeakSet()
        #: Files that are open in spite of the fork that is under way.
        self.open: set[str] = set()
        #: Files that were open when this process was forked from its parent.
        self.inherited: set[str] = set()

    def begin(self) -> None:
        self.gate.acquire()
        deadline = time.monotonic() + PATIENCE
        files = [holder.close_for_fork(deadline) for holder in list(self.holders)]
        self.open = {file for file in files if file is not None}

    def end(self) -> None:
        for holder in list(self.holders):
            holder.resume()
        self.gate.release()

    def end_in_child(self) -> None:
        self.inherited |= self.open
        self.end()


_forks = _Forks()


def guard(holder: Holder) -> None:
    """Register a holder, which closes its connections before each fork as long as it exists."""
    with _forks.gate:
        _forks.holders.add(holder)


class PoolGuard:
    """Closes the connections of an engine's pool before a fork. Thread-safe."""

    def __init__(self, engine: Engine, file: str, url: str, close_idle: Callable[[], None]) -> None:
        self._file = file
        self._url = url
        self._close_idle = close_idle
        #: Tokens of open connections. Changed by single operations only: a held lock would stay held in a child.
        self._open: set[object] = set()
        #: Every pool of the engine that is still in use: a thread that connected while one was disposed of returns the
        #: connection to it.
        self._pools: WeakSet[Pool] = WeakSet()
        #: Whether returned connections are closed.
        self.closing = False
        #: The number of connections that this thread uses.
        self._mine = threading.local()
        self.watch(engine)
        guard(self)

    def watch(self, engine: Engine) -> None:
        """Guard the connections of another engine instead, which has none yet."""
        self._engine = engine
        event.listen(engine, "do_connect", self._connect)

    def close_for_fork(self, deadline: float) -> str | None:
        """Close idle connections, and wait for the others until the deadline; returns the file if one stays open."""
        self.closing = True
        self._pools.add(self._engine.pool)
        self._close_idle()
        while self._open and time.monotonic() < deadline:
            for pool in list(self._pools):
                pool.dispose()
            time.sleep(0.001)
        return self._file if self._open else None

    def resume(self) -> None:
        """Keep connections again."""
        self.closing = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Mark this thread as using a connection inside the block: it opens others without waiting for a fork."""
        before = getattr(self._mine, "used", 0)
        self._mine.used = before + 1
        try:
            yield
        finally:
            self._mine.used = before

    def _connect(self, dialect: Any, _record: object, given: Any, named: Any) -> Any:
        with nullcontext() if getattr(self._mine, "used", 0) else _forks.gate:
            if self._file in _forks.inherited:
                raise StoreError(
                    f"this process was forked from one that was using {self._url!r} in that moment, which SQLite does "
                    "not bear: fork while nothing is executed, start a new process ('spawn'), or use PostgreSQL"
                )
            made = dialect.connect(*given, **named, factory=SqliteConnection)
            made.count(self._open)
            return made


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.begin, after_in_parent=_forks.end, after_in_child=_forks.end_in_child)
