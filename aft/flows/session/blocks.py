"""Control flow by which a run leaves the flow's code, and the blocks that say why it cannot go on.

``Blocked`` is not an error, so it derives from ``BaseException``: a user's ``except Exception`` does not swallow it.
While a run is leaving, every aft call raises it again; a plain ``finally`` in flow code runs each time the run leaves.

A step that cannot go on now has one of the blocks below. A block alone does not release the run: other branches may be
at work. When none is any more, the runner releases the run, in one transaction for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from aft.errors import CodecError, LimitExceeded, ReplayDiverged
from aft.fault import Fault, FaultState
from aft.runs.records.inbox import InboxItem
from aft.runs.records.journal import Entry
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The step raised, and the fault is not decided yet; ``replaces`` are the faults that the new one replaces.

    ``written``: the fault has its row already. ``status`` is the run's status after it (None: unchanged).
    """

    fault: Fault
    status: Status | None
    replaces: tuple[str, ...] = ()
    written: bool = False
    #: Signals that its last try has consumed.
    items: tuple[InboxItem, ...] = ()


@dataclass(frozen=True, slots=True)
class RetryPending:
    """The step failed, and its next try is not due yet."""

    fault: Fault
    status: Status | None


@dataclass(frozen=True, slots=True)
class WaitPending:
    """The step waits for a signal, a time or a child."""

    wait: Wait
    status: Status | None = Status.WAITING


@dataclass(frozen=True, slots=True)
class DroppedStep:
    """A step whose outcome is dropped from the journal; ``same_key``: it is executed again under its key."""

    entry: Entry
    same_key: bool


@dataclass(frozen=True, slots=True)
class ParkNeeded:
    """The run waits for a person; ``reopens``: its step was recorded as failed, and may be tried again after all.

    ``redoes`` are steps that a retry executes again: they are dropped from the journal, and their effects are undone.
    ``mistake`` is an exception that the flow's code raised by mistake: what the code did while it propagated is to be
    forgotten. ``stays``: the run was parked before, and the orders since do not let it go on; ``answers`` are the inbox
    items that are marked read with that, each with its note: why it was not carried out, or None.
    """

    reason: str
    fault: Fault
    replaces: tuple[str, ...] = ()
    reopens: bool = False
    redoes: tuple[DroppedStep, ...] = ()
    mistake: BaseException | None = None
    stays: bool = False
    answers: tuple[tuple[InboxItem, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class RunRemoved:
    """An exlet has removed the step, and the run with it: the run ends as it is."""

    why: str


@dataclass(frozen=True, slots=True)
class ReleaseNeeded:
    """The step could go on, but not in this process; ``outcome_unknown``: it has begun."""

    why: str
    outcome_unknown: bool = False


@dataclass(frozen=True, slots=True)
class SuspensionNeeded:
    """A person ordered the run to stop, in ``items``."""

    why: str
    items: tuple[InboxItem, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A write failed, or aft has a defect: this process does not own the run any more, or soon will not."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class OrdersArrived:
    """An order or a ruling arrived: the run starts another pass with it."""


@dataclass(frozen=True, slots=True)
class StepNotBegun:
    """The step is not begun any more: the run is undone once the outcome of every step in doubt is known."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """When the run must be woken beside its other blocks: at its deadline, so that a blocked step can be interrupted.

    ``begins_more``: or earlier, because it has steps to begin as soon as a failure is known not to be final.
    """

    until: datetime
    begins_more: bool = False


Block = (
    StepFailed
    | RetryPending
    | WaitPending
    | ParkNeeded
    | RunRemoved
    | ReleaseNeeded
    | SuspensionNeeded
    | OrdersArrived
    | StepNotBegun
    | WriteFailed
    | WakeAt
)


def is_freed_by_inbox(block: Block) -> bool:
    """Whether a block waits for an inbox item."""
    if isinstance(block, WaitPending):
        return block.wait.kind is not WaitKind.SLEEP
    return isinstance(block, RetryPending) and block.fault.signal is not None


def may_end(block: Block) -> bool:
    """Whether a block can end without a person: at a certain time, or by an inbox item."""
    return isinstance(block, (WaitPending, RetryPending))


def ends_at(block: Block) -> datetime | None:
    """Return the time at which a block ends by itself, or None."""
    if isinstance(block, WaitPending):
        return block.wait.until
    if isinstance(block, RetryPending) and block.fault.state is FaultState.WAITING:
        return block.fault.due_at
    return None


def is_over(block: Block, now: datetime) -> bool:
    """Whether the time has come at which a block ends by itself."""
    end = ends_at(block)
    return end is not None and end <= now


def stay_parked(fault: Fault) -> ParkNeeded:
    """Return the block of a step or run that was already parked for this fault."""
    if fault.decided_at is None or fault.why is None:
        return ParkNeeded(fault.why or str(fault), fault, stays=True)
    return ParkNeeded(fault.describe_parked(fault.why), fault, stays=True)


def is_of_step(fault: Fault) -> bool:
    """Whether a fault is about a step of the flow, or its beginning or end, and not about a compensator."""
    return fault.path is not None and not fault.path.endswith("/undo")


class InboxChanged(Exception):
    """Raised when the run has to be read again: an inbox item arrived, or a write has changed what was read."""


class RunOver(Exception):
    """Raised when an order has ended the run: there is nothing more to do."""


class ContinueAsNew(BaseException):
    """Raised through flow code when the run continues as new: with other arguments and an empty journal."""

    def __init__(self, args: str) -> None:
        super().__init__(args)
        self.encoded = args


class BranchRemoved(BaseException):
    """Raised in a task at the step that an exlet has removed: the task ends there, with ``aft.REMOVED``."""


class Blocked(BaseException):
    """Raised through flow code when the run leaves this process; ``blocks`` say why."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__(blocks)
        self.blocks: Sequence[Block] = blocks


#: aft's own exceptions that pass through flow code: code that swallows one executes no further step.
CONTROL_FLOW = (Blocked, ContinueAsNew, BranchRemoved)


def explain_blocked(error: BaseException, parking: Callable[[BaseException], ParkNeeded]) -> Blocked:
    """Return the Blocked that an exception of the engine means: the flow's code must not get it as a step's failure."""
    if isinstance(error, Blocked):
        return error
    if isinstance(error, InboxChanged):
        return Blocked(OrdersArrived())
    if isinstance(error, (ReplayDiverged, CodecError, LimitExceeded)):
        return Blocked(parking(error))
    return Blocked(WriteFailed(error))  # Ctrl-C, or a defect of aft, beside what cannot be read or written
