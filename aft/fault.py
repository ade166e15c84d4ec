"""Fault: the durable record that something went wrong, as stored in the faults table.

A fault holds everything the dispatcher decides from, so that the dispatcher needs none of the user's code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from aft.ids import FaultId, RunId, StepPath


class FaultKind(StrEnum):
    """The kind of failure."""

    ACTIVITY = "activity"  #: an activity raised
    COMPENSATOR = "compensator"  #: a compensator raised
    FLOW = "flow"  #: the flow's own code raised
    ABORT = "abort"  #: the run's owner died or lost its lease
    CONSTRAINT = "constraint"  #: a rule says that something is not as it should be


class FaultState(StrEnum):
    """The state of a fault."""

    OPEN = "open"  #: raised, and not decided yet
    WAITING = "waiting"  #: in the ladder, to be tried again at ``due_at``
    HANDLED = "handled"  #: an exlet is being carried out for it
    TRIED = "tried"  #: tried again, and failed again: a newer fault of the step took its place
    FINAL = "final"  #: no more tries; the failure is, or will be, raised at its call site
    PARKED = "parked"  #: its run waits for a person
    RESOLVED = "resolved"  #: a later try succeeded, or a person resolved it


class Recoverability(StrEnum):
    """Whether a fault is recoverable, as its exception or the declaration says."""

    RECOVERABLE = "recoverable"
    UNRECOVERABLE = "unrecoverable"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``attempt`` counts the failures of its step, this one included; aborts are counted separately."""

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
    message: str = field(repr=False)
    args: str = field(repr=False)
    args_exact: bool
    traceback: str = field(repr=False)
    own_answer: Recoverability | None
    declared_answer: Recoverability | None
    http_status: int | None
    after: timedelta | None
    ladder: str
    raised_at: datetime
    level: int | None = None
    try_in_level: int | None = None
    wait: timedelta | None = None
    queue: str | None = None
    why: str | None = field(default=None, repr=False)
    due_at: datetime | None = None
    decided_at: datetime | None = None
    settled_at: datetime | None = None
    resource: str | None = None
    #: The signal that it waits for, instead of a time.
    signal: str | None = None
    #: The rule type that its rules are asked for, where its kind does not determine it.
    rule_type: str | None = None
    #: JSON: the exception's attributes, as ``flows.exceptions.capture`` stores them.
    attributes: str = field(default="{}", repr=False)
    #: JSON: facts about the step, and exlets' changes to it, as ``rules.cases.step_snapshot`` encodes them.
    step_snapshot: str | None = field(default=None, repr=False)
    #: JSON: which rules were asked, with which facts, and what they chose.
    decision: str | None = field(default=None, repr=False)
    #: JSON: the ruling about the step that the run's owner applies, as ``runs.rulings`` encodes it.
    ruling: str | None = field(default=None, repr=False)
    #: The state of its run, and its tags as JSON, when it was decided about; None: it has not been.
    run_status: str | None = None
    run_tags: str | None = field(default=None, repr=False)
    #: The failure group: what faults of one cause share (``flows.exceptions.failure_groups``); None: it has none.
    group_id: str | None = None

    @property
    def short_type(self) -> str:
        """The exception's class without its module."""
        return self.type.rpartition(".")[2]

    @property
    def signature(self) -> str:
        """What faults of the same sort share: the same exception of the same step."""
        return f"{self.name}/{self.short_type}"

    def __str__(self) -> str:
        return f"{self.short_type}: {self.message}" if self.message else self.short_type

    def describe_parked(self, why: str) -> str:
        """Return why its run is parked; only ``why`` if it is no failure of a step."""
        if self.kind in (FaultKind.ABORT, FaultKind.CONSTRAINT):
            return why
        return f"{self.kind.value} {self.name!r} (step {self.path}) failed: {self}; {why}"
