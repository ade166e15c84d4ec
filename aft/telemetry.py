"""What happens inside aft, as events: one dataclass each; logs, metrics and live streams subscribe.

======================  ==============================================================  ==================
event                   happened                                                        who says it
======================  ==============================================================  ==================
``RunStarted``          a run was made durable                                          app
``RunClaimed``          a worker became a run's owner                                   worker
``RunReleased``         a worker gave a run back, undone work none                      worker
``RunWaits``            a run waits for a signal, a moment or a child                   worker
``SignalRefused``       a signal's value does not fit what the flow waits for           runner
``RunEnded``            a run reached a terminal state                                  worker
``RunParked``           a run waits for a person                                        worker, dispatcher
``RunRescued``          a run was taken from a dead owner                               sweeper, worker
``RunOverdue``          a run has not ended in the time it was expected to take         sweeper
``ActivityOverdue``     an activity takes, or took, longer than it was expected to      worker
``WorkerDied``          a worker's sign of life is gone before its lease ran out        sweeper, worker
``AttemptStarted``      an activity or compensator is being called                      runner
``ActivityRecorded``    an outcome was journaled, and its frame pushed if it has one    runner
``FrameCompensated``    a frame was undone                                              runner
``FrameUnresolved``     an undo is owed that the code of this process does not have     dispatcher
``FaultRaised``         a fault was recorded                                            runner
``FaultRouted``         the dispatcher decided about a fault                            dispatcher
``WakeIgnored``         a message was stale, repeated, or for a flow unknown here       worker, dispatcher
``MessageQuarantined``  a message was refused at the door                               worker, dispatcher
``OutboxRelayed``       messages that their writer did not publish were published       relay
``LeaseLost``           a worker could not renew in time and stopped writing            worker
``ScheduleFired``       a schedule's moment has come, and its run was made              dispatcher
``ScheduleSkipped``     a schedule's moment passed without a run                        dispatcher
``ScheduleBroken``      a schedule cannot be fired, and waits for a person              dispatcher
``EffectLate``          an effect finished after its owner had lost the run             runner
``ServiceFailed``       a thread of the dispatcher met an error and goes on             dispatcher
``ServiceRecovered``    it works again                                                  dispatcher
======================  ==============================================================  ==================

A subscriber runs on the thread that emits: it must be quick. One that raises is logged and kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

logger = logging.getLogger("aft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. ``text`` is what the log says, in the past tense."""

    text: ClassVar[str] = ""
    level: ClassVar[int] = logging.INFO

    @property
    def name(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    text = "run started"
    run: str
    flow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClaimed(Event):
    text = "run claimed"
    level = logging.DEBUG
    run: str
    flow: str
    epoch: int
    wake: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReleased(Event):
    text = "run released"
    level = logging.DEBUG
    run: str
    flow: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits(Event):
    text = "run waits"
    run: str
    flow: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRefused(Event):
    text = "signal refused"
    level = logging.WARNING
    run: str
    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    text = "run ended"
    run: str
    flow: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParked(Event):
    text = "run parked"
    level = logging.ERROR
    run: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRescued(Event):
    text = "run rescued"
    level = logging.WARNING
    run: str
    flow: str
    worker: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverdue(Event):
    text = "run overdue"
    level = logging.WARNING
    run: str
    flow: str
    expected: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOverdue(Event):
    text = "activity overdue"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    expected: timedelta
    elapsed: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event):
    text = "worker died"
    level = logging.WARNING
    worker: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    text = "attempt started"
    level = logging.DEBUG
    run: str
    path: str
    activity: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRecorded(Event):
    text = "activity recorded"
    level = logging.DEBUG
    run: str
    path: str
    activity: str
    outcome: str
    frame: str | None
    elapsed: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCompensated(Event):
    text = "frame compensated"
    run: str
    path: str
    activity: str
    compensator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameUnresolved(Event):
    text = "compensator missing"
    level = logging.WARNING
    activity: str
    compensator: str
    runs: int
    why: str = "runs owe this undo, and this code does not have it: bring it back, or they park there"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRaised(Event):
    text = "fault raised"
    run: str
    fault: str
    path: str | None
    activity: str
    kind: str
    type: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRouted(Event):
    text = "fault routed"
    run: str
    fault: str
    activity: str
    state: str
    queue: str | None
    verdict: str
    wait: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeIgnored(Event):
    text = "wake ignored"
    level = logging.DEBUG
    run: str
    wake: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuarantined(Event):
    text = "message quarantined"
    level = logging.ERROR
    queue: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRelayed(Event):
    text = "outbox relayed"
    level = logging.DEBUG
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    text = "lease lost"
    level = logging.ERROR
    worker: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFired(Event):
    text = "schedule fired"
    schedule: str
    moment: str
    run: str
    flow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSkipped(Event):
    text = "schedule skipped"
    level = logging.WARNING
    schedule: str
    moment: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBroken(Event):
    text = "schedule broken"
    level = logging.ERROR
    schedule: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectLate(Event):
    text = "effect late"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    fate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFailed(Event):
    text = "service failed"
    level = logging.ERROR
    service: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecovered(Event):
    text = "service recovered"
    service: str
    errors: int


Subscriber = Callable[[Event], None]


class Telemetry:
    """Hands each event to every subscriber; thread-safe. With none, emitting costs a loop over nothing."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Add a subscriber; call what is returned to take it away again."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(other for other in self._subscribers if other is not subscriber)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Tell everybody; never raises."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.exception("telemetry subscriber failed: event=%s", event.name)


def log_event(event: Event) -> None:
    """Write an event to the log ``aft``: what happened, then its fields. Subscribe this."""
    if logger.isEnabledFor(event.level):
        fields = " ".join(f"{key}={_one_line(value)}" for key, value in asdict(event).items() if value is not None)
        logger.log(event.level, "%s: %s", event.text, fields)


def encode_event(event: Event, at: datetime) -> bytes:
    """Spell an event as JSON, for the express channel."""
    fields = {key: _plain(value) for key, value in asdict(event).items()}
    return json.dumps({"event": event.name, "at": at.isoformat(), **fields}, separators=(",", ":")).encode()


def _one_line(value: Any) -> str:
    text = str(_plain(value))
    return text if text.isprintable() else repr(text)


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
