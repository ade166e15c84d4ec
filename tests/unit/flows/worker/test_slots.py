"""Claims about slots: never more are taken than there are, and who waits is told when one is free."""

from __future__ import annotations

import threading

from aft.flows.worker.slots import Slots
from tests.setups import eventually


def test_as_many_are_taken_as_are_free_and_asked_for() -> None:
    slots = Slots(3)
    assert slots.take(2, timeout=0) == 2
    assert slots.take(2, timeout=0) == 1
    assert slots.take(2, timeout=0) == 0


def test_what_is_given_back_can_be_taken_again() -> None:
    slots = Slots(1)
    slots.take(1, timeout=0)
    slots.release(1)
    assert slots.take(1, timeout=0) == 1


def test_giving_back_nothing_changes_nothing() -> None:
    slots = Slots(2)
    slots.release(0)
    assert slots.take(5, timeout=0) == 2


def test_who_waits_for_a_slot_gets_the_one_that_is_given_back() -> None:
    slots, taken = Slots(1), list[int]()
    slots.take(1, timeout=0)
    waiting = threading.Thread(target=lambda: taken.append(slots.take(1, timeout=60)))
    waiting.start()
    slots.release(1)
    waiting.join(60)
    assert taken == [1]


def test_it_is_idle_when_every_slot_is_back() -> None:
    slots = Slots(2)
    assert slots.wait_idle(0)
    slots.take(2, timeout=0)
    slots.release(1)
    assert not slots.wait_idle(0)
    slots.release(1)
    assert slots.wait_idle(0)


def test_many_threads_never_hold_more_than_there_are() -> None:
    slots, lock = Slots(3), threading.Lock()
    held, most = 0, 0

    def work() -> None:
        nonlocal held, most
        for _ in range(200):
            taken = slots.take(2, timeout=60)
            with lock:
                held += taken
                most = max(most, held)
            with lock:
                held -= taken
            slots.release(taken)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 0 < most <= 3
    assert slots.wait_idle(0)


def test_all_are_taken_together_when_the_last_one_is_back_and_nobody_gets_one_meanwhile() -> None:
    slots, got = Slots(2), list[int]()
    slots.take(2, timeout=0)
    slots.release(1)
    waiting = threading.Thread(target=lambda: got.append(slots.take_all(timeout=60)))
    waiting.start()
    while slots.free(timeout=0):
        pass  # until it waits: then the free one is kept for it
    assert slots.take(1, timeout=0) == 0
    slots.release(1)
    waiting.join(60)
    assert got == [2]
    assert slots.free(timeout=0) == 0
    slots.release(2)
    assert slots.free(timeout=0) == 2


def test_who_does_not_get_all_in_time_gets_none() -> None:
    slots = Slots(2)
    slots.take(1, timeout=0)
    assert not slots.take_all(timeout=0)
    assert slots.free(timeout=0) == 1


def test_while_somebody_urgent_waits_nobody_else_gets_a_slot() -> None:
    slots = Slots(1)
    slots.take(1, 0)
    taken: list[int] = []
    urgent = threading.Thread(target=lambda: taken.append(slots.take(1, 10, urgent=True)))
    urgent.start()
    eventually(lambda: slots._urgent)
    slots.release(1)
    assert (slots.free(0), slots.take(1, 0)) == (0, 0)
    urgent.join()
    assert taken == [1]


def test_after_some_turns_of_the_urgent_the_next_one_is_the_others() -> None:
    slots = Slots(1)
    slots.take(1, 0)
    turns: list[str] = []
    lock = threading.Lock()

    def work(name: str, times: int, urgent: bool) -> None:
        for _ in range(times):
            while not slots.take(1, 10, urgent=urgent):
                pass
            with lock:
                turns.append(name)
            # The next one of its kind waits before the slot is free again.
            eventually(lambda: (slots._urgent > 0 and slots._others > 0) or len(turns) > 7)
            slots.release(1)

    threads = [threading.Thread(target=work, args=("urgent", 6, True)) for _ in range(2)]
    threads += [threading.Thread(target=work, args=("other", 6, False)) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: slots._urgent == slots._others == 2)
    slots.release(1)
    for thread in threads:
        thread.join(60)
    assert turns[:8] == ["urgent", "urgent", "urgent", "other"] * 2
