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
    """A run was submitted."""

    text = "run started"
    run: str
    flow: str


class RunClaimed(Event):
    """A worker has claimed a run, and is about to execute it."""

    text = "run claimed"
    level = logging.DEBUG
    run: str
    flow: str
    epoch: int
    wake: str


class RunReleased(Event):
    """Its owner has released a run that another worker can continue."""

    text = "run released"
    level = logging.DEBUG
    run: str
    flow: str
    why: str


class RunWaits(Event):
    """A run was released because it waits for a signal, a time or a child."""

    text = "run began to wait"
    run: str
    flow: str
    what: str


class SignalRefused(Event):
    """A signal was not of the type that the flow declares."""

    text = "signal refused"
    level = logging.WARNING
    run: str
    signal: str
    why: str


class RunEnded(Event):
    """A run has ended."""

    text = "run ended"
    run: str
    flow: str
    status: str


class RunParked(Event):
    """A run waits for a person."""

    text = "run parked"
    level = logging.ERROR
    run: str
    reason: str


class RunRescued(Event):
    """A run was taken from a dead worker."""

    text = "run rescued"
    level = logging.WARNING
    run: str
    flow: str
    worker: str
    fault: str


class RunOverdue(Event):
    """A run takes longer than expected; emitted once."""

    text = "run overdue"
    level = logging.WARNING
    run: str
    flow: str
    expected: timedelta


class RunForgotten(Event):
    """A run that nothing would ever wake was found and woken."""

    text = "stranded run woken"
    level = logging.ERROR
    run: str


class FlowUnserved(Event):
    """Due runs were postponed because no live worker has their flow."""

    text = "flow has no live worker"
    level = logging.WARNING
    flow: str
    version: int
    runs: int


class ActivityOverdue(Event):
    """An activity takes longer than expected; emitted once for each attempt."""

    text = "activity overdue"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    expected: timedelta
    elapsed: timedelta


class WorkerDied(Event):
    """A worker's process has ended without stopping."""

    text = "worker died"
    level = logging.WARNING
    worker: str
    why: str


class AttemptStarted(Event):
    """An attempt of a step begins."""

    text = "attempt started"
    level = logging.DEBUG
    run: str
    path: str
    activity: str
    attempt: int


class AttemptAbandoned(Event):
    """An attempt was given up, and its function has not returned."""

    text = "attempt abandoned"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    attempt: int
    why: str


class AttemptReturned(Event):
    """The function of an abandoned attempt has returned."""

    text = "abandoned attempt returned"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    elapsed: timedelta


class WorkerSaturated(Event):
    """A worker claims no run because too many of its attempts were abandoned."""

    text = "worker saturated"
    level = logging.ERROR
    abandoned: int
    why: str = (
        "the limit of abandoned attempts (AFT_MOST_ABANDONED) is reached: this process claims no run until one "
        "returns; restart it, and give the calls in those activities a time limit of their own"
    )


class WorkerResumed(Event):
    """A saturated worker claims runs again."""

    text = "worker resumed"
    abandoned: int


class ActivityRecorded(Event):
    """The outcome of an activity was recorded."""

    text = "activity recorded"
    level = logging.DEBUG
    run: str
    path: str
    activity: str
    outcome: str
    frame: str | None
    elapsed: timedelta


class FrameCompensated(Event):
    """A compensator has run, and its frame was popped."""

    text = "frame compensated"
    run: str
    path: str
    activity: str
    compensator: str


class FrameUnresolved(Event):
    """Runs owe an undo whose compensator this process does not have."""

    text = "compensator missing"
    level = logging.WARNING
    activity: str
    compensator: str
    runs: int
    why: str = "runs owe this undo, and this process has no code for it: deploy it again, or they park there"


class FaultRaised(Event):
    """A fault was recorded."""

    text = "fault raised"
    run: str
    fault: str
    path: str | None
    activity: str
    kind: str
    type: str
    attempt: int


class FaultRouted(Event):
    """The dispatcher has decided about a fault."""

    text = "fault routed"
    run: str
    fault: str
    activity: str
    state: str
    queue: str | None
    why: str
    wait: timedelta | None


class RulesRefused(Event):
    """Stored rules or exlets cannot be used."""

    text = "rules refused"
    level = logging.ERROR
    what: str
    why: str


class RuleWarned(Event):
    """A rule could not be evaluated for a fault."""

    text = "rule not evaluated"
    level = logging.WARNING
    run: str
    fault: str
    why: str


class ExletDone(Event):
    """A primitive of an exlet was carried out."""

    text = "primitive carried out"
    run: str
    fault: str
    exlet: str
    primitive: str
    note: str | None = None


class WakeIgnored(Event):
    """A message named a wake that its run does not await."""

    text = "wake ignored"
    level = logging.DEBUG
    run: str
    wake: str
    why: str


class MessageQuarantined(Event):
    """A message was refused, and is held for a person."""

    text = "message quarantined"
    level = logging.ERROR
    queue: str
    reason: str


class MessagesDropped(Event):
    """Refused messages were deleted because newer ones need their room."""

    text = "refused messages dropped"
    level = logging.ERROR
    count: int


class OutboxRelayed(Event):
    """The relay has published messages that their writer had not."""

    text = "outbox relayed"
    level = logging.DEBUG
    messages: int


class LeaseLost(Event):
    """A worker's lease has expired while its process lives."""

    text = "lease lost"
    level = logging.ERROR
    worker: str
    why: str


class DatabaseLost(Event):
    """The SQLite file in use was deleted, moved or replaced."""

    text = "database file lost"
    level = logging.ERROR
    why: str


class ScheduleFired(Event):
    """A schedule has submitted a run."""

    text = "schedule fired"
    schedule: str
    occurrence: str
    run: str
    flow: str


class ScheduleSkipped(Event):
    """An occurrence of a schedule was skipped."""

    text = "schedule skipped"
    level = logging.WARNING
    schedule: str
    occurrence: str
    why: str


class ScheduleBroken(Event):
    """A schedule cannot be fired until a person changes it."""

    text = "schedule broken"
    level = logging.ERROR
    schedule: str
    why: str


class NoticeAcknowledged(Event):
    """The receiver of a notice has acknowledged it."""

    text = "notice acknowledged"
    notice: str
    run: str
    receiver: str
    attempt: int


class NoticeFailed(Event):
    """A notice could not be delivered, and will be sent again."""

    text = "notice failed"
    notice: str
    run: str
    receiver: str
    attempt: int
    why: str
    again_at: str


class NoticeGivenUp(Event):
    """A notice will not be sent again."""

    text = "notice given up"
    level = logging.ERROR
    notice: str
    run: str
    receiver: str
    attempt: int
    why: str


class EffectLate(Event):
    """An effect arrived after its step was recorded, or its run was taken over."""

    text = "late effect found"
    level = logging.WARNING
    run: str
    path: str
    activity: str
    decision: str


class ServiceFailed(Event):
    """A thread of this process met an error and goes on."""

    text = "service failed"
    level = logging.ERROR
    service: str
    why: str


class ServiceRecovered(Event):
    """A thread that had failed works again."""

    text = "service recovered"
    service: str
    errors: int
