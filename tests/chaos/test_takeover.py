"""Takeover times are read from the ledger: only of runs that were in the hands of a process when it was killed."""

from __future__ import annotations

import pytest

from chaos.facts import RunFacts
from chaos.fleet import Hit
from chaos.ledger import Entry
from chaos.ledger_lines import longest_still
from chaos.load import Plan, StepPlan
from chaos.takeover import percentiles, takeovers

PLANS = [
    Plan(name, (StepPlan("plain"), StepPlan("slow", seconds=2.0)), "completed")
    for name in ("inside", "between", "waiting", "ended", "elsewhere", "slow")
]


def line(at: float, pid: int, load: str, step: int, what: str) -> Entry:
    return Entry(at, pid, load, str(step), what, "key", 1)


LINES = [
    line(1.0, 7, "inside", 0, "begin"),
    line(1.0, 7, "between", 0, "done"),
    line(1.0, 7, "waiting", 0, "raised"),
    line(1.0, 7, "ended", 1, "done"),
    line(1.0, 7, "elsewhere", 0, "done"),
    line(1.5, 8, "elsewhere", 1, "begin"),
    line(1.5, 7, "slow", 1, "begin"),
    line(2.1, 8, "inside", 0, "begin"),
    line(2.2, 9, "between", 1, "begin"),
    line(2.3, 9, "waiting", 0, "begin"),
    line(2.4, 9, "elsewhere", 1, "done"),
    line(5.0, 9, "slow", 1, "begin"),
]


def test_takeovers_are_those_of_runs_in_hand() -> None:
    found = {each.load: each for each in takeovers(PLANS, LINES, [Hit(2.0, 7, 0)])}
    assert set(found) == {"inside", "between", "slow"}
    assert [(name, round(found[name].seconds, 3), found[name].short) for name in ("inside", "between", "slow")] == [
        ("inside", 0.1, True),
        ("between", 0.2, True),
        ("slow", 3.0, False),
    ]


def test_one_that_goes_on_by_itself_is_not_taken_over() -> None:
    lines = [
        line(1.0, 7, "inside", 0, "begin"),
        line(1.0, 7, "between", 0, "begin"),
        line(3.0, 7, "inside", 0, "done"),  # and nobody knows of it
        line(3.0, 7, "between", 0, "done"),
        line(4.0, 7, "between", 1, "begin"),
        line(6.0, 8, "inside", 0, "begin"),
        line(9.0, 8, "between", 1, "begin"),
    ]
    assert [(each.load, each.seconds) for each in takeovers(PLANS, lines, [Hit(2.0, 7, 0)])] == [("inside", 4.0)]


def test_an_effect_that_is_undone_after_the_end_was_not_taken_over() -> None:
    """Its run had ended when the line to the process was cut; only that one knew of the effect."""
    lines = [line(1.0, 7, "inside", 0, "undone"), line(9.0, 8, "inside", 1, "undoing")]
    hits = [Hit(2.0, 7, 0)]
    assert [each.seconds for each in takeovers(PLANS, lines, hits)] == [7.0]
    assert takeovers(PLANS, lines, hits, {"inside": RunFacts("r", "compensated", ended=1.1)}) == []
    assert longest_still(PLANS[0], lines, {}, RunFacts("r", "compensated", ended=1.1)) == pytest.approx(0.1)


def test_percentiles() -> None:
    assert percentiles([]) == {"count": 0}
    assert percentiles(number / 100 for number in range(100)) == {"count": 100, "p50": 0.5, "p99": 0.99, "max": 0.99}
