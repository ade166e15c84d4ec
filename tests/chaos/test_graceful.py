"""A graceful stop that burned something is found in the ledger, in the database, or in how the process ended."""

from __future__ import annotations

import pytest

from chaos.fleet import Hit
from chaos.graceful import burned
from chaos.ledger import Entry

STOPPED, OTHER = 7, 8
STOPS = [Hit(5.0, STOPPED, 0)]


def lines(*told: tuple[int, str, int]) -> list[Entry]:
    return [
        Entry(float(place), pid, "load", "0", what, "key", attempt) for place, (pid, what, attempt) in enumerate(told)
    ]


WELL = [
    lines((STOPPED, "begin", 1), (STOPPED, "raised", 1), (OTHER, "begin", 2), (OTHER, "done", 2)),
    lines((STOPPED, "begin", 1), (STOPPED, "done", 1), (OTHER, "undoing", 1), (OTHER, "undone", 1)),
    lines((OTHER, "begin", 1), (STOPPED, "begin", 1), (STOPPED, "done", 1)),
]
BROKEN = [
    lines((STOPPED, "begin", 1), (OTHER, "begin", 1), (OTHER, "done", 1)),
    lines((STOPPED, "begin", 1), (STOPPED, "done", 1), (OTHER, "begin", 1), (OTHER, "done", 1)),
    lines((STOPPED, "undoing", 1), (OTHER, "undoing", 1), (OTHER, "undone", 1)),
    lines((STOPPED, "undoing", 1), (STOPPED, "undone", 1), (OTHER, "undoing", 1), (OTHER, "undone", 1)),
]


@pytest.mark.parametrize("entries", WELL)
def test_who_ends_what_it_has_begun_burns_nothing(entries: list[Entry]) -> None:
    assert burned(STOPS, {STOPPED: 0}, entries, {OTHER}) == []


@pytest.mark.parametrize("entries", BROKEN)
def test_what_is_interrupted_or_repeated_for_a_stop_is_found(entries: list[Entry]) -> None:
    assert len(burned(STOPS, {STOPPED: 0}, entries, ())) == 1
    # It was not given the time to end it.
    assert burned(STOPS, {STOPPED: 3}, entries, ()) == []
    # Nobody had asked it.
    assert burned([], {}, entries, ()) == []


def test_who_does_not_stop_or_is_taken_for_dead_is_found() -> None:
    assert len(burned(STOPS, {}, [], ())) == 1
    assert len(burned(STOPS, {STOPPED: 0}, [], {STOPPED})) == 1
