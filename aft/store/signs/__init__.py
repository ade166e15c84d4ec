"""Is a worker's process alive? A lock that ends with its process tells sooner than its lease does.

A lease runs out half a minute after its worker died. But the kernel closes what a dead process held at once: so each
worker also holds a lock of its own, and writes into its row where it is to be found: its *sign*. A worker whose lock is
free is dead, and its runs need not wait for the lease. The lock is never more than a hint that comes early:

- who has no sign (it could not take the lock; it lives behind a pooler) is judged by its lease alone;
- a lock that somebody holds proves nothing: a paused process holds it too, and its lease runs out all the same;
- a worker that is alive although its lock was free loses its runs by the epoch, as with a lease that ran out.

So a wrong sign costs a needless takeover at the worst. That a lock which was cut off is taken again quickly, and that
two looks must agree, keeps even those rare.
"""

from __future__ import annotations

import time
from typing import Protocol

from sqlalchemy import Connection

from aft.ids import WorkerId
from aft.store.engine import Store


class Sign(Protocol):
    """The lock of one process's worker. Thread-safe."""

    @property
    def text(self) -> str | None:
        """Where others find the lock, as long as it is held; None: only the lease tells."""
        ...

    def give(self, worker: WorkerId) -> None:
        """Hold the lock of this worker from now on, instead of the one before; never raises for want of it."""
        ...

    def take_back(self) -> None:
        """Let go of the lock: this process is no worker any more. Harmless twice."""
        ...


class Lookout(Protocol):
    """Looks whose lock is free."""

    #: Seconds between two looks.
    pause: float
    #: Looks that must agree before somebody is taken for dead.
    looks: int

    def look(self, connection: Connection, signs: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        """Tell who of these workers holds the lock that his sign names; whom that cannot be told of is left out."""
        ...

    def forget(self, sign: str) -> None:
        """Clear away what a dead worker's sign has left."""
        ...


def make_sign(store: Store) -> Sign:
    """Make a process's sign, not given yet."""
    if store.file is not None:
        from aft.store.signs.files import FileSign

        return FileSign(store.file)
    # Slow to import, and not needed on SQLite.
    from aft.store.signs.sessions import SessionSign

    return SessionSign(store.engine)


def make_lookout(store: Store) -> Lookout:
    """Make what looks at the signs of others."""
    return _lookout(store.file)


def find_dead(connection: Connection, signs: dict[WorkerId, str]) -> set[WorkerId]:
    """Return those of these workers whose process has ended: their lock is free at each of the looks it takes.

    Takes no time while all locks are held; where one is free, a second on PostgreSQL. The connection only reads.
    """
    lookout = _lookout(connection.engine.url.database if connection.dialect.name == "sqlite" else None)
    dead = signs.keys() & _free(lookout, connection, signs)
    for _ in range(lookout.looks - 1):
        if dead:
            time.sleep(lookout.pause)
            dead &= _free(lookout, connection, {worker: signs[worker] for worker in dead})
    return dead


def _free(lookout: Lookout, connection: Connection, signs: dict[WorkerId, str]) -> set[WorkerId]:
    return {worker for worker, held in lookout.look(connection, signs).items() if not held}


def _lookout(file: str | None) -> Lookout:
    if file is not None:
        from aft.store.signs.files import FileLookout

        return FileLookout(file)
    from aft.store.signs.sessions import SessionLookout

    return SessionLookout()
