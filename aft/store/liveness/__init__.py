"""Liveness locks: a worker's lock ends with its process, so that its death is detected before its lease expires.

A lease expires half a minute after its worker died. But the kernel closes a dead process's files and sockets at once:
so each worker also holds a lock of its own, and names it in its row. A worker whose lock is free is dead, and its runs
need not wait for the lease. The lock is only an early hint:

- a worker without one (it could not take the lock; it connects through a pooler) is judged by its lease alone;
- a held lock proves nothing: a paused process holds it too, and its lease expires all the same;
- a worker that is alive although its lock was free is fenced by the epoch, as with an expired lease.

So a wrong answer costs a needless rescue at worst. A lost lock is taken again quickly, and on PostgreSQL two checks
must agree, which makes even those rare.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sqlalchemy import Connection

from aft.ids import WorkerId
from aft.store.engine import Store


class LivenessLock(Protocol):
    """The lock of one process's worker. Thread-safe."""

    @property
    def text(self) -> str | None:
        """The name under which others find the lock while it is held; None: only the lease counts."""
        ...

    def acquire(self, worker: WorkerId) -> None:
        """Take the lock of this worker, and release the former one's; does not raise if that fails."""
        ...

    def release(self) -> None:
        """Release the lock: this process is no worker any more. Idempotent."""
        ...


#: Lends a connection that only reads.
Read = Callable[[], AbstractContextManager[Connection]]


class LivenessProbe(Protocol):
    """Checks which locks of others are free."""

    #: Seconds between two checks.
    pause: float
    #: Checks that must agree before a worker is taken for dead.
    checks: int

    def check(self, read: Read, locks: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        """Return for each worker whether the lock that its row names is held; left out if that cannot be known.

        ``read`` lends a connection, if one is needed.
        """
        ...

    def are_all_held(self) -> bool:
        """Return whether all locks are held, if that can be found out without the database; else False."""
        ...

    def clean_up(self, lock: str) -> None:
        """Remove what a dead worker's lock has left behind."""
        ...


def make_lock(store: Store) -> LivenessLock:
    """Make a process's lock, not taken yet."""
    if store.file is not None:
        from aft.store.liveness.files import FileLivenessLock

        return FileLivenessLock(store.file)
    # Slow to import, and not needed on SQLite.
    from aft.store.liveness.sessions import SessionLivenessLock

    return SessionLivenessLock(store.engine)


def make_probe(store: Store) -> LivenessProbe:
    """Make the probe for the locks of others."""
    return _liveness_probe(store.file)


def find_dead(connection: Connection, locks: dict[WorkerId, str]) -> set[WorkerId]:
    """Return those of these workers whose process has ended: their lock is free at each check.

    Takes no time while all locks are held; where one is free, a second on PostgreSQL. The connection only reads.
    """
    liveness_probe = _liveness_probe(connection.engine.url.database if connection.dialect.name == "sqlite" else None)
    dead = locks.keys() & _free(liveness_probe, connection, locks)
    for _ in range(liveness_probe.checks - 1):
        if dead:
            time.sleep(liveness_probe.pause)
            dead &= _free(liveness_probe, connection, {worker: locks[worker] for worker in dead})
    return dead


def _free(liveness_probe: LivenessProbe, connection: Connection, locks: dict[WorkerId, str]) -> set[WorkerId]:
    return {worker for worker, held in liveness_probe.check(lambda: nullcontext(connection), locks).items() if not held}


def _liveness_probe(file: str | None) -> LivenessProbe:
    if file is not None:
        from aft.store.liveness.files import FileLivenessProbe

        return FileLivenessProbe(file)
    from aft.store.liveness.sessions import SessionLivenessProbe

    return SessionLivenessProbe()
