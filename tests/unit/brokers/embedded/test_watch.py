"""The bell wakes who waits for a queue, and keeps nothing of what nobody here waits for."""

from __future__ import annotations

from aft.brokers.embedded.watch import Bell


def test_names_that_nobody_waits_for_are_not_kept() -> None:
    bell = Bell()
    before = bell.count(["ours"])
    for number in range(1_000):
        bell.ring([f"flood-{number}"])
    assert len(bell._rung) == 1
    assert bell.count(["ours"]) == before


def test_a_ring_after_the_mark_ends_the_wait() -> None:
    bell = Bell()
    mark = bell.count(["ours", "both"])
    bell.ring(["both"])
    assert bell.wait(["ours", "both"], mark, 0.0)
    assert not bell.wait(["ours", "both"], mark + 1, 0.0)
    bell.ring_for_all()
    assert bell.wait(["ours"], bell.count(["ours"]) - 1, 0.0)
