"""Claims about batches: one run first, then more and more; nothing goes on once too many have failed again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from aft.runs.operations.batches import (
    GROWTH,
    MOST_IN_BATCH,
    MOST_IN_ROUND,
    AwaitBatch,
    EndOperation,
    GiveOrders,
    Progress,
    StopOperation,
    decide,
)
from aft.runs.operations.operation_rows import OperationRow, OperationState, OutcomeState, Verb

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROW = OperationRow(
    id="o",
    namespace="n",
    verb=Verb.RETRY,
    payload={},
    wanted="all",
    state=OperationState.OPEN,
    why=None,
    brake=0.05,
    rate=None,
    patience=60.0,
    total=0,
    batch=0,
    batch_size=0,
    made_by="ann",
    changed_by="ann",
    note=None,
    made_at=NOW,
    ordered_at=None,
    ended_at=None,
)


def progress(in_batch: int = 0, waited: float = 0.0, **runs: int) -> Progress:
    counts = {state: runs.get(state.value, 0) for state in OutcomeState}
    return Progress(counts, counts, in_batch, waited)


def test_the_first_batch_has_one_run_and_the_next_is_larger_once_that_has_passed() -> None:
    assert decide(ROW, progress(selected=100)) == GiveOrders(1, 1, 1)
    first = replace(ROW, batch=1, batch_size=1)
    assert decide(first, progress(1, selected=99, ordered=1)) == AwaitBatch(gives_up=False)
    assert decide(first, progress(1, selected=99, passed=1)) == GiveOrders(GROWTH, 2, GROWTH)


def test_a_batch_that_was_begun_is_completed_first() -> None:
    second = replace(ROW, batch=2, batch_size=5)
    assert decide(second, progress(3, selected=90, ordered=2, passed=2)) == GiveOrders(2, 2, 5)


def test_no_round_gives_more_orders_than_a_second_may_have() -> None:
    second = replace(ROW, batch=2, batch_size=25, rate=10.0)
    assert decide(second, progress(selected=90, passed=5)) == GiveOrders(10, 2, 25)
    assert decide(replace(second, rate=0.1), progress(selected=90, passed=5)) == GiveOrders(1, 2, 25)


def test_runs_that_go_on_for_too_long_are_not_waited_for() -> None:
    first = replace(ROW, batch=1, batch_size=1)
    assert decide(first, progress(1, 59.0, selected=9, ordered=1)) == AwaitBatch(gives_up=False)
    assert decide(first, progress(1, 60.0, selected=9, ordered=1)) == AwaitBatch(gives_up=True)


def test_it_stops_when_the_first_run_fails_again_and_says_how() -> None:
    first = replace(ROW, batch=1, batch_size=1)
    stopped = decide(first, progress(1, selected=99, returned=1))
    assert stopped == StopOperation("1 of 1 runs failed again, with the same failure; more than 5% may not")


def test_a_brake_of_everything_never_stops() -> None:
    free = replace(ROW, brake=1.0, batch=1, batch_size=1)
    assert isinstance(decide(free, progress(1, selected=99, returned=1)), GiveOrders)


def test_it_ends_when_every_run_has_its_outcome() -> None:
    assert decide(replace(ROW, batch=3, batch_size=25), progress(25, passed=30, refused=2)) == EndOperation()


@given(
    total=st.integers(1, 3000),
    bad=st.sets(st.integers(0, 2999), max_size=60),
    brake=st.sampled_from([0.0, 0.01, 0.05, 0.5, 1.0]),
)
def test_whatever_fails_every_run_is_ordered_once_or_it_stops_soon_after_the_brake(
    total: int, bad: set[int], brake: float
) -> None:
    row, given_to = replace(ROW, brake=brake), 0
    sizes: list[tuple[int, int]] = []
    while True:
        counts = Counter("returned" if nth in bad else "passed" for nth in range(given_to))
        step = decide(row, progress(row.batch_size, selected=total - given_to, **counts))
        if not isinstance(step, GiveOrders):
            break
        while isinstance(step, GiveOrders) and step.batch == row.batch + (
            0 if sizes and sizes[-1][0] == step.batch else 1
        ):
            if not sizes or sizes[-1][0] != step.batch:
                sizes.append((step.batch, 0))
            sizes[-1] = (step.batch, sizes[-1][1] + step.number)
            given_to += step.number
            row = replace(row, batch=step.batch, batch_size=step.batch_size)
            if sizes[-1][1] >= step.batch_size or given_to >= total:
                break
            step = decide(row, progress(sizes[-1][1], selected=total - given_to, ordered=sizes[-1][1], **counts))
            assert isinstance(step, GiveOrders)
    returned = sum(nth in bad for nth in range(given_to))
    if isinstance(step, StopOperation):
        assert returned > brake * given_to
    else:
        assert step == EndOperation()
        assert given_to == total
        assert returned <= brake * given_to
    assert all(size <= min(GROWTH ** (batch - 1), MOST_IN_BATCH) for batch, size in sizes)
    assert MOST_IN_ROUND <= MOST_IN_BATCH
