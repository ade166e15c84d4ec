"""Wakes a waiting consumer when there may be work: by a bell, by polling SQLite's version, or by a timer.

The first of these wakes it:

- a :class:`Bell`, rung by the same broker object when it publishes, and on PostgreSQL by the thread that listens;
- on SQLite ``PRAGMA data_version``, which changes with every commit of another connection of any process;
- the timer: the consumer knows when the next message becomes visible.

The order that loses no change: take a mark, query the queues, wait for a change *since the mark*. A commit after the
query comes after the mark.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from aft import after_fork
from aft.clock import SystemClock
from aft.errors import StoreError
from aft.store.sqlite.file_identity import resolve
from aft.store.sqlite.forks import guard
from aft.store.sqlite.private_files import check_database

#: Seconds between two polls of a SQLite file that has just changed, or where a message is due soon.
QUICK = 0.02
#: Seconds between two polls of a SQLite file that has not changed for long.
IDLE = 0.1
#: A message that is due within this many seconds is due soon.
SOON = 1.0
#: The longest wait, in seconds, of a consumer on PostgreSQL before it polls: notifications may be lost.
POLL = 1.0

_ticks = SystemClock().ticks


class ChangeMark(NamedTuple):
    """The state of the queues' change counters at one point in time."""

    rung: int
    version: int | None = None


class QueueWatch(Protocol):
    """Waits for changes in the queues of one consumer."""

    def mark(self) -> ChangeMark:
        """Return the mark of the present state."""
        ...

    def wait(self, since: ChangeMark, timeout: float, due: float | None) -> None:
        """Return when something may have changed since the mark, at the latest after ``timeout`` seconds.

        ``due`` is when the next message becomes visible, if there is one. Returning too early is harmless.
        """
        ...

    def close(self) -> None:
        """Release its resources. Idempotent."""
        ...


class Bell:
    """Wakes the threads of this process that wait for a queue. Thread-safe.

    It counts only for queues that somebody here has asked about: on PostgreSQL whoever may connect can ring for any
    name, and each that was kept would cost memory.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung: dict[str, int] = {}
        self._rung_for_all = 0

    def ring(self, queues: Iterable[str]) -> None:
        """Wake the threads that wait for one of these queues."""
        with self._changed:
            known = [queue for queue in queues if queue in self._rung]
            for queue in known:
                self._rung[queue] += 1
            if known:
                self._changed.notify_all()

    def ring_for_all(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._rung_for_all += 1
            self._changed.notify_all()

    def count(self, queues: Sequence[str]) -> int:
        """Return how often it was rung for these queues."""
        with self._changed:
            return self._count(queues)

    def wait(self, queues: Sequence[str], since: int, timeout: float) -> bool:
        """Wait until it was rung more often than ``since``; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count(queues) != since, timeout)

    def _count(self, queues: Sequence[str]) -> int:
        return self._rung_for_all + sum(self._rung.setdefault(queue, 0) for queue in queues)


class BellWatch:
    """Waits for the bell only, at most ``POLL`` seconds: on PostgreSQL, where a listener rings it."""

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
    """Waits for the bell and polls a SQLite file's ``data_version``, on a connection of its own.

    Belongs to one thread; another may close it. It holds no transaction while it waits, so it blocks no other. A poll
    costs some microseconds, so that ten a second cost next to nothing. If the file cannot be read, it returns after
    one pause, and the consumer's next statement raises the reason.
    """

    def __init__(self, path: Path, bell: Bell, queues: Sequence[str]) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=rw"
        self._path, self._file = str(path), resolve(str(path))
        self._bell = bell
        self._queues = queues
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._changed_at = _ticks()
        self._closed = False
        # SQLite must not be queried and closed at the same time: that crashes the process.
        self._reading = threading.Lock()
        self._forking = False
        guard(self)
        after_fork.register(self)

    def mark(self) -> ChangeMark:
        return ChangeMark(self._bell.count(self._queues), self._poll())

    def wait(self, since: ChangeMark, timeout: float, due: float | None) -> None:
        end = _ticks() + timeout
        while (left := end - _ticks()) > 0:
            pause = pause_between_polls(_ticks() - self._changed_at, due)
            if self._bell.wait(self._queues, since.rung, min(pause, left)):
                return
            if (version := self._poll()) is None or version != since.version:
                return

    def close(self) -> None:
        with self._reading:
            self._closed = True
            self._disconnect()

    def close_for_fork(self, deadline: float) -> str | None:
        """Stop polling until the fork is over: a child must not inherit the connection (``store.sqlite.forks``)."""
        self._forking = True
        if not self._reading.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return self._file
        self._disconnect()
        self._reading.release()
        return None

    def resume(self) -> None:
        """Poll again."""
        self._forking = False

    def forget_in_child(self) -> None:
        """After a fork: close the child's copy; the parent goes on using its own."""
        self._reading, self._bell = threading.Lock(), Bell()
        self._closed = True

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _poll(self) -> int | None:
        with self._reading:
            version = None if self._closed or self._forking else self._read_version()
        if version is not None and version != self._version:
            self._version, self._changed_at = version, _ticks()
        return version

    def _read_version(self) -> int | None:
        try:
            if self._connection is None:
                check_database(self._path, self._file, self._uri)
                self._connection = sqlite3.connect(self._uri, uri=True, isolation_level=None, check_same_thread=False)
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except (sqlite3.Error, StoreError):
            self._disconnect()
            return None


def pause_between_polls(idle: float, due: float | None) -> float:
    """Return the seconds until the next poll, from the seconds since a change and until the next due message. Pure."""
    if due is not None and due <= SOON:
        return QUICK
    return min(max(idle / 10, QUICK), IDLE)
