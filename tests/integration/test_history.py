"""Claims about what rules learn of the past: faults of the same sort, in windows, and what came of each level."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from aft.rules.cases import history
from aft.store.tables import faults
from tests.storing import Stage

SAME = ("charge", "builtins.TimeoutError")
ALL = {*(f"history.same_{label}" for label in history.WINDOWS), "history.outcome"}


def learn(stage: Stage, ago: timedelta = timedelta(0), wanted: set[str] = ALL) -> dict[str, Any]:
    with stage.store.read() as connection:
        at = stage.clock.now() - ago
        return history.of_signature(connection, stage.namespace, *SAME, at, wanted)


@pytest.fixture
def past(stage: Stage) -> Stage:
    """One fault of the sort in each window, and others that are not of it."""
    owner, at = stage.owned(stage.lease()), stage.clock.now()
    for seconds in (30, 300, 3_000, 30_000, 300_000):
        stage.add_fault(owner, raised_at=at - timedelta(seconds=seconds))
    stage.add_fault(owner, name="ship", raised_at=at)
    stage.add_fault(owner, type="builtins.OSError", raised_at=at)
    return stage


def test_faults_of_the_same_sort_are_counted_in_each_window(past: Stage) -> None:
    found = learn(past)
    assert [found[f"history.same_{label}"] for label in ("1m", "10m", "1h", "1d")] == [1, 2, 3, 4]


def test_the_past_is_told_as_it_was_then(past: Stage) -> None:
    found = learn(past, ago=timedelta(seconds=200))
    assert [found[f"history.same_{label}"] for label in ("1m", "10m", "1h", "1d")] == [0, 1, 2, 3]


def test_only_what_is_wanted_is_asked(past: Stage) -> None:
    assert learn(past, wanted={"history.same_1h", "run.flow"}) == {"history.same_1h": 3}


def test_a_storm_of_faults_is_counted_up_to_a_bound(past: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_COUNTED", 2)
    assert learn(past)["history.same_1d"] == 2


def test_the_last_outcome_of_each_level_counts(stage: Stage) -> None:
    owner, at = stage.owned(stage.lease()), stage.clock.now()
    known = [(1, "tried", 50), (1, "resolved", 40), (2, "resolved", 30), (2, "final", 20), (3, "open", 10)]
    for level, state, seconds in known:
        fault = stage.add_fault(owner, raised_at=at - timedelta(seconds=seconds))
        with stage.store.write() as connection:
            connection.execute(update(faults).where(faults.c.id == fault.id).values(level=level, state=state))
    assert learn(stage)["history.outcome"] == {1: "resolved", 2: "final"}
