"""How does a waiting consumer learn that there is work? It is told, or it looks, or it is time.

Three ways, the fastest that applies wins:

- a :class:`Bell`, rung by the same broker object when it publishes, and on PostgreSQL by the thread that
  listens;
- on SQLite ``PRAGMA data_version``, which changes with every commit of another connection of any process;
- the timer: the consumer knows when the next message becomes visible.

The order that loses nothing: take a mark, look into the queues, wait for a change *since the mark*. Whatever
was committed after the look comes after the mark.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from aft import forked
from aft.clock import SystemClock
from aft.store.forking import guard
from aft.store.identity import resolve

#: Seconds between two looks at a SQLite file that has just changed, or where something is due soon.
QUICK = 0.02
#: Seconds between two looks at a SQLite file in which nothing has happened for long.
IDLE = 0.05
#: Something that is due within so many seconds is due soon.
SOON = 1.0
#: Seconds a consumer on PostgreSQL waits at the most before it looks by itself: notifications may be lost.
POLL = 1.0

_ticks = SystemClock().ticks


class ChangeMark(NamedTuple):
    """A moment before which nothing counts as a change."""

    rung: int
    version: int | None = None


class QueueWatch(Protocol):
    """Waits for changes in the queues of one consumer."""

    def mark(self) -> ChangeMark:
        """Remember this moment."""
        ...

    def wait(self, since: ChangeMark, timeout: float, due: float | None) -> None:
        """Return when something may have changed since the mark, at the latest after ``timeout`` seconds.

        ``due`` is when the next message becomes visible, if there is one. Returning too early is harmless.
        """
        ...

    def close(self) -> None:
        """Let go of what it needs to watch. Harmless twice."""
        ...


class Bell:
    """Wakes the threads of this process that wait for a queue. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung: Counter[str] = Counter()
        self._rung_for_all = 0

    def ring(self, queues: Iterable[str]) -> None:
        """Wake whoever waits for one of these queues."""
        with self._changed:
            self._rung.update(queues)
            self._changed.notify_all()

    def ring_for_all(self) -> None:
        """Wake whoever waits for anything."""
        with self._changed:
            self._rung_for_all += 1
            self._changed.notify_all()

    def count(self, queues: Sequence[str]) -> int:
        """Tell how often it was rung for these queues."""
        with self._changed:
            return self._count(queues)

    def wait(self, queues: Sequence[str], since: int, timeout: float) -> bool:
        """Wait until it was rung more often than ``since``; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count(queues) != since, timeout)

    def _count(self, queues: Sequence[str]) -> int:
        return self._rung_for_all + sum(self._rung[queue] for queue in queues)


class BellWatch:
    """Waits for the bell alone, and at most a second: on PostgreSQL, where a listener rings it."""

    def __init__(self, bell: Bell, queues: Sequence[str]) -> None:
        self._bell = bell
        self._queues = queues

    def mark(self) -> ChangeMark:
        return ChangeMark(self._bell.count(self._queues))

    def wait(self, since: ChangeMark, timeout: float, due: float | None) -> None:
        self._bell.wait(self._queues, since.rung, min(timeout, POLL))

    def close(self) -> None:
        pass


class FileWatch:
    """Waits for the bell and looks at a SQLite file's ``data_version``, on a connection of its own.

    Belongs to one thread; another may close it. It holds no transaction while it waits, so it is in nobody's way. A
    look costs some microseconds, so it can be had twenty times a second for next to nothing: a signal to a run that has
    waited for days is noticed as soon as any other. Where the file cannot be read it returns at the slow pace, and the
    consumer's next statement finds out why.
    """

    def __init__(self, path: Path, bell: Bell, queues: Sequence[str]) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=rw"
        self._file = resolve(str(path))
        self._bell = bell
        self._queues = queues
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._changed_at = _ticks()
        self._closed = False
        # SQLite must not be asked and closed at the same time: that ends the process.
        self._asking = threading.Lock()
        self._forking = False
        guard(self)
        forked.tell(self)

    def mark(self) -> ChangeMark:
        return ChangeMark(self._bell.count(self._queues), self._look())

    def wait(self, since: ChangeMark, timeout: float, due: float | None) -> None:
        end = _ticks() + timeout
        while (left := end - _ticks()) > 0:
            pause = pause_between_looks(_ticks() - self._changed_at, due)
            if self._bell.wait(self._queues, since.rung, min(pause, left)):
                return
            if (version := self._look()) is None or version != since.version:
                return

    def close(self) -> None:
        with self._asking:
            self._closed = True
            self._disconnect()

    def close_for_fork(self, deadline: float) -> str | None:
        """Look no more until the fork is over: a child must not inherit the connection (``store.forking``)."""
        self._forking = True
        if not self._asking.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return self._file
        self._disconnect()
        self._asking.release()
        return None

    def go_on(self) -> None:
        """Look again."""
        self._forking = False

    def forget_in_child(self) -> None:
        """After a fork: the parent waits with it, the child does not."""
        self._asking, self._bell = threading.Lock(), Bell()
        self._closed = True

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look(self) -> int | None:
        with self._asking:
            version = None if self._closed or self._forking else self._ask()
        if version is not None and version != self._version:
            self._version, self._changed_at = version, _ticks()
        return version

    def _ask(self) -> int | None:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._uri, uri=True, isolation_level=None, check_same_thread=False)
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            self._disconnect()
            return None


def pause_between_looks(idle: float, due: float | None) -> float:
    """Decide how long to wait before looking again, by the seconds since a change and until the next due."""
    if due is not None and due <= SOON:
        return QUICK
    return min(max(idle / 10, QUICK), IDLE)
