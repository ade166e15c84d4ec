"""The services and settings that a process provides to everything that executes runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

from aft.clock import Clock
from aft.flows.declare.policy import Policy
from aft.flows.declare.registry import Registry
from aft.flows.runtime.abandoned_attempts import AbandonedAttempts
from aft.flows.runtime.event_loop import LoopThread
from aft.flows.runtime.inbox_watch import InboxWatch
from aft.flows.runtime.late_buffer import LateEffectBuffer
from aft.flows.runtime.rule_watch import RuleWatch
from aft.flows.runtime.slow_activities import SlowActivityWatch
from aft.recovery.levels import Ladder
from aft.rules.trees.rule_cache import RuleCache
from aft.runs.family_limits import FamilyLimits
from aft.runs.ownership.executing_runs import ExecutingRuns
from aft.runs.ownership.held_writes import HeldWrites
from aft.security.seal import Seal
from aft.store import Store
from aft.store.leases import Lease
from aft.store.outbox import OutboxRow
from aft.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Dependencies:
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
    executing: ExecutingRuns
    #: The rules in force.
    rules: RuleCache
    #: How large a family of runs may be.
    limits: FamilyLimits
    #: Seals messages.
    seal: Seal
    #: Publishes outbox rows right after their commit; None in a process that only starts runs: the relay does it.
    send: Callable[[Sequence[OutboxRow]], None] | None = None
    #: Set when this process drains: runs are released at their next step.
    draining: Event = field(default_factory=Event)
    #: Reports activities that take longer than expected.
    slow_activities: SlowActivityWatch = field(kw_only=True)
    #: Notifies runs that have both waiting and working branches of new inbox items.
    inbox_watch: InboxWatch = field(kw_only=True)
    #: Attempts that were given up and have not returned.
    abandoned: AbandonedAttempts = field(kw_only=True)
    #: Asks rules about attempts that are under way.
    rule_watch: RuleWatch = field(default_factory=RuleWatch)
    #: Late effects that wait for the database.
    late_buffer: LateEffectBuffer = field(default_factory=LateEffectBuffer)
    #: Writes what runs hold back for too long.
    held_writes: HeldWrites = field(default_factory=HeldWrites)
    #: Set while this process releases its runs to make room for one that must be executed alone.
    making_room: Event = field(default_factory=Event)

    def ladder_of(self, policy: Policy) -> Ladder:
        """Return the ladder in force for a policy."""
        return self.ladder if policy.ladder is None else policy.ladder

    def immediate_of(self, policy: Policy) -> int:
        """Return the number of immediate retries in force for a policy."""
        return self.immediate if policy.immediate is None else policy.immediate
