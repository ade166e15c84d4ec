"""Stops consuming while this process's lease is expired, so that the broker gives its messages to healthy workers.

A process that has lost the database may still be connected to the broker, which keeps delivering to it and waits for
its acknowledgements. The consuming thread may itself be blocked in a database call, so another thread closes its
consumer: unacknowledged messages are redelivered to others at once.

Who may run at the same time: a consumer and the guard, in one process. What the consumer is executing goes on, or is
fenced; its acknowledgements are void. A crash leaves nothing behind: the broker redelivers the messages by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aft.runs.ownership.owner import LeaseOver
from aft.store.leases import Lease

#: Seconds between two checks of the lease.
PAUSE = 0.2


class LeaseGuard:
    """Closes consumers while the lease is expired; belongs to one thread."""

    def __init__(self, lease: Lease, receivers: Sequence[Callable[[], None]]) -> None:
        self._lease = lease
        self._receivers = receivers

    def step(self) -> float:
        """Check the lease once; close the consumers if it is expired."""
        if not is_leased(self._lease):
            for stop_consuming in self._receivers:
                stop_consuming()
        return PAUSE


def while_leased(lease: Lease, receive: Callable[[], float]) -> Callable[[], float]:
    """Wrap a consumer's step so that it runs only while leased; LeaseOver, raised by it, is no error."""

    def step() -> float:
        if not is_leased(lease):
            return PAUSE
        try:
            return receive()
        except LeaseOver:
            return PAUSE

    return step


def is_leased(lease: Lease) -> bool:
    """Return whether our lease is valid by our clock."""
    return lease.is_valid(lease.worker)
