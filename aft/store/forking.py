"""A fork while SQLite is open: the child would take its parent's locks for its own, and what it writes could be lost.

SQLite keeps in the memory of the process which files it has locked; a child gets a copy of that memory, but no lock. So
the connections of this process are closed before it forks; others are opened after it, on both sides. One that is in
use is waited for, for ``PATIENCE``; if it stays open, the child is refused that database, whoever opens it there.

Who may run at the same time: any thread forks while others read and write. Nobody opens a connection until the fork is
over, and who gives one back meanwhile closes it. Of two threads that fork, one waits for the other. A crash leaves
nothing behind.

Nobody waits in a circle, because all wait in one order: for the turn to write (``store.turns``), then for the fork to
be over, then for nothing. So the turn is taken before the connection, and the fork waits for those only who have one.
Whoever has one and opens another does not wait for the fork, which waits for them. Nor do they wait for long for what a
thread without one may hold: the look at the rules (``rules.book``).
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
from aft.store.sqlite import SqliteConnection

#: Seconds that a fork waits for what is under way.
PATIENCE = 5.0


class Holder(Protocol):
    """One who may have a SQLite file open."""

    def close_for_fork(self, deadline: float) -> str | None:
        """Close the connections, and open none before the fork is over; returns the file if one is still open."""
        ...

    def go_on(self) -> None:
        """The fork is over, in the parent or in the child."""
        ...


class _Forks:
    """The forks of this process."""

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
            holder.go_on()
        self.gate.release()

    def end_in_child(self) -> None:
        self.inherited |= self.open
        self.end()


_forks = _Forks()


def guard(holder: Holder) -> None:
    """Have one close its connections before each fork, as long as it exists."""
    with _forks.gate:
        _forks.holders.add(holder)


class PoolGuard:
    """The connections of an engine's pool, which no fork may find open. Thread-safe."""

    def __init__(self, engine: Engine, file: str, url: str, close_idle: Callable[[], None]) -> None:
        self._file = file
        self._url = url
        self._close_idle = close_idle
        #: What is open. Changed by single operations only: a lock that somebody holds would stay held in a child.
        self._open: set[object] = set()
        #: Every pool that the engine has had and somebody uses: who was about to connect as it was disposed of gives
        #: the connection back to it.
        self._pools: WeakSet[Pool] = WeakSet()
        #: Whether a connection that is given back is to be closed.
        self.closing = False
        #: How many connections this thread uses.
        self._mine = threading.local()
        self.watch(engine)
        guard(self)

    def watch(self, engine: Engine) -> None:
        """Guard the connections of another engine instead, which has none yet."""
        self._engine = engine
        event.listen(engine, "do_connect", self._connect)

    def close_for_fork(self, deadline: float) -> str | None:
        """Close what is idle, and wait for the rest."""
        self.closing = True
        self._pools.add(self._engine.pool)
        self._close_idle()
        while self._open and time.monotonic() < deadline:
            for pool in list(self._pools):
                pool.dispose()
            time.sleep(0.001)
        return self._file if self._open else None

    def go_on(self) -> None:
        """Keep connections again."""
        self.closing = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Tell that this thread uses a connection, inside the block: a fork waits for its end, whatever it opens."""
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
                    "not bear: fork while nothing is executed, start the process anew ('spawn'), or use PostgreSQL"
                )
            made = dialect.connect(*given, **named, factory=SqliteConnection)
            made.count(self._open)
            return made


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.begin, after_in_parent=_forks.end, after_in_child=_forks.end_in_child)
