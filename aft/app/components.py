"""Builds the parts of an application: from settings to the concrete classes behind the ports."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aft import after_fork
from aft.brokers.base import Broker
from aft.clock import Clock
from aft.config import Settings
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.exlets.plans import PlanExecutor
from aft.dispatcher.intake import Intake
from aft.errors import ConfigError
from aft.flows.declare.registry import Registry
from aft.flows.runtime.abandoned_attempts import AbandonedAttempts
from aft.flows.runtime.event_loop import LoopThread
from aft.flows.runtime.inbox_watch import InboxWatch
from aft.flows.runtime.slow_activities import SlowActivityWatch
from aft.flows.session.dependencies import Dependencies
from aft.flows.worker.heartbeat_tasks import HeartbeatTasks
from aft.recovery.delays import DelayQueues
from aft.recovery.levels import Ladder
from aft.recovery.sender import RowSender
from aft.rules.trees.rule_cache import RuleCache
from aft.runs.family_limits import FamilyLimits
from aft.runs.ownership.executing_runs import ExecutingRuns
from aft.security.seal import Seal
from aft.store import Store, schema
from aft.store.leases import Lease
from aft.telemetry import Telemetry


class Components:
    """One of each: store, broker, registry, clock, telemetry. Thread-safe; making it connects to nothing."""

    def __init__(self, settings: Settings, registry: Registry, clock: Clock) -> None:
        self.settings = settings
        self.namespace = settings.namespace
        self.registry = registry
        self.clock = clock
        self.telemetry = Telemetry()
        self.store = Store(
            settings.database_url,
            pool_size=settings.concurrency + 12,
            clock=clock,
            lease=settings.lease.total_seconds(),
        )
        self.ladder = _make_ladder(settings)
        self.seal = Seal(settings.message_keys)
        self.broker = _make_broker(settings, self.store)
        _refuse_exposure(settings, self.store, self.broker)
        self.loop = LoopThread()
        self.rule_cache = RuleCache(self.store, self.namespace, clock, self.telemetry)
        self._checked = False

    def forget_in_child(self) -> None:
        """After a fork: make a new broker; the old one's connections and threads are the parent's."""
        after_fork.inherited.append(self.broker)
        self.broker = _make_broker(self.settings, self.store)

    def delays(self) -> DelayQueues:
        """Return the delay queues of this namespace."""
        return DelayQueues(self.store, self.broker, self.namespace)

    def waits(self) -> set[timedelta]:
        """Return every wait that the settings' ladder and the registered activities declare."""
        return {*self.ladder.waits, *self.registry.waits}

    def check(self) -> None:
        """Raise NotMigrated if the database is not ready; an empty SQLite file is migrated. Checks once."""
        if not self._checked:
            schema.check(self.store)
            self._checked = True

    def make_deps(self, lease: Lease, **more: Any) -> Dependencies:
        """Make the dependencies for executing runs."""
        return Dependencies(
            namespace=self.namespace,
            store=self.store,
            lease=lease,
            clock=self.clock,
            telemetry=self.telemetry,
            registry=self.registry,
            loop=self.loop,
            ladder=self.ladder,
            immediate=self.settings.immediate,
            grace=self.settings.grace,
            executing=ExecutingRuns(),
            rules=self.rule_cache,
            limits=FamilyLimits(self.settings.most_depth, self.settings.most_children, self.settings.most_family),
            seal=self.seal,
            slow_activities=SlowActivityWatch(self.clock, self.telemetry),
            inbox_watch=InboxWatch(self.store),
            abandoned=AbandonedAttempts(self.clock, self.telemetry, self.settings.most_abandoned),
            **more,
        )

    def make_dispatcher_deps(self) -> DispatcherDependencies:
        """Make the dependencies for deciding about faults."""
        return DispatcherDependencies(
            namespace=self.namespace,
            store=self.store,
            clock=self.clock,
            telemetry=self.telemetry,
            grace=self.settings.grace,
            rules=self.rule_cache,
            seal=self.seal,
        )

    def make_intake(self, delays: DelayQueues, sender: RowSender, plans: PlanExecutor | None = None) -> Intake:
        """Make the intake, which decides about faults."""
        deps = self.make_dispatcher_deps()
        return Intake(deps, self.broker, delays, sender, plans or PlanExecutor(deps))

    def make_lease(self) -> Lease:
        """Make a worker's lease, not begun yet."""
        return Lease(self.store, self.namespace, self.settings.lease, self.clock, self.telemetry)

    def begin_lease(self, deps: Dependencies, **more: Any) -> None:
        """Begin the lease that runs are executed under; its row shows others the attempts that do not return."""
        deps.abandoned.on_change = deps.lease.renew_soon
        deps.lease.begin(on_beat=HeartbeatTasks(deps).run, abandoned=deps.abandoned.encode, **more)

    def close(self) -> None:
        """Close threads and connections. Idempotent."""
        self.loop.close()
        self.broker.close()
        self.store.close()


def _make_ladder(settings: Settings) -> Ladder:
    try:
        return Ladder.parse(settings.levels)
    except ValueError as error:
        raise ConfigError(f"AFT_LEVELS: {error}") from None


def _refuse_exposure(settings: Settings, store: Store, broker: Broker) -> None:
    """Refuse unencrypted connections to another machine, unless the settings allow them."""
    if settings.allow_insecure_transport:
        return
    otherwise = "or, on a network that you trust, set AFT_ALLOW_INSECURE_TRANSPORT=true (docs/security.md)"
    if store.exposure is not None:
        safe = "add '?sslmode=verify-full&sslrootcert=CA.pem' to its URL"
        raise ConfigError(f"the database {store.url!r} could be listened to: {store.exposure}; {safe}, {otherwise}")
    if broker.exposure is not None:
        safe = "use 'amqps://…?cacertfile=CA.pem'"
        raise ConfigError(f"the broker {broker.url!r} could be listened to: {broker.exposure}; {safe}, {otherwise}")


def _make_broker(settings: Settings, store: Store) -> Broker:
    # Imported here: a process that uses one broker does not pay for loading the other.
    if settings.broker_url == "embedded":
        from aft.brokers.embedded import EmbeddedBroker

        return EmbeddedBroker(store)
    from aft.brokers.rabbitmq import RabbitBroker

    return RabbitBroker(settings.broker_url, queue_type=settings.queue_type, passive=settings.declare_passively)
