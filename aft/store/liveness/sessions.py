"""Liveness locks on PostgreSQL: an advisory lock, held by a session of its own as long as the worker lives.

The lock's name contains the server's start time. After a restart or a failover all locks are free, and prove nothing:
the start time differs then, until each worker has taken its lock again and written its new name. Through a pooler a
session cannot be kept; there is no lock then, and only the lease counts.

Who may run at the same time: the thread that keeps the session, and the one that gives or takes back the lock. A lost
session is detected at once, by its socket, and made again; that takes milliseconds, and two checks of a probe are
about a second apart.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import threading

import psycopg
from sqlalchemy import Engine, text

from aft import after_fork, durations
from aft.ids import WorkerId
from aft.store.liveness import Read
from aft.store.postgres.dedicated_connection import DedicatedConnection, connect
from aft.telemetry import logger

#: What a lock of this kind begins with; the server's start and the lock's number follow.
KIND = "session:"
#: The longest back-off, in seconds, before a lost session is made again: well before a probe's second check.
RECONNECT = 0.3

_NUMBER = re.compile("-?[0-9]{1,19}")
_WHERE = "SELECT pg_backend_pid(), extract(epoch FROM pg_postmaster_start_time())::text"
_TAKE = "SELECT pg_try_advisory_lock(%s)"
_HELD = text("""
    SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ExclusiveLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")
_STARTED = text("SELECT extract(epoch FROM pg_postmaster_start_time())::text")


def number_of(worker: WorkerId) -> int:
    """Return the number of a worker's lock."""
    return int.from_bytes(hashlib.sha256(f"aft worker {worker}".encode()).digest()[:8], signed=True)


class SessionLivenessLock:
    """A session that holds an advisory lock, with a thread that reconnects when the session is lost. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keeper: LockHolder | None = None
        after_fork.register(self)

    @property
    def text(self) -> str | None:
        return None if self._keeper is None else self._keeper.lock

    def acquire(self, worker: WorkerId) -> None:
        self.release()
        self._keeper = LockHolder(self._engine, worker)
        self._keeper.start()

    def release(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()

    def forget_in_child(self) -> None:
        """After a fork: drop the copy of the parent's session, which must end with the parent."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.forget_in_child()


class LockHolder:
    """Takes one worker's lock, and takes it again whenever its session is lost, until it is stopped."""

    def __init__(self, engine: Engine, worker: WorkerId) -> None:
        self.lock: str | None = None
        self._engine = engine
        self._worker = worker
        self._session: DedicatedConnection | None = None
        self._stopping = threading.Event()
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._keep, name="aft-lock", daemon=True)

    def start(self) -> None:
        """Try once to take the lock on this thread; then start the thread that keeps it, or goes on trying."""
        self._take()
        self._thread.start()

    def stop(self) -> None:
        """Release the lock, and end the thread."""
        self._stopping.set()
        os.write(self._waker, b".")
        self._thread.join()
        os.close(self._wake)
        os.close(self._waker)

    def forget_in_child(self) -> None:
        os.close(self._wake)
        os.close(self._waker)
        session = self._session
        if session is not None and not session.closed:
            after_fork.inherited.append(session)
            os.close(session.fileno())  # closing it properly would end the parent's session too

    def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            if self._session is None:
                failures = 0 if self._take() else failures + 1
            if self._session is None:
                self._wait(durations.back_off(failures + 1, RECONNECT / 5, RECONNECT, spread=0.5), None)
            elif self._wait(None, self._session):
                self._drop()
        self._drop()

    def _take(self) -> bool:
        """Make a session and take the lock; False if that is not possible now."""
        try:
            session = connect(self._engine)
        except psycopg.Error as error:
            logger.info("no liveness lock can be taken, the lease alone tells: worker=%s why=%s", self._worker, error)
            return False
        started = _take_lock(session, number_of(self._worker))
        if started is None:
            session.close()
            return False
        self._session, self.lock = session, f"{KIND}{started}:{number_of(self._worker)}"
        return True

    def _wait(self, seconds: float | None, session: DedicatedConnection | None) -> bool:
        """Wait up to ``seconds`` to be stopped, or for the session's end; True if the session has ended."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if session is not None:
            poll.register(session.fileno(), select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        return session is not None and any(file == session.fileno() for file, _ in ready) and not _answers(session)

    def _drop(self) -> None:
        session, self._session, self.lock = self._session, None, None
        if session is not None:
            session.close()


class SessionLivenessProbe:
    """Reads which locks are held; a session that was just lost has until the second check to come back."""

    pause = 0.9
    checks = 2

    def are_all_held(self) -> bool:
        return False

    def check(self, read: Read, locks: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        with read() as connection:
            started = connection.execute(_STARTED).scalar_one()
            held = set(connection.execute(_HELD).scalars())
        ours = f"{KIND}{started}:"
        numbers = {worker: _number(lock, ours) for worker, lock in locks.items()}
        return {worker: number in held for worker, number in numbers.items() if number is not None}

    def clean_up(self, lock: str) -> None:
        """Do nothing: a session leaves nothing behind."""


def _number(lock: object, ours: str) -> int | None:
    """Return the number that a row's lock names; None if it is of another start of the server, or damaged."""
    if not isinstance(lock, str) or not lock.startswith(ours):
        return None
    number = lock.removeprefix(ours)
    return int(number) if _NUMBER.fullmatch(number) else None


def _take_lock(session: DedicatedConnection, number: int) -> str | None:
    """Take the lock and return the server's start time; None if it cannot be taken."""
    try:
        pid, started = session.execute(_WHERE).fetchone() or (None, None)
        if pid != session.info.backend_pid:
            return None  # a pooler's session, which we cannot keep; the lock would stay with it
        # Held already: a former session of ours lingers. It is tried again until that has ended.
        (taken,) = session.execute(_TAKE, (number,)).fetchone() or (False,)
    except psycopg.Error:
        return None
    return str(started) if taken else None


def _answers(session: DedicatedConnection) -> bool:
    """Return whether a session with unexpected input is still alive: the input may have been a notice."""
    try:
        session.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
