"""PostgreSQL's signs: an advisory lock, held by a session of its own as long as the worker lives.

The sign names the lock and the server's start. After a restart or a failover all locks are free, and say nothing: the
server's start is another one then, until each worker has taken its lock again and written its new sign. Behind a pooler
a session is not ours to keep; there is no sign, and the lease alone tells.

Who may run at the same time: the thread that keeps the session, and whoever gives or takes back the sign. A session
that was cut is noticed at once, by its socket, and made again; that takes milliseconds, and two looks of a lookout are
a second apart.
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import threading

import psycopg
from sqlalchemy import Connection, Engine, text

from aft import forked
from aft.ids import WorkerId
from aft.store.apart import Apart, connect
from aft.telemetry import logger

#: What a sign of this kind begins with; the server's start and the lock's number follow.
KIND = "session:"
#: Seconds until a lost session is tried again, at the most: well before a second look; the first time a fifth of that.
RECONNECT = 0.3

_WHERE = "SELECT pg_backend_pid(), extract(epoch FROM pg_postmaster_start_time())::text"
_TAKE = "SELECT pg_try_advisory_lock(%s)"
_HELD = text("""
    SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")
_STARTED = text("SELECT extract(epoch FROM pg_postmaster_start_time())::text")


def number_of(worker: WorkerId) -> int:
    """The number of a worker's lock."""
    return int.from_bytes(hashlib.sha256(f"aft worker {worker}".encode()).digest()[:8], signed=True)


class SessionSign:
    """A session that holds an advisory lock, on a thread that keeps it. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keeper: LockHolder | None = None
        forked.tell(self)

    @property
    def text(self) -> str | None:
        return None if self._keeper is None else self._keeper.sign

    def give(self, worker: WorkerId) -> None:
        self.take_back()
        self._keeper = LockHolder(self._engine, worker)
        self._keeper.start()

    def take_back(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()

    def forget_in_child(self) -> None:
        """After a fork: the session is the parent's, and must end with it; its thread did not come along."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.forget_in_child()


class LockHolder:
    """Takes one worker's lock, and takes it again whenever its session is lost, until it is stopped."""

    def __init__(self, engine: Engine, worker: WorkerId) -> None:
        self.sign: str | None = None
        self._engine = engine
        self._worker = worker
        self._session: Apart | None = None
        self._stopping = threading.Event()
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._keep, name="aft-sign", daemon=True)

    def start(self) -> None:
        """Try once to take the lock, here; then keep it, or go on trying, on the thread."""
        self._take()
        self._thread.start()

    def stop(self) -> None:
        """Let go of the lock."""
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
            forked.inherited.append(session)
            os.close(session.fileno())  # closing it properly would end the parent's session too

    def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            if self._session is None:
                failures = 0 if self._take() else failures + 1
            if self._session is None:
                self._wait(_back_off(failures), None)
            elif self._wait(None, self._session):
                self._drop()
        self._drop()

    def _take(self) -> bool:
        """Make a session and take the lock; False: not now."""
        try:
            session = connect(self._engine)
        except psycopg.Error as error:
            logger.info("no sign of life can be given, the lease alone tells: worker=%s why=%s", self._worker, error)
            return False
        started = _take_lock(session, number_of(self._worker))
        if started is None:
            session.close()
            return False
        self._session, self.sign = session, f"{KIND}{started}:{number_of(self._worker)}"
        return True

    def _wait(self, seconds: float | None, session: Apart | None) -> bool:
        """Wait to be stopped, so long at the most, or for the session's end; True if that has come."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if session is not None:
            poll.register(session.fileno(), select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        return session is not None and any(file == session.fileno() for file, _ in ready) and not _answers(session)

    def _drop(self) -> None:
        session, self._session, self.sign = self._session, None, None
        if session is not None:
            session.close()


class SessionLookout:
    """Reads which locks are held; a session that was just cut has until the second look to come back."""

    pause = 0.9
    looks = 2

    def look(self, connection: Connection, signs: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        started = connection.execute(_STARTED).scalar_one()
        held = set(connection.execute(_HELD).scalars())
        ours = f"{KIND}{started}:"
        return {worker: int(sign.removeprefix(ours)) in held for worker, sign in signs.items() if sign.startswith(ours)}

    def forget(self, sign: str) -> None:
        """Nothing is left of a session."""


def _take_lock(session: Apart, number: int) -> str | None:
    """Take the lock and return when its server was started; None if it cannot be had."""
    try:
        pid, started = session.execute(_WHERE).fetchone() or (None, None)
        if pid != session.info.backend_pid:
            return None  # a pooler's session, which is not ours to keep; the lock would stay with it
        # Held already: a former session of ours lingers. It is tried again until that has gone.
        (taken,) = session.execute(_TAKE, (number,)).fetchone() or (False,)
    except psycopg.Error:
        return None
    return str(started) if taken else None


def _answers(session: Apart) -> bool:
    """Tell whether a session that said something unasked is still there: it may have been a notice."""
    try:
        session.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def _back_off(failures: int) -> float:
    return min(RECONNECT, RECONNECT / 5 * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.0)
