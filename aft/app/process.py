"""A dispatcher process: the services that keep runs going, as many of them as it is told to have.

==========  ====================================================================================
role        what it does
==========  ====================================================================================
intake      takes faults off their queue and decides about them; sends notices
work        executes runs that shall go on; needs the flows' code
relay       publishes what the outbox still holds
sweep       finds what lost messages, dead workers and late effects left lying; looks out for deaths;
            fires schedules
==========  ====================================================================================

All roles may run in any number of processes. Stopping is graceful: nothing new is taken, each run is let go at its next
step as it is, and no attempt is counted.

A process whose SQLite file is deleted, moved or replaced stops by itself: nothing that it did from then on could be
recorded. ``failure`` says why; whoever started the process ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aft import forked
from aft.app import leftover
from aft.app.leftover import Leftover
from aft.app.parts import Parts
from aft.compensation import stack
from aft.dispatcher.intake import Intake
from aft.dispatcher.plans import Plans
from aft.dispatcher.schedules import Schedules
from aft.dispatcher.sweeper import Sweeper
from aft.errors import AftError, ConfigError, DatabaseMoved
from aft.flows.registry import flow_names
from aft.flows.tools import Tools
from aft.flows.worker import Worker
from aft.ids import RunId
from aft.recovery.keeper import LeaseGuard, while_leased
from aft.recovery.relay import Relay
from aft.recovery.sender import OutboxSender
from aft.recovery.service import Service, countdown
from aft.recovery.takeover import Takeover
from aft.rules import sources
from aft.runs.notices import check_url
from aft.telemetry import DatabaseLost, Event, FrameUnresolved, encode_event

if TYPE_CHECKING:
    from aft.dispatcher.notices import Notices

#: Seconds between two looks of the relay at an empty outbox.
RELAY_PAUSE = 0.05
#: Seconds between two looks whether the SQLite file is still there.
FILE_PAUSE = 0.25
#: Seconds that the end of a lease may take in any case, when whoever stops has none left.
LEAVING = 1.0
#: Seconds that a stop waits for attempts that were given up: one that returns in them has its late effect kept.
LATE = 1.0


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
        self._begin_afresh()
        #: Called once ``failure`` is set, on a thread of this process.
        self.on_failure: Callable[[], None] = _nothing
        forked.tell(self)

    def _begin_afresh(self) -> None:
        self._services: list[Service] = []
        self._intake: Intake | None = None
        self._notices: Notices | None = None
        self._worker: Worker | None = None
        self._sender: OutboxSender | None = None
        self._tools: Tools | None = None
        self._lease = self._app.make_lease()
        self._forget_events: Callable[[], None] = _nothing
        self._stopped = threading.Event()
        #: Why this process can do nothing any more; None: it can.
        self.failure: AftError | None = None

    def forget_in_child(self) -> None:
        """After a fork: one that was started is the parent's, which alone may stop it."""
        started = bool(self._services)
        forked.inherited.append(dict(vars(self)))
        self._forget_events()
        self._begin_afresh()
        if started:
            self._stopped.set()

    def start(self) -> None:
        """Check database, declarations and queues, then begin; raises before anything has begun."""
        app, telemetry = self._app, self._app.telemetry
        app.check()
        app.registry.check()
        delays = app.delays()
        delays.declare(app.waits())
        relay = Relay(app.store, app.broker, app.namespace, delays.topology, telemetry, app.clock, app.seal)
        self._sender = sender = OutboxSender(relay)
        plans = app.make_plans()
        self._intake = app.make_intake(delays, sender, plans)
        takeover = Takeover(app.namespace, app.store, app.clock, telemetry, self._intake.decide)
        self._services = [
            Service("sender", sender.send, telemetry, sender.interrupt),
            Service("tidy", sender.tidy, telemetry),
        ]
        if Role.RELAY in self._roles:
            self._services.append(
                Service(Role.RELAY.value, lambda: 0.0 if relay.run_once() else RELAY_PAUSE, telemetry)
            )
        if Role.INTAKE in self._roles:
            self._services += self._make_intake_services(self._intake, plans)
        if Role.SWEEP in self._roles:
            self._services += self._make_sweep_services(self._intake, takeover)
        takeover.rehearse()
        self._forget_events = telemetry.subscribe(self._broadcast, lambda: app.broker.is_heard(app.namespace))
        tools = self._tools = app.make_tools(self._lease, send=sender.try_send)
        self._join_workers(tools)
        self._check_frames()
        if Role.WORK in self._roles:
            self._worker = Worker(tools, app.broker, takeover, self._concurrency, lambda: delays.declare(()))
            self._worker.start()
        receivers = [part.step_back for part in (self._worker, self._intake) if part is not None]
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
        """Take nothing new, and let runs go at their next step; returns at once."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self, timeout: float | None = None) -> bool:
        """Drain, wait for it, and end every service; False if a run had not come to a step's end in time."""
        if self._stopped.is_set():
            return True
        self._stopped.set()
        self.drain()
        left = countdown(self._app.clock, timeout)
        drained = self._worker is None or self._worker.join(left())
        if self._tools is not None:
            self._tools.abandoned.wait(LATE if timeout is None else min(LATE, left() or 0.0))
        for service in self._services:
            service.stop()
        for service in self._services:
            service.join(left())
        if self._notices is not None:
            self._notices.close(left())
        if self._intake is not None:
            self._intake.step_back()
        if self._sender is not None:
            self._sender.close()
        self._forget_events()
        if drained:
            self._lease.end(None if timeout is None else max(LEAVING, left() or 0.0))
        return drained

    def leftover(self, released: Collection[str]) -> Leftover:
        """After ``stop``: what is left unfinished; ``released`` are the runs that were let go of while it drained."""
        with self._app.store.read() as connection:
            return leftover.find(connection, self._app.namespace, self._lease.worker, released)

    def __enter__(self) -> DispatcherProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _make_intake_services(self, intake: Intake, plans: Plans) -> list[Service]:
        self._notices = self._make_notices()
        telemetry = self._app.telemetry
        return [
            Service(Role.INTAKE.value, while_leased(self._lease, intake.step), telemetry, intake.interrupt),
            Service("plans", plans.step, telemetry, plans.interrupt),
            Service("notices", self._notices.step, telemetry),
        ]

    def _make_sweep_services(self, intake: Intake, takeover: Takeover) -> list[Service]:
        app, grace, lease = self._app, self._app.settings.grace, self._app.settings.lease
        sweeper = Sweeper(
            app.namespace,
            app.store,
            intake,
            takeover,
            app.clock,
            app.telemetry,
            grace=grace,
            lease=lease,
            notify_parked=_check_notify(app.settings.notify_parked_url),
            broker=app.broker,
        )
        schedules = Schedules(app.namespace, app.store, app.telemetry, grace)
        steps = {Role.SWEEP.value: sweeper.step, "lookout": takeover.look, "schedules": schedules.step}
        return [Service(name, step, app.telemetry) for name, step in steps.items()]

    def _make_notices(self) -> Notices:
        # Imported here: a process that tells nobody does not pay for loading an HTTP client.
        from aft.dispatcher.notices import Notices
        from aft.dispatcher.receivers import Receivers

        app, settings = self._app, self._app.settings
        named = [] if settings.notify_parked_url is None else [urlsplit(settings.notify_parked_url).hostname or ""]
        receivers = Receivers(settings.listed_hosts, named)
        return Notices(app.namespace, app.store, app.telemetry, app.clock, settings.webhook_secrets, receivers)

    def _join_workers(self, tools: Tools) -> None:
        flows = flow_names(self._app.registry) if Role.WORK in self._roles else []
        known = {name: one.type for name, one in sources.declared.items()}
        self._app.join_workers(tools, roles=sorted(self._roles), flows=flows, sources=known)

    def _check_file(self) -> float:
        """Stop executing when the SQLite file is lost: what was begun may end, and cannot be recorded."""
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
        self._app.broker.express(self._app.namespace, encode_event(event))


def _nothing() -> None:
    """What there is to call before anything was begun, or if nobody asked to be told."""


def _check_notify(url: str | None) -> str | None:
    """Return the URL that notices of parked runs go to; raises ConfigError, without it: its path may hold a token."""
    try:
        return None if url is None else check_url(url)
    except ValueError as error:
        raise ConfigError(f"AFT_NOTIFY_PARKED_URL: {error}") from None
