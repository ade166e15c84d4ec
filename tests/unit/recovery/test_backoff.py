"""What failed is tried again later each time, and forgotten when it has not failed again."""

from __future__ import annotations

from aft.recovery.backoff import LONGEST, MOST, Backoff
from tests.storing import HandClock


def test_what_fails_again_and_again_is_left_alone_for_longer_each_time() -> None:
    clock = HandClock()
    backoff, waits = Backoff(clock), []
    for _ in range(12):
        backoff.note(["a"])
        begun = clock.passed
        while "a" in backoff.waiting():
            clock.passed += 1.0
        waits.append(clock.passed - begun)
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST


def test_what_did_not_fail_again_is_forgotten_and_what_still_waits_is_not() -> None:
    clock = HandClock()
    backoff = Backoff(clock)
    backoff.note(["a"])
    clock.passed = 1.0
    backoff.note(["b"])
    assert backoff.waiting() == {"b"}
    backoff.note(["a"])
    clock.passed = 2.0
    assert backoff.waiting() == set()


def test_only_so_many_are_remembered() -> None:
    backoff = Backoff(HandClock())
    backoff.note(str(number) for number in range(MOST + 1))
    assert len(backoff.waiting()) == MOST
