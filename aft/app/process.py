"""A dispatcher process: the services that keep runs going, as many of them as it is told to have.

==========  ====================================================================================
role        what it does
==========  ====================================================================================
intake      takes faults off their queue and decides about them
work        executes runs that shall go on; needs the flows' code
relay       publishes what the outbox still holds
sweep       finds what lost messages, dead workers and late effects left lying; looks out for deaths;
            fires schedules
==========  ====================================================================================

All roles may run in any number of processes. Stopping is graceful: nothing new is taken, each run is let go at its next
step as it is, and no attempt is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

from aft.app.parts import Parts
from aft.compensation import stack
from aft.dispatcher.intake import Intake
from aft.dispatcher.schedules import Schedules
from aft.dispatcher.sweeper import Sweeper
from aft.flows.orphanage import Orphanage
from aft.flows.registry import flow_names
from aft.flows.tools import Tools
from aft.flows.worker import Worker
from aft.recovery.relay import Relay
from aft.recovery.service import Service
from aft.recovery.takeover import Takeover
from aft.telemetry import Event, FrameUnresolved, encode_event

#: Seconds between two looks of the relay at an empty outbox.
RELAY_PAUSE = 0.05


class Role(StrEnum):
    """What a dispatcher process may do."""

    INTAKE = "intake"
    WORK = "work"
    RELAY = "relay"
    SWEEP = "sweep"


class DispatcherProcess:
    """The services of one dispatcher. Start and stop it once; as a context manager it does both."""

    def __init__(self, app: Parts, roles: frozenset[Role], concurrency: int) -> None:
        self._app = app
        self._roles = roles
        self._concurrency = concurrency
        self._services: list[Service] = []
        self._intake: Intake | None = None
        self._worker: Worker | None = None
        self._lease = app.make_lease()
        self._forget_events: Callable[[], None] = _nothing
        self._stopped = threading.Event()

    def start(self) -> None:
        """Check database, declarations and queues, then begin; raises before anything has begun."""
        app, settings, telemetry = self._app, self._app.settings, self._app.telemetry
        app.check()
        app.registry.check()
        delays = app.delays()
        delays.declare(app.waits())
        relay = Relay(app.store, app.broker, app.namespace, delays.topology, telemetry, app.clock)
        self._intake = Intake(app.namespace, app.store, app.broker, delays, relay, app.clock, telemetry, settings.grace)
        takeover = Takeover(app.namespace, app.store, app.clock, telemetry, self._intake.decide)
        sweeper = Sweeper(
            app.namespace,
            app.store,
            self._intake,
            takeover,
            app.clock,
            telemetry,
            grace=settings.grace,
            lease=settings.lease,
        )
        steps = {
            Role.INTAKE: self._intake.step,
            Role.RELAY: lambda: 0.0 if relay.run_once() else RELAY_PAUSE,
            Role.SWEEP: sweeper.step,
        }
        self._services = [Service(role.value, steps[role], telemetry) for role in steps if role in self._roles]
        if Role.SWEEP in self._roles:
            self._services.append(Service("lookout", takeover.look, telemetry))
            schedules = Schedules(app.namespace, app.store, telemetry, settings.grace)
            self._services.append(Service("schedules", schedules.step, telemetry))
        self._forget_events = telemetry.subscribe(self._broadcast)
        tools = app.make_tools(self._lease, send=relay.try_send)
        self._join_workers(tools)
        self._check_frames()
        if Role.WORK in self._roles:
            self._worker = Worker(tools, app.broker, takeover, self._concurrency, lambda: delays.declare(()))
            self._worker.start()
        for service in self._services:
            service.start()

    def drain(self) -> None:
        """Take nothing new, and let runs go at their next step; returns at once."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self, timeout: float | None = None) -> bool:
        """Drain, wait for it, and end every service; False if a run had not come to a step's end in time."""
        if self._stopped.is_set():
            return True
        self._stopped.set()
        self.drain()
        drained = self._worker is None or self._worker.join(timeout)
        for service in self._services:
            service.stop()
        for service in self._services:
            service.join(timeout)
        if self._intake is not None:
            self._intake.close()
        self._forget_events()
        if drained:
            self._lease.end()
        return drained

    def __enter__(self) -> DispatcherProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _join_workers(self, tools: Tools) -> None:
        flows = flow_names(self._app.registry) if Role.WORK in self._roles else []
        self._lease.begin(roles=sorted(self._roles), flows=flows, on_beat=Orphanage(tools).collect)

    def _check_frames(self) -> None:
        """Tell of undos that are owed and that this code does not have, before one of them is needed at night."""
        app = self._app
        if Role.WORK not in self._roles:
            return
        with app.store.read() as connection:
            owed = stack.owed_kinds(connection, app.namespace, app.registry.known)
        for activity, compensator, count in owed:
            if app.registry.compensator(activity, compensator) is None:
                app.telemetry.emit(FrameUnresolved(activity=activity, compensator=compensator, runs=count))

    def _broadcast(self, event: Event) -> None:
        self._app.broker.express(self._app.namespace, encode_event(event, self._app.clock.now()))


def _nothing() -> None:
    """What there is to forget before anything was begun."""
