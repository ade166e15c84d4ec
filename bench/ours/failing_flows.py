"""The flows of the fault path: activities that fail twice, then succeed; and a saga whose last one fails for good."""

from __future__ import annotations

import os
import time

import aft

#: How often each activity fails.
FAILURES = 2
#: Where attempts are noted, if they are.
_notes: list[int] = []


def note_attempts(path: str) -> None:
    """Begin to note when each attempt begins: run, attempt, seconds since 1970."""
    _notes.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))


def _fail() -> int:
    current = aft.current()
    if _notes:
        os.write(_notes[0], f"{current.run_id} {current.attempt} {time.time():.6f}\n".encode())
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
