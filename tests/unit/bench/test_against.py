"""Claims about how two commits are compared; nothing is measured."""

from __future__ import annotations

import pytest

from bench.against import Comparison, Cost, compare


class Played:
    """A side that notes its turns, and costs what it is told to."""

    def __init__(self, name: str, costs: list[float], turns: list[str]) -> None:
        self.name, self.costs, self.turns = name, iter(costs), turns

    def play(self, setup: str, work: str) -> dict[str, float]:
        self.turns.append(self.name)
        return {"python": next(self.costs), "database": 1.0}


def played(before: list[float], now: list[float]) -> tuple[Comparison, list[str]]:
    turns: list[str] = []
    sides = Played("before", before, turns), Played("now", now, turns)
    (found,) = compare(*sides, ["sqlite"], ["start"], len(now))
    return found, turns


def test_both_sides_play_in_each_round_and_take_turns_in_being_first() -> None:
    _, turns = played([1.0, 1.0], [1.0, 1.0])
    assert turns == ["now", "before", "before", "now"]


def test_the_least_of_all_rounds_counts_of_python_and_the_database_together() -> None:
    found, _ = played([9.0, 3.0, 7.0], [5.0, 8.0, 7.0])
    assert found.ratio == pytest.approx((5.0 + 1.0) / (3.0 + 1.0))


def test_rounds_are_not_mixed() -> None:
    cost = Cost()
    cost.add({"python": 1.0, "database": 9.0})
    cost.add({"python": 5.0, "database": 2.0})
    assert cost.least == 7.0
