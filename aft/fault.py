"""Fault: the durable record that something went wrong, as it lies in the faults table.

A fault holds everything the dispatcher decides from, so that the dispatcher needs none of the user's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from aft.ids import FaultId, RunId, StepPath


class FaultKind(StrEnum):
    """What went wrong."""

    ACTIVITY = "activity"  #: an activity raised
    COMPENSATOR = "compensator"  #: a compensator raised
    FLOW = "flow"  #: the flow's own code raised
    ABORT = "abort"  #: the run's owner died or lost its lease
    CONSTRAINT = "constraint"  #: a rule says that something is not as it should be


class FaultState(StrEnum):
    """How far a fault has come."""

    OPEN = "open"  #: raised; nobody has decided yet
    WAITING = "waiting"  #: in the ladder, to be tried again at ``due_at``
    HANDLED = "handled"  #: an exlet is being carried out for it
    TRIED = "tried"  #: tried again, and failed again: a newer fault of the step took its place
    FINAL = "final"  #: no more tries; the failure is, or will be, raised at its call site
    PARKED = "parked"  #: its run waits for a person
    RESOLVED = "resolved"  #: a later try succeeded, or a person settled it


class Answer(StrEnum):
    """Whether a fault will pass by itself."""

    RECOVERABLE = "recoverable"
    UNRECOVERABLE = "unrecoverable"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``attempt`` counts the failures on its step, this one included; aborts are counted apart."""

    id: FaultId
    run_id: RunId
    path: StepPath | None
    kind: FaultKind
    name: str
    state: FaultState
    epoch: int
    attempt: int
    type: str
    lineage: tuple[str, ...]
    message: str
    args: str
    exact: bool
    traceback: str
    said: Answer | None
    declared: Answer | None
    status: int | None
    after: timedelta | None
    ladder: str
    raised_at: datetime
    level: int | None = None
    try_in_level: int | None = None
    wait: timedelta | None = None
    queue: str | None = None
    verdict: str | None = None
    due_at: datetime | None = None
    decided_at: datetime | None = None
    settled_at: datetime | None = None
    resource: str | None = None
    #: The signal that it waits for, instead of a time.
    signal: str | None = None
    #: The type of exception that its rules are asked for, where its kind does not tell.
    exception: str | None = None
    #: JSON: the exception's attributes, as ``flows.exceptions`` stores them.
    attributes: str = "{}"
    #: JSON: what rules may want to know of the step: ``args``, ``result``, ``elapsed``.
    step: str | None = None
    #: JSON: which rules were asked, with which facts, and what they chose.
    decision: str | None = None
    #: JSON: what the run's owner shall make of the step, as ``runs.rulings`` spells it.
    ruling: str | None = None
    #: The state of its run, and its tags as JSON, when it was decided about; None: it has not been.
    run_status: str | None = None
    run_tags: str | None = None

    @property
    def short_type(self) -> str:
        """The exception's class without its module."""
        return self.type.rpartition(".")[2]

    @property
    def signature(self) -> str:
        """What tells faults of the same sort from others: the same exception of the same step."""
        return f"{self.name}/{self.short_type}"

    def __str__(self) -> str:
        return f"{self.short_type}: {self.message}" if self.message else self.short_type

    def spell_parked(self, why: str) -> str:
        """Why a person has to look at its run, as was decided; of what is no failure of a step, just that."""
        if self.kind in (FaultKind.ABORT, FaultKind.CONSTRAINT):
            return why
        return f"{self.kind.value} {self.name!r} (step {self.path}) failed: {self}; {why}"
