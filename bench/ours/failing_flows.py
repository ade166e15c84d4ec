"""The flows of the fault path: activities that fail twice, then succeed; and a saga whose last one fails for good."""

from __future__ import annotations

import aft
from bench.lateness import Attempts

#: How often each activity fails.
FAILURES = 2
#: Where attempts are noted, if they are.
_notes: list[Attempts] = []


def note_attempts(path: str) -> None:
    """Begin to note when each attempt begins."""
    _notes.append(Attempts(path))


def _fail() -> int:
    current = aft.current()
    if _notes:
        _notes[0].note(current.run_id, current.attempt)
    if current.attempt <= FAILURES:
        raise ConnectionError("not now")
    return current.attempt


@aft.activity(levels=[aft.Level("1ms", tries=FAILURES)])
def fail_shortly() -> int:
    """Fail twice; retried after the shortest wait."""
    return _fail()


@aft.activity(levels=[aft.Level("1s", tries=FAILURES)])
def fail_for_a_second() -> int:
    """Fail twice; retried after a second."""
    return _fail()


@aft.flow
def failing_1ms() -> int:
    """One activity on the shortest ladder."""
    return fail_shortly()


@aft.flow
def failing_1s() -> int:
    """One activity with waits of a second."""
    return fail_for_a_second()


def undo(number: int) -> None:
    """Undo nothing."""


@aft.compensate_with(undo)
def book(number: int) -> int:
    """Return at once, with an undo that is owed."""
    return number


@aft.activity
def refuse() -> int:
    """Fail for good."""
    raise ValueError("no")


@aft.flow
def saga() -> int:
    """Five activities, of which the last fails and the others are undone."""
    for number in range(4):
        book(number)
    return refuse()
