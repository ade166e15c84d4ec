"""Claims about outside sources: bounded in time, with a default, never the reason why a fault is not decided."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from aft.errors import DefinitionError
from aft.rules.cases import sources
from aft.rules.cases.sources import MOST_HANGING, FactSource, fetch_named, source


@pytest.fixture(autouse=True)
def none_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "declared", {})
    monkeypatch.setattr(sources, "FRESH", 0.0)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a source hangs on; opened at the end, so that no thread is left."""
    opened = threading.Event()
    yield opened
    opened.set()


def a_source(fn: Any, default: Any = "default", timeout: float = 30.0) -> FactSource:
    return FactSource("it", fn, default, timedelta(seconds=timeout))


def test_a_source_answers_as_rules_see_it() -> None:
    assert a_source(lambda: Decimal("1.5")).fetch() == 1.5


def test_a_source_that_raises_counts_as_its_default() -> None:
    assert a_source(lambda: 1 // 0).fetch() == "default"


def test_a_source_that_takes_too_long_counts_as_its_default(gate: threading.Event) -> None:
    assert a_source(gate.wait, timeout=0.01).fetch() == "default"


def test_a_source_that_hangs_is_not_asked_without_end(gate: threading.Event) -> None:
    begun = threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        gate.wait()

    found = a_source(hang, timeout=0.01)
    assert [found.fetch() for _ in range(MOST_HANGING + 3)] == ["default"] * (MOST_HANGING + 3)
    assert all(begun.acquire(timeout=60) for _ in range(MOST_HANGING))
    assert not begun.acquire(blocking=False)


def test_an_answer_is_good_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FRESH", 1000.0)
    answers = iter((1, 2))
    found = a_source(lambda: next(answers))
    assert [found.fetch(), found.fetch()] == [1, 1]


def test_only_those_are_asked_that_a_condition_mentions() -> None:
    @source(default=0)
    def wanted() -> int:
        return 7

    @source(default=0)
    def unwanted() -> int:
        raise AssertionError("nobody asked")

    assert fetch_named({"source.wanted", "run.flow"}) == {"source.wanted": 7}
    assert sources.declared["wanted"].type == "int"


@pytest.mark.parametrize(
    ("name", "fn", "why"),
    [
        ("two words", lambda: 1, "cannot be called 'two words'"),
        ("given", lambda given: given, "takes nothing"),
    ],
)
def test_what_cannot_be_asked_is_refused_where_it_is_declared(name: str, fn: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        source(default=0, name=name)(fn)
