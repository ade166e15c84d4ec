"""Decides what an operation does next: orders to one run first, then to more and more, unless they fail again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aft.runs.operations.operation_rows import OperationRow, OutcomeState

#: Each batch is this many times as large as the one before, up to the most.
GROWTH, MOST_IN_BATCH = 5, 500
#: Orders that are given in one round.
MOST_IN_ROUND = 100


@dataclass(frozen=True, slots=True)
class GiveOrders:
    """Order so many more runs, in this batch of this size."""

    number: int
    batch: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class AwaitBatch:
    """Wait for the runs of the batch; with ``gives_up`` no longer: what still goes on counts as under way."""

    gives_up: bool


@dataclass(frozen=True, slots=True)
class StopOperation:
    """Stop: too many of its runs have failed again."""

    why: str


@dataclass(frozen=True, slots=True)
class EndOperation:
    """Every run has its order and its outcome."""


NextStep = GiveOrders | AwaitBatch | StopOperation | EndOperation


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is: its runs by state, those of the batch under way, and how long that was waited for.

    ``counted`` are the runs by state that count for the brake: those ordered since a person resumed it last.
    """

    runs: Mapping[OutcomeState, int]
    counted: Mapping[OutcomeState, int]
    in_batch: int
    waited: float


def decide(row: OperationRow, progress: Progress) -> NextStep:
    """Return what to do next."""
    if (why := _find_why_to_stop(row, progress.counted)) is not None:
        return StopOperation(why)
    most = MOST_IN_ROUND if row.rate is None else max(1, min(MOST_IN_ROUND, int(row.rate)))
    left, ordered = progress.runs[OutcomeState.SELECTED], progress.runs[OutcomeState.ORDERED]
    if left and row.batch and progress.in_batch < row.batch_size:
        return GiveOrders(min(left, row.batch_size - progress.in_batch, most), row.batch, row.batch_size)
    if ordered:
        return AwaitBatch(gives_up=progress.waited >= row.patience)
    if not left:
        return EndOperation()
    size = min(row.batch_size * GROWTH, MOST_IN_BATCH) if row.batch else 1
    return GiveOrders(min(left, size, most), row.batch + 1, size)


def _find_why_to_stop(row: OperationRow, counted: Mapping[OutcomeState, int]) -> str | None:
    returned, failed = counted[OutcomeState.RETURNED], counted[OutcomeState.FAILED]
    given = sum(counted[state] for state in OutcomeState if state not in _WITHOUT_ORDER)
    bad = returned + failed
    if not bad or bad <= row.brake * given:
        return None
    how = f"{returned} with the same failure, {failed} with another" if returned and failed else _how(returned)
    return f"{bad} of {given} runs failed again, {how}; more than {row.brake:.0%} may not"


def _how(returned: int) -> str:
    return "with the same failure" if returned else "with another failure"


#: Runs that got no order.
_WITHOUT_ORDER = (OutcomeState.SELECTED, OutcomeState.REFUSED, OutcomeState.DROPPED)
