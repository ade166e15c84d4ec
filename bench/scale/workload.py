"""Flows that do nothing, so that only the cost of aft remains."""

from __future__ import annotations

import aft

#: Tries of an activity that stumbles; more than anybody asks for.
MOST_TRIES = 50


def undo(number: int) -> None:
    """Undo nothing; owed for each step."""


@aft.compensate_with(undo)
@aft.activity
def step(number: int) -> int:
    """Succeed."""
    return number


@aft.compensate_with(undo)
@aft.activity(levels=[aft.Level("1ms", tries=MOST_TRIES)])
def stumble(number: int, times: int) -> int:
    """Fail this many times, then succeed."""
    if aft.current().attempt <= times:
        raise ConnectionError("not now")
    return number


@aft.flow
def plain(activities: int) -> int:
    """Call this many activities that succeed."""
    for number in range(activities):
        step(number)
    return activities


@aft.flow
def troubled(activities: int, faults: int) -> int:
    """Call this many activities, of which the first one fails ``faults`` times."""
    stumble(0, faults)
    for number in range(1, activities):
        step(number)
    return activities
