"""Queues the writers of a SQLite file, threads and processes, so that none starves.

SQLite itself makes waiting writers poll: one that writes without a break always wins, and the others starve, their
heartbeats too. So they queue before they ask SQLite: the threads of a process at a lock, the processes at a file that
is locked with ``flock``, which the kernel grants in order of arrival. SQLite's own lock still decides; without a turn,
a writer only waits less fairly.

Who may run at the same time: one thread of each process is at the file. It tries to lock it, and if it has to wait, a
helper thread waits in its place, because ``flock`` has no timeout. A process that dies leaves the file unlocked. A
child after a fork begins with a file and locks of its own.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from aft.errors import StoreError
from aft.store.sqlite.private_files import open_beside

try:
    import fcntl
except ImportError:  # not on this system: SQLite alone decides
    fcntl = None  # type: ignore[assignment]


#: Seconds to queue among processes; after that a writer asks SQLite without a turn.
GATE_PATIENCE = 5.0


class WriteQueue:
    """The queue of writers to one SQLite file. Thread-safe."""

    def __init__(self, file: str) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._through = False
        self._gate = WriteGate(file)

    def take(self, timeout: float, url: str) -> None:
        """Wait for the turn; raises StoreError after ``timeout`` seconds, or if this thread has it already."""
        self.check(url)
        if not self._lock.acquire(timeout=timeout):
            raise StoreError(f"the database {url!r} is locked by another write of this process", transient=True)
        try:
            # A process that is paused at the gate must not keep the others out for ever: SQLite itself decides then.
            self._through = self._gate.take(min(timeout, GATE_PATIENCE))
        except BaseException:
            self._lock.release()
            raise
        self._holder = threading.get_ident()

    def check(self, url: str) -> None:
        """Raise StoreError if this thread has the turn already: it would wait for itself."""
        if self._holder == threading.get_ident():
            raise StoreError(
                f"a transaction on {url!r} was begun inside another one of the same thread, and SQLite has one writer; "
                "in a transactional activity use aft.session(), and start runs outside it"
            )

    def release(self) -> None:
        """End the turn."""
        self._holder = None
        if self._through:
            self._gate.release()
        self._lock.release()

    def forget_in_child(self) -> None:
        """After a fork: close the copy of the parent's lock file."""
        self._gate.forget_in_child()


class WriteGate:
    """A locked file at which processes queue; used by one thread of this process at a time."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._file: int | None = None
        # Guards the two below; held for moments only.
        self._lock = threading.Lock()
        self._waiting: threading.Thread | None = None
        self._wanted = False

    def take(self, timeout: float) -> bool:
        """Wait for the lock; False after ``timeout`` seconds. True at once where file locks are not available."""
        if fcntl is None or not self._open():
            return True
        with self._lock:
            if self._waiting is None and self._try():
                return True
            waiting = self._join_queue()
        try:
            waiting.join(timeout)
        except BaseException:
            self._give_up()  # Ctrl-C, say
            raise
        with self._lock:
            self._wanted = False
            return self._waiting is None

    def release(self) -> None:
        """Release the lock, for the next process."""
        if self._file is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def forget_in_child(self) -> None:
        """After a fork: close the copy of the parent's lock, which must end with the parent."""
        if self._file is not None:
            os.close(self._file)

    def _give_up(self) -> None:
        with self._lock:
            self._wanted = False
            if self._waiting is None:
                self.release()  # it came while we left

    def _open(self) -> bool:
        if self._file is None:
            try:
                self._file = open_beside(f"{self._database}-turn", self._database)
            except OSError:
                return False
        return True

    def _try(self) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system that knows no such locks: SQLite alone decides
        return True

    def _join_queue(self) -> threading.Thread:
        """Return the helper thread that waits; one that still waits for a caller that gave up keeps its place."""
        self._wanted = True
        if self._waiting is None:
            waiting = threading.Thread(target=self._wait, name="aft-turn", daemon=True)
            waiting.start()
            self._waiting = waiting
        return self._waiting

    def _wait(self) -> None:
        assert self._file is not None
        with suppress(OSError):  # as in ``_try``
            fcntl.flock(self._file, fcntl.LOCK_EX)
        with self._lock:
            self._waiting = None
            if not self._wanted:
                self.release()


class WriteQueues(dict[str, WriteQueue]):
    """The write queues of this process, one for each SQLite file."""

    def __missing__(self, file: str) -> WriteQueue:
        turn = self[file] = WriteQueue(file)
        return turn


turns = WriteQueues()


def _forget_in_child() -> None:
    # The child would share its parent's lock, and a turn that some thread of the parent had would never end.
    for turn in turns.values():
        turn.forget_in_child()
    turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
