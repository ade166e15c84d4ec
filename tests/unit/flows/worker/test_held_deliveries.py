"""Claims about held deliveries: each is acknowledged once, when its run has left or after some seconds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aft.brokers.base import Delivery
from aft.envelope import Message
from aft.flows.worker.held_deliveries import LONGEST, HeldDeliveries
from aft.ids import OrderId, RunId
from aft.recovery.admission import AdmittedMessage
from aft.runs.run_rows import RunRow
from tests.storing import HandClock


def admitted(run: str, tag: int) -> AdmittedMessage:
    message = Message.about_order(RunId(run), OrderId("o"), datetime.now(UTC))
    return AdmittedMessage(Delivery("resume", b"", False, tag), message)


def row(run: str, epoch: int = 1) -> RunRow:
    fields: dict[str, Any] = dict.fromkeys(RunRow.__slots__)
    return replace(RunRow(**fields), id=RunId(run), epoch=epoch)


def tags(deliveries: list[Delivery]) -> list[object]:
    return [delivery.tag for delivery in deliveries]


def test_it_is_held_until_its_run_has_left() -> None:
    held, one = HeldDeliveries(HandClock()), admitted("a", 1)
    assert held.hold([row("a")], [one]) == {id(one.delivery)}
    assert held.pop_done() == []
    held.mark_done(row("a"))
    assert tags(held.pop_done()) == [1]
    assert held.pop_done() == []


def test_only_what_was_claimed_is_held_and_a_duplicate_is_not() -> None:
    held, one = HeldDeliveries(HandClock()), admitted("a", 1)
    found = held.hold([row("a")], [one, admitted("a", 2), admitted("b", 3)])
    assert found == {id(one.delivery)}


def test_after_some_seconds_it_is_held_no_longer_though_its_run_goes_on() -> None:
    clock = HandClock()
    held = HeldDeliveries(clock)
    held.hold([row("a")], [admitted("a", 1)])
    clock.passed = LONGEST - 0.01
    assert held.pop_done() == []
    clock.passed = LONGEST
    assert tags(held.pop_done()) == [1]
    held.mark_done(row("a"))
    assert held.pop_done() == []


def test_a_run_that_is_back_before_its_last_thread_said_goodbye_keeps_its_new_delivery() -> None:
    held = HeldDeliveries(HandClock())
    held.hold([row("a", 1)], [admitted("a", 1)])
    held.hold([row("a", 2)], [admitted("a", 2)])
    held.mark_done(row("a", 1))
    assert tags(held.pop_done()) == [1]
