"""Judges what came of the order to one run, from what is seen of the run since. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aft.fault import Fault
from aft.runs.operations.operation_rows import OutcomeState, Verb
from aft.runs.run_rows import RunRow
from aft.runs.states import Status

#: States in which a run that goes forward lets go of its worker.
_AT_REST = (Status.WAITING, Status.RECOVERING, Status.SUSPENDED)


class ExpectedEnd(StrEnum):
    """How a run should end after its order."""

    COMPLETED = "completed"
    UNDONE = "undone"  #: compensated, or cancelled as it is
    ENDED = "ended"  #: its flow goes another way, or is undone


@dataclass(frozen=True, slots=True)
class OrderedRun:
    """A run as it was when it got its order; ``group`` is the failure group of its last fault then."""

    epoch: int
    group: str | None
    expected: ExpectedEnd


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """What came of an order, and a note for the report."""

    state: OutcomeState
    note: str | None = None


def expect(verb: Verb, run: RunRow) -> ExpectedEnd:
    """Return how a run should end after this order."""
    if verb in (Verb.CANCEL, Verb.COMPENSATE) or run.cause is not None:
        return ExpectedEnd.UNDONE
    return ExpectedEnd.ENDED if verb is Verb.FAIL else ExpectedEnd.COMPLETED


def judge(verb: Verb, ordered: OrderedRun, run: RunRow, failure: Fault | None) -> OrderOutcome | None:
    """Return the outcome of an order, or None if nothing is known yet; ``failure`` is the last fault since."""
    if run.epoch <= ordered.epoch and run.wake_id is not None:
        return None  # the order is still on its way; the run may have ended before it
    if run.status.ended:
        return _judge_end(ordered.expected, run)
    if verb is Verb.SUSPEND:
        return OrderOutcome(OutcomeState.PASSED) if run.status is Status.SUSPENDED else None
    undoes = ordered.expected is ExpectedEnd.UNDONE
    if failure is not None and (not undoes or run.status is Status.PARKED):
        same = failure.group_id is not None and failure.group_id == ordered.group
        return OrderOutcome(OutcomeState.RETURNED if same else OutcomeState.FAILED, f"{failure.name}: {failure}")
    if run.worker_id is not None or run.epoch <= ordered.epoch:
        return None  # it is at work
    if run.status is Status.PARKED and run.wake_id is None:
        return OrderOutcome(OutcomeState.FAILED, run.reason)
    if run.status in _AT_REST and not undoes:
        return OrderOutcome(OutcomeState.PASSED, f"it is {run.status.value}")
    return None


def _judge_end(expected: ExpectedEnd, run: RunRow) -> OrderOutcome:
    good = {
        ExpectedEnd.COMPLETED: (Status.COMPLETED,),
        ExpectedEnd.UNDONE: (Status.COMPENSATED, Status.CANCELLED),
        ExpectedEnd.ENDED: (Status.COMPLETED, Status.COMPENSATED),
    }[expected]
    passed = run.status in good
    return OrderOutcome(OutcomeState.PASSED if passed else OutcomeState.FAILED, f"it is {run.status.value}")
