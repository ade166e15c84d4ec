"""Settling steps costs as much for each of many as for each of few; counted, not measured."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from aft.clock import SystemClock
from aft.flows.asks import Ask, Landed, Returns
from aft.flows.settling import Settler
from aft.flows.standing import Standing
from aft.ids import StepPath
from aft.runs.journal import Entry, EntryKind, Outcome

#: How often anything of any step was looked at.
looks: Counter[str] = Counter()


class CountedAsk(Ask):
    """A step that counts how often somebody looks at it."""

    def __getattribute__(self, name: str) -> Any:
        looks["all"] += 1
        return super().__getattribute__(name)


def make_entry(number: int) -> Entry:
    path, at = StepPath(f"1.{number}"), datetime(2024, 5, 17, tzinfo=UTC)
    return Entry(path, "1", EntryKind.ACTIVITY, "visit", Outcome.OK, at, seq=number)


def make_ask(number: int) -> Ask:
    def perform(landed: Landed | None) -> Entry:
        entry = make_entry(number)
        if landed is not None:
            landed(entry)
        return entry

    path = StepPath(f"1.{number}")
    return CountedAsk(path, EntryKind.ACTIVITY, "visit", perform, lambda entry: Returns(None), quick=True)


class CountedPending(dict[StepPath, Ask]):
    """Steps of an async flow, that count how often somebody goes through them."""

    def keys(self) -> Any:
        looks["all"] += len(self)
        return super().keys()

    def values(self) -> Any:
        looks["all"] += len(self)
        return super().values()


def make_settler(recorded: int) -> Settler:
    """One for a run whose journal has so many outcomes."""
    nothing: Any = None
    stepper: Any = SimpleNamespace(
        tools=SimpleNamespace(clock=SystemClock()),
        standing=Standing(nothing, nothing, None),
        mailbox=SimpleNamespace(arrivals=0),
        owner=SimpleNamespace(run=SimpleNamespace(deadline_at=None, waits=()), unheeded=[]),
    )
    return Settler(stepper, [make_entry(number) for number in range(recorded)], nothing)


def settle(items: int, recorded: int) -> int:
    """Settle so many steps, of which so many have their outcome already; returns how often one was looked at."""
    settler, asks = make_settler(recorded), [make_ask(number) for number in range(items)]
    looks.clear()
    settler.settle(asks, 10)
    seen = looks["all"]
    assert all(ask.entry is not None for ask in asks)
    return seen


def hand_out(items: int) -> int:
    """Hand out so many recorded outcomes to an async flow; returns how often a step was looked at."""
    settler = make_settler(items)
    settler.pending = CountedPending((StepPath(f"1.{number}"), make_ask(number)) for number in range(items))
    looks.clear()
    for _ in range(items):
        assert settler.next() is not None
    return looks["all"]


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["none", "half", "all"])
def test_ten_times_the_items_are_ten_times_the_work(part: float) -> None:
    few, many = (settle(items, int(items * part)) for items in (200, 2000))
    assert many <= 11 * few


def test_ten_times_the_outcomes_of_an_async_flow_are_ten_times_the_work() -> None:
    few, many = (hand_out(items) for items in (200, 2000))
    assert many <= 11 * few
