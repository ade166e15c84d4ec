"""The flows that are measured: activities that do nothing, so that only the cost of aft remains."""

from __future__ import annotations

import aft


@aft.activity
def step(number: int) -> int:
    """Return at once."""
    return number


@aft.flow
def happy(steps: int) -> int:
    """Call this many activities, one after the other."""
    return sum(step(number) for number in range(steps))


def undo(number: int) -> None:
    """Undo nothing."""


@aft.compensate_with(undo)
def owed_step(number: int) -> int:
    """Return at once, with an undo that is owed."""
    return number


@aft.flow
def owing(steps: int) -> int:
    """Call this many activities, each with a frame."""
    return sum(owed_step(number) for number in range(steps))
