"""Claims about the sender: nobody waits for it, what waits is sent together, and what it does not send is left."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from aft.errors import StoreError
from aft.recovery.sender import MOST_AT_ONCE, OutboxSender
from aft.store.outbox import OutboxRow


def rows(*numbers: int) -> list[OutboxRow]:
    return [OutboxRow(number, "queue", "{}") for number in numbers]


class Relay:
    """Remembers what was to be sent; while ``slow`` is not set it keeps its caller waiting."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.threads: list[int] = []
        self.slow = threading.Event()
        self.slow.set()
        self.asked = threading.Event()
        self.deleted: list[list[int]] = []
        self.away = self.lost = False

    def try_publish(self, rows: Sequence[OutboxRow]) -> bool:
        self.asked.set()
        self.slow.wait(60)
        self.threads.append(threading.get_ident())
        self.sent.append([row.id for row in rows])
        return not self.away

    def confirm(self, rows: Sequence[OutboxRow]) -> None:
        if self.lost:
            raise StoreError("the database is away", transient=True)
        self.deleted.append([row.id for row in rows])

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        self.try_publish(rows)
        self.confirm(rows)


def test_what_waits_is_sent_together_and_in_order() -> None:
    relay = Relay()
    sender = OutboxSender(relay)
    sender.try_send(rows(1, 2))
    sender.try_send(rows(3))
    sender.send()
    assert relay.sent == [[1, 2, 3]]


def test_much_is_sent_in_several_rounds() -> None:
    relay = Relay()
    sender = OutboxSender(relay)
    sender.try_send(rows(*range(MOST_AT_ONCE + 1)))
    sender.send()
    sender.send()
    assert [len(batch) for batch in relay.sent] == [MOST_AT_ONCE, 1]


def test_who_hands_over_does_not_wait_for_a_slow_broker() -> None:
    relay = Relay()
    relay.slow.clear()
    sender = OutboxSender(relay)
    sender.try_send(rows(1))
    thread = threading.Thread(target=sender.send)
    thread.start()
    assert relay.asked.wait(60)
    sender.try_send(rows(2))  # would never return, if it waited for the first
    relay.slow.set()
    thread.join(60)
    sender.close()
    assert relay.sent == [[1], [2]]


def test_what_does_not_fit_in_is_left_to_the_relay() -> None:
    relay = Relay()
    sender = OutboxSender(relay, most=3)
    sender.try_send(rows(1, 2))
    sender.try_send(rows(3, 4, 5))
    sender.try_send(rows(6))
    sender.close()
    assert relay.sent == [[1, 2, 3]]


def test_what_was_published_is_deleted_together() -> None:
    relay = Relay()
    sender = OutboxSender(relay)
    for number in (1, 2):
        sender.try_send(rows(number))
        sender.send()
    assert relay.deleted == []
    sender.confirm_published()
    sender.confirm_published()
    assert relay.deleted == [[1, 2]]


def test_what_could_not_be_published_is_not_deleted() -> None:
    relay = Relay()
    relay.away = True
    sender = OutboxSender(relay)
    sender.try_send(rows(1))
    sender.send()
    sender.confirm_published()
    assert relay.deleted == []


def test_what_could_not_be_deleted_is_deleted_later() -> None:
    relay = Relay()
    relay.lost = True
    sender = OutboxSender(relay)
    sender.try_send(rows(1))
    sender.send()
    with pytest.raises(StoreError):
        sender.confirm_published()
    relay.lost = False
    sender.confirm_published()
    assert relay.deleted == [[1]]


def test_at_its_end_it_sends_what_is_left() -> None:
    relay = Relay()
    sender = OutboxSender(relay)
    sender.try_send(rows(1))
    sender.close()
    sender.close()
    assert relay.sent == [[1]]
    assert relay.deleted == [[1]]


def test_what_comes_after_its_end_is_sent_by_whoever_brings_it() -> None:
    relay = Relay()
    sender = OutboxSender(relay)
    sender.close()
    sender.try_send(rows(1))
    assert relay.sent == [[1]]
    assert relay.threads == [threading.get_ident()]
