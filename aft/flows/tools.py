"""What a process gives to everything that executes runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

from aft.clock import Clock
from aft.flows.abandonment import AbandonedAttempts
from aft.flows.belated import Belated
from aft.flows.inbox_watch import InboxWatch
from aft.flows.loop import LoopThread
from aft.flows.overdue import Attempts
from aft.flows.policy import Policy
from aft.flows.registry import Registry
from aft.flows.vigil import Vigil
from aft.recovery.levels import Ladder
from aft.rules.book import Book
from aft.runs.holdings import Holdings
from aft.runs.limits import Limits
from aft.sealing import Seal
from aft.store import Store
from aft.store.leases import Lease
from aft.store.outbox import OutboxRow
from aft.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Tools:
    """The services and settings that executing a run needs."""

    namespace: str
    store: Store
    lease: Lease
    clock: Clock
    telemetry: Telemetry
    registry: Registry
    loop: LoopThread
    ladder: Ladder
    immediate: int
    grace: timedelta
    holdings: Holdings
    #: The rules in force.
    book: Book
    #: How large a family of runs may be.
    limits: Limits
    #: What messages are sealed with.
    seal: Seal
    #: Publishes outbox rows right after their commit; None in a process that only starts runs: the relay does it.
    send: Callable[[Sequence[OutboxRow]], None] | None = None
    #: Set when this process is stopping: runs are given back at their next step.
    draining: Event = field(default_factory=Event)
    #: Tells of activities that take longer than they were expected to.
    attempts: Attempts = field(kw_only=True)
    #: Tells runs whose branches wait beside others that something has come for them.
    inbox_watch: InboxWatch = field(kw_only=True)
    #: Attempts that were given up and have not returned.
    abandoned: AbandonedAttempts = field(kw_only=True)
    #: Watches over attempts that rules may object to while they last.
    vigil: Vigil = field(default_factory=Vigil)
    #: Late effects that wait for the database.
    belated: Belated = field(default_factory=Belated)
    #: Set while the house is being emptied for a run that must be executed alone.
    making_room: Event = field(default_factory=Event)

    def ladder_of(self, policy: Policy) -> Ladder:
        """The ladder in force."""
        return self.ladder if policy.ladder is None else policy.ladder

    def immediate_of(self, policy: Policy) -> int:
        """The number of immediate retries in force."""
        return self.immediate if policy.immediate is None else policy.immediate
