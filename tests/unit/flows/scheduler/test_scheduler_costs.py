"""Settling steps costs as much for each of many as for each of few; counted, not measured."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from aft.clock import SystemClock
from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.session.step_states import StepStates
from aft.flows.steps.request import OnRecorded, Returns, StepRequest
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome

#: How often anything of any step was looked at.
looks: Counter[str] = Counter()


class CountedAsk(StepRequest):
    """A step that counts how often somebody looks at it."""

    def __getattribute__(self, name: str) -> Any:
        looks["all"] += 1
        return super().__getattribute__(name)


def make_entry(number: int) -> Entry:
    path, at = StepPath(f"1.{number}"), datetime(2024, 5, 17, tzinfo=UTC)
    return Entry(path, "1", EntryKind.ACTIVITY, "visit", Outcome.OK, at, seq=number)


def make_ask(number: int) -> StepRequest:
    def perform(on_recorded: OnRecorded | None) -> Entry:
        entry = make_entry(number)
        if on_recorded is not None:
            on_recorded(entry)
        return entry

    path = StepPath(f"1.{number}")
    return CountedAsk(path, EntryKind.ACTIVITY, "visit", perform, lambda entry: Returns(None), quick=True)


class CountedPending(dict[StepPath, StepRequest]):
    """Steps of an async flow, that count how often somebody goes through them."""

    def keys(self) -> Any:
        looks["all"] += len(self)
        return super().keys()

    def values(self) -> Any:
        looks["all"] += len(self)
        return super().values()


def make_scheduler(recorded: int) -> StepScheduler:
    """One for a run whose journal has so many outcomes."""
    nothing: Any = None
    session: Any = SimpleNamespace(
        deps=SimpleNamespace(clock=SystemClock()),
        step_states=StepStates(nothing, nothing, None),
        run_inbox=SimpleNamespace(arrivals=0),
        owner=SimpleNamespace(run=SimpleNamespace(deadline_at=None, waits=()), pending_orders=[]),
    )
    return StepScheduler(session, [make_entry(number) for number in range(recorded)], nothing)


def settle(items: int, recorded: int) -> int:
    """Settle so many steps, of which so many have their outcome already; returns how often one was looked at."""
    scheduler, asks = make_scheduler(recorded), [make_ask(number) for number in range(items)]
    looks.clear()
    scheduler.complete(asks, 10)
    seen = looks["all"]
    assert all(ask.entry is not None for ask in asks)
    return seen


def hand_out(items: int) -> int:
    """Hand out so many recorded outcomes to an async flow; returns how often a step was looked at."""
    scheduler = make_scheduler(items)
    scheduler.pending = CountedPending((StepPath(f"1.{number}"), make_ask(number)) for number in range(items))
    looks.clear()
    for _ in range(items):
        assert scheduler.next() is not None
    return looks["all"]


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["none", "half", "all"])
def test_ten_times_the_items_are_ten_times_the_work(part: float) -> None:
    few, many = (settle(items, int(items * part)) for items in (200, 2000))
    assert many <= 11 * few


def test_ten_times_the_outcomes_of_an_async_flow_are_ten_times_the_work() -> None:
    few, many = (hand_out(items) for items in (200, 2000))
    assert many <= 11 * few
