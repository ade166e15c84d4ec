"""Every event, one dataclass each. The table of them is at the top of the package."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Event:
    """Base of all events: each subclass is a frozen dataclass. ``text`` is what the log says, in the past tense."""

    text: ClassVar[str] = ""
    level: ClassVar[int] = logging.INFO

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @property
    def name(self) -> str:
        return type(self).__name__


class RunStarted(Event):
    text = "run started"
    run: str
    flow: str


class RunClaimed(Event):
    text = "run claimed"
    level = logging.DEBUG
    run: str
    flow: str
    epoch: int
    wake: str


class RunReleased(Event):
    text = "run released"
    level = logging.DEBUG
    run: str
    flow: str
    why: str


class RunWaits(Event):
    text = "run began to wait"
    run: str
    flow: str
    what: str


class SignalRefused(Event):
    text = "signal refused"
    level = logging.WARNING
    run: str
    signal: str
    why: str


class RunEnded(Event):
    text = "run ended"
    run: str
    flow: str
    status: str


class RunParked(Event):
    text = "run parked"
    level = logging.ERROR
    run: str
    reason: str


class RunRescued(Event):
    text = "run rescued"
    level = logging.WARNING
    run: str
    flow: str
    worker: str
    fault: str


class RunOverdue(Event):
    text = "run overdue"
    level = logging.WARNING
    run: str
    flow: str
    expected: timedelta


class RunForgotten(Event):
    text = "stranded run woken"
    level = logging.ERROR
    run: str


class FlowUnserved(Event):
    text = "flow has no live worker"
    level = logging.WARNING
    flow: str
    version: int
    runs: int


class ActivityOverdue(Event):
    text = "activity overdue"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    expected: timedelta
    elapsed: timedelta


class WorkerDied(Event):
    text = "worker died"
    level = logging.WARNING
    worker: str
    why: str


class AttemptStarted(Event):
    text = "attempt started"
    level = logging.DEBUG
    run: str
    path: str
    activity: str
    attempt: int


class AttemptAbandoned(Event):
    text = "attempt abandoned"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    attempt: int
    why: str


class AttemptReturned(Event):
    text = "abandoned attempt returned"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    elapsed: timedelta


class WorkerSaturated(Event):
    text = "worker saturated"
    level = logging.ERROR
    abandoned: int
    why: str = (
        "the limit of abandoned attempts (AFT_MOST_ABANDONED) is reached: this process claims no run until one "
        "returns; restart it, and give the calls in those activities a time limit of their own"
    )


class WorkerResumed(Event):
    text = "worker resumed"
    abandoned: int


class ActivityRecorded(Event):
    text = "activity recorded"
    level = logging.DEBUG
    run: str
    path: str
    activity: str
    outcome: str
    frame: str | None
    elapsed: timedelta


class FrameCompensated(Event):
    text = "frame compensated"
    run: str
    path: str
    activity: str
    compensator: str


class FrameUnresolved(Event):
    text = "compensator missing"
    level = logging.WARNING
    activity: str
    compensator: str
    runs: int
    why: str = "runs owe this undo, and this process has no code for it: deploy it again, or they park there"


class FaultRaised(Event):
    text = "fault raised"
    run: str
    fault: str
    path: str | None
    activity: str
    kind: str
    type: str
    attempt: int


class FaultRouted(Event):
    text = "fault routed"
    run: str
    fault: str
    activity: str
    state: str
    queue: str | None
    why: str
    wait: timedelta | None


class RulesRefused(Event):
    text = "rules refused"
    level = logging.ERROR
    what: str
    why: str


class RuleWarned(Event):
    text = "rule not evaluated"
    level = logging.WARNING
    run: str
    fault: str
    why: str


class ExletDone(Event):
    text = "primitive carried out"
    run: str
    fault: str
    exlet: str
    primitive: str
    note: str | None = None


class WakeIgnored(Event):
    text = "wake ignored"
    level = logging.DEBUG
    run: str
    wake: str
    why: str


class MessageQuarantined(Event):
    text = "message quarantined"
    level = logging.ERROR
    queue: str
    reason: str


class MessagesDropped(Event):
    text = "refused messages dropped"
    level = logging.ERROR
    count: int


class OutboxRelayed(Event):
    text = "outbox relayed"
    level = logging.DEBUG
    messages: int


class LeaseLost(Event):
    text = "lease lost"
    level = logging.ERROR
    worker: str
    why: str


class DatabaseLost(Event):
    text = "database file lost"
    level = logging.ERROR
    why: str


class ScheduleFired(Event):
    text = "schedule fired"
    schedule: str
    occurrence: str
    run: str
    flow: str


class ScheduleSkipped(Event):
    text = "schedule skipped"
    level = logging.WARNING
    schedule: str
    occurrence: str
    why: str


class ScheduleBroken(Event):
    text = "schedule broken"
    level = logging.ERROR
    schedule: str
    why: str


class OperationStopped(Event):
    text = "operation stopped"
    level = logging.WARNING
    operation: str
    verb: str
    why: str


class OperationEnded(Event):
    text = "operation ended"
    operation: str
    verb: str
    passed: int
    failed: int
    refused: int


class NoticeAcknowledged(Event):
    text = "notice acknowledged"
    notice: str
    run: str
    receiver: str
    attempt: int


class NoticeFailed(Event):
    text = "notice failed"
    notice: str
    run: str
    receiver: str
    attempt: int
    why: str
    again_at: str


class NoticeGivenUp(Event):
    text = "notice given up"
    level = logging.ERROR
    notice: str
    run: str
    receiver: str
    attempt: int
    why: str


class EffectLate(Event):
    text = "late effect found"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    decision: str


class ServiceFailed(Event):
    text = "service failed"
    level = logging.ERROR
    service: str
    why: str


class ServiceRecovered(Event):
    text = "service recovered"
    service: str
    errors: int
