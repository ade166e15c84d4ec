"""Who receives messages that it cannot work off? Nobody: whoever's lease is over steps back until it is leased again.

A process that has lost touch with the database may still be well connected to the broker, which goes on giving it every
second message, and waits for those that it has. The thread that receives may itself be stuck in a call to the database,
so another one closes its consumer: what was not acknowledged goes to others at once.

Who may run at the same time: a receiver and the keeper, in one process. What the receiver was at goes on, or is fenced;
its acknowledgements are void. A crash leaves nothing behind: then the broker gives the messages to others by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aft.runs.owner import LeaseOver
from aft.store.leases import Lease

#: Seconds between two looks at a lease.
LOOK = 0.1


class LeaseGuard:
    """Has receivers step back while the lease is over; belongs to one thread."""

    def __init__(self, lease: Lease, receivers: Sequence[Callable[[], None]]) -> None:
        self._lease = lease
        self._receivers = receivers

    def step(self) -> float:
        """Look at the lease once."""
        if not is_leased(self._lease):
            for step_back in self._receivers:
                step_back()
        return LOOK


def while_leased(lease: Lease, receive: Callable[[], float]) -> Callable[[], float]:
    """Make a step of one that receives only while it is leased; that its lease ended meanwhile is no error of its."""

    def step() -> float:
        if not is_leased(lease):
            return LOOK
        try:
            return receive()
        except LeaseOver:
            return LOOK

    return step


def is_leased(lease: Lease) -> bool:
    """Tell whether our lease is not over by our clock."""
    return lease.holds(lease.worker)
