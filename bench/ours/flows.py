"""The flows that are measured: activities that do nothing, so that what is left is what aft costs."""

from __future__ import annotations

import aft


@aft.activity
def step(number: int) -> int:
    """Work that is done at once."""
    return number


@aft.flow
def happy(steps: int) -> int:
    """So many activities, one after the other."""
    return sum(step(number) for number in range(steps))


def undo(number: int) -> None:
    """Undo nothing."""


@aft.compensate_with(undo)
def owed_step(number: int) -> int:
    """Work that is done at once, and that would have to be undone."""
    return number


@aft.flow
def owing(steps: int) -> int:
    """So many activities, each with a frame."""
    return sum(owed_step(number) for number in range(steps))
