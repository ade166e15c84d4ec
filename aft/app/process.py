"""A dispatcher process: runs the services of the roles that it is given.

==========  ====================================================================================
role        what it does
==========  ====================================================================================
intake      consumes faults and decides about them; carries out exlets; sends notices
work        executes runs; needs the flows' code
relay       publishes what the outbox still holds
sweep       finds work stranded by lost messages, dead workers and late effects; detects deaths;
            fires schedules, carries out operations
==========  ====================================================================================

All roles may run in any number of processes. Stopping is graceful: nothing new is claimed, each run is released at its
next step as it is, and no attempt is counted.

A process whose SQLite file is deleted, moved or replaced stops by itself: nothing that it did from then on could be
recorded. ``failure`` says why; the caller that started the process ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING

from aft import after_fork
from aft.app.components import Components
from aft.app.views import unfinished_runs as leftover
from aft.app.views.unfinished_runs import Leftover
from aft.brokers.base import QueuesDiffer
from aft.compensation import stack
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.exlets.plans import PlanExecutor
from aft.dispatcher.intake import Intake
from aft.dispatcher.sweep.operations import OperationExecutor
from aft.dispatcher.sweep.schedules import ScheduleFirer
from aft.dispatcher.sweep.sweeper import Sweeper
from aft.errors import AftError, BrokerError, ConfigError, DatabaseMoved
from aft.flows.declare.registry import flow_names
from aft.flows.session.dependencies import Dependencies
from aft.flows.worker.worker import Worker
from aft.ids import RunId
from aft.recovery.delays import DelayQueues
from aft.recovery.lease_guard import LeaseGuard, while_leased
from aft.recovery.relay import Relay
from aft.recovery.sender import OutboxSender
from aft.recovery.service import Service, countdown
from aft.recovery.takeover import Takeover
from aft.rules.cases import sources
from aft.runs.records.notices import check_url
from aft.telemetry import DatabaseLost, FrameUnresolved
from aft.telemetry.live_events import LiveEvents

if TYPE_CHECKING:
    from aft.dispatcher.notify.notices import NoticeSender

#: Seconds between two checks that the SQLite file is still there.
FILE_PAUSE = 0.25
#: Seconds between two checks of queues that others had taken when the process started.
QUEUES_PAUSE = 60.0
#: Seconds that the end of a lease may take in any case, even if the stop's timeout has passed.
LEAVING = 1.0
#: Seconds that a stop waits for attempts that were given up: a late effect in this time is recorded.
LATE = 1.0


class Role(StrEnum):
    """A role of a dispatcher process."""

    INTAKE = "intake"
    WORK = "work"
    RELAY = "relay"
    SWEEP = "sweep"


class DispatcherProcess:
    """The services of one dispatcher. Start and stop it once; as a context manager it does both."""

    def __init__(self, app: Components, roles: frozenset[Role], concurrency: int) -> None:
        self._app = app
        self._roles = roles
        self._concurrency = concurrency
        self._begin_afresh()
        #: Called once ``failure`` is set, on a thread of this process.
        self.on_failure: Callable[[], None] = _nothing
        after_fork.register(self)

    def _begin_afresh(self) -> None:
        self._services: list[Service] = []
        self._intake: Intake | None = None
        self._notices: NoticeSender | None = None
        self._worker: Worker | None = None
        self._sender: OutboxSender | None = None
        self._deps: Dependencies | None = None
        self._lease = self._app.make_lease()
        self._forget_events: Callable[[], None] = _nothing
        self._stopped = threading.Event()
        #: Why this process has stopped by itself; None if it has not.
        self.failure: AftError | None = None

    def forget_in_child(self) -> None:
        """After a fork: reset; a process that was started is the parent's, which alone may stop it."""
        started = bool(self._services)
        after_fork.inherited.append(dict(vars(self)))
        self._forget_events()
        self._begin_afresh()
        if started:
            self._stopped.set()

    def start(self) -> None:
        """Check database, declarations and queues, then begin the lease and start worker and services.

        If one of these checks raises, nothing has been started. It also starts if others have taken some of the queues.
        """
        app, telemetry = self._app, self._app.telemetry
        app.check()
        app.registry.check()
        delays = app.delays()
        queues = self._declare_queues(delays)
        relay = Relay(app.store, app.broker, app.namespace, delays.topology, telemetry, app.clock, app.seal)
        self._sender = sender = OutboxSender(relay)
        dispatcher_deps = app.make_dispatcher_deps()
        plans = PlanExecutor(dispatcher_deps)
        self._intake = app.make_intake(delays, sender, plans)
        takeover = Takeover(app.namespace, app.store, app.clock, telemetry, self._intake.decide)
        self._services = [*queues, *self._make_outbox_services(relay, sender)]
        if Role.INTAKE in self._roles:
            self._services += self._make_intake_services(dispatcher_deps, self._intake, plans)
        if Role.SWEEP in self._roles:
            self._services += self._make_sweep_services(dispatcher_deps, self._intake, takeover)
        takeover.warm_up()
        if app.broker.has_live_events:
            live_events = LiveEvents(app.broker, app.namespace)
            self._forget_events = telemetry.subscribe(live_events.note)
            self._services.append(Service("live events", live_events.step, telemetry, live_events.interrupt))
        deps = self._deps = app.make_deps(self._lease, send=sender.try_send)
        self._begin_lease(deps)
        self._check_frames()
        if Role.WORK in self._roles:
            self._worker = Worker(deps, app.broker, takeover, self._concurrency, lambda: delays.declare(()))
            self._worker.start()
        receivers = [part.receiver.stop_consuming for part in (self._worker, self._intake) if part is not None]
        self._services.append(Service("keeper", LeaseGuard(self._lease, receivers).step, telemetry))
        if app.store.file is not None:
            self._services.append(Service("file", self._check_file, telemetry))
        for service in self._services:
            service.start()

    @property
    def executing(self) -> list[tuple[RunId, str]]:
        """The runs that this process executes now, each with its flow."""
        return [] if self._worker is None else self._worker.executing

    def drain(self) -> None:
        """Claim nothing new, and release runs at their next step; returns at once."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self, timeout: float | None = None) -> bool:
        """Drain, wait for it, and end every service; return False if a run had not reached a step's end in time.

        Then the lease is not ended: it expires, and the run is rescued.
        """
        if self._stopped.is_set():
            return True
        self._stopped.set()
        self.drain()
        left = countdown(self._app.clock, timeout)
        drained = self._worker is None or self._worker.join(left())
        if self._deps is not None:
            self._deps.abandoned.wait(LATE if timeout is None else min(LATE, left() or 0.0))
        for service in self._services:
            service.stop()
        for service in self._services:
            service.join(left())
        if self._notices is not None:
            self._notices.close(left())
        if self._intake is not None:
            self._intake.receiver.stop_consuming()
        if self._sender is not None:
            self._sender.close()
        self._forget_events()
        if drained:
            self._lease.end(None if timeout is None else max(LEAVING, left() or 0.0))
        return drained

    def leftover(self, released: Collection[str]) -> Leftover:
        """After ``stop``: return what is left unfinished; ``released`` are the runs released while it drained."""
        with self._app.store.read() as connection:
            return leftover.find_leftover(connection, self._app.namespace, self._lease.worker, released)

    def __enter__(self) -> DispatcherProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _declare_queues(self, delays: DelayQueues) -> list[Service]:
        """Declare the queues; if others have taken some of them, return the service that tries again and again.

        Runs need no queue: timers and sweeper continue them meanwhile.
        """

        def declare_again() -> float:
            try:
                delays.declare(())
            except QueuesDiffer as error:
                raise BrokerError(f"{error}. Until then runs go on by their timers, later than they could") from None
            return QUEUES_PAUSE

        try:
            delays.declare(self._app.waits())
        except QueuesDiffer:
            return [Service("queues", declare_again, self._app.telemetry)]
        return []

    def _make_outbox_services(self, relay: Relay, sender: OutboxSender) -> list[Service]:
        telemetry = self._app.telemetry
        services = [
            Service("sender", sender.send, telemetry, sender.interrupt),
            Service("confirm", sender.confirm_published, telemetry, sender.interrupt),
        ]
        if Role.RELAY in self._roles:
            services.append(Service(Role.RELAY.value, relay.step, telemetry))
        return services

    def _make_intake_services(self, deps: DispatcherDependencies, intake: Intake, plans: PlanExecutor) -> list[Service]:
        self._notices = self._make_notices(deps)
        telemetry = self._app.telemetry
        return [
            Service(Role.INTAKE.value, while_leased(self._lease, intake.step), telemetry, intake.receiver.interrupt),
            Service("plans", plans.step, telemetry, plans.interrupt),
            Service("notices", self._notices.step, telemetry),
        ]

    def _make_sweep_services(self, deps: DispatcherDependencies, intake: Intake, takeover: Takeover) -> list[Service]:
        app, settings = self._app, self._app.settings
        notify = _check_notify(settings.notify_parked_url)
        sweeper = Sweeper(deps, intake, takeover, lease=settings.lease, notify_parked=notify, broker=app.broker)
        steps = {
            Role.SWEEP.value: sweeper.step,
            "lookout": takeover.check_locks,
            "schedules": ScheduleFirer(deps).step,
            "operations": OperationExecutor(deps).step,
        }
        return [Service(name, step, app.telemetry) for name, step in steps.items()]

    def _make_notices(self, deps: DispatcherDependencies) -> NoticeSender:
        # Imported here: a process that sends no notices does not pay for loading an HTTP client.
        from aft.dispatcher.notify.notices import NoticeSender
        from aft.dispatcher.notify.receivers import Receivers

        settings = self._app.settings
        named = _check_notify(settings.notify_parked_url)
        receivers = Receivers(settings.listed_hosts, [] if named is None else [named])
        return NoticeSender(deps, settings.webhook_secrets, receivers)

    def _begin_lease(self, deps: Dependencies) -> None:
        flows = flow_names(self._app.registry) if Role.WORK in self._roles else []
        known = {name: one.type for name, one in sources.declared.items()}
        self._app.begin_lease(deps, roles=sorted(self._roles), flows=flows, sources=known)

    def _check_file(self) -> float:
        """Stop executing when the SQLite file is lost: what was begun may end, but cannot be recorded."""
        if self.failure is None:
            try:
                self._app.store.check_file()
            except DatabaseMoved as error:
                self._lease.expire()
                self.drain()
                for service in self._services:
                    service.stop()
                self.failure = error
                self._app.telemetry.emit(DatabaseLost(why=str(error)))
                self.on_failure()
        return FILE_PAUSE

    def _check_frames(self) -> None:
        """Report owed undos whose compensator this code does not have, before one of them is needed."""
        app = self._app
        if Role.WORK not in self._roles:
            return
        with app.store.read() as connection:
            owed = stack.compensators_in_use(connection, app.namespace, app.registry.known)
        for activity, compensator, count in owed:
            if app.registry.compensator(activity, compensator) is None:
                app.telemetry.emit(FrameUnresolved(activity=activity, compensator=compensator, runs=count))


def _nothing() -> None:
    """Do nothing: the default of callbacks."""


def _check_notify(url: str | None) -> str | None:
    """Return the URL for notices of parked runs; raises ConfigError without showing it: its path may hold a token."""
    try:
        return None if url is None else check_url(url)
    except ValueError as error:
        raise ConfigError(f"AFT_NOTIFY_PARKED_URL: {error}") from None
