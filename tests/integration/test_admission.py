"""Claims about the door: what may be stale is let go, what cannot be right is kept with its reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from aft.brokers.base import Delivery
from aft.envelope import Message, MessageKind
from aft.ids import FaultId, OrderId, RunId, new_id
from aft.recovery.admission import KEPT_EACH_SECOND, MOST_KEPT, Admission
from aft.runs.records import quarantine
from aft.security.seal import Seal
from aft.telemetry import MessageQuarantined, MessagesDropped, WakeIgnored
from tests.storing import Stage


def come_in(stage: Stage, *messages: Message) -> None:
    """Let messages in, none of which wakes anything."""
    door = Admission(stage.namespace, stage.store, stage.telemetry, [MessageKind.RESUME], Seal(), stage.clock)
    admitted = door.admit([Delivery("resume", message.encode().encode(), False) for message in messages])
    assert [one.message for one in admitted] == list(messages)
    door.report_stale(admitted, lambda row, message: f"stale, as {row.flow} was told")


def reasons(stage: Stage) -> list[str]:
    with stage.store.read() as connection:
        return sorted(one.reason for one in quarantine.listing(connection, stage.namespace))


def test_an_order_that_was_carried_out_is_stale(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    come_in(stage, Message.about_order(owner.run_id, OrderId(new_id()), datetime.now(UTC)))
    assert [event.why for event in stage.events if isinstance(event, WakeIgnored)] == ["stale, as order was told"]
    assert reasons(stage) == []


def test_a_fault_that_was_decided_is_stale(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    fault = stage.add_fault(owner)
    come_in(stage, Message.about_fault(MessageKind.RESUME, owner.run_id, fault.id, datetime.now(UTC)))
    assert reasons(stage) == []


def test_what_does_not_exist_or_belongs_to_another_run_is_kept_with_its_reason(stage: Stage) -> None:
    mine, other = stage.owned(stage.lease()), stage.owned(stage.lease())
    fault, at = stage.add_fault(other), datetime.now(UTC)
    unknown = Message.about_fault(MessageKind.RESUME, mine.run_id, FaultId("nothing"), at)
    come_in(
        stage,
        Message.about_order(RunId("nobody"), OrderId("o"), at),
        Message.about_fault(MessageKind.RESUME, mine.run_id, fault.id, at),
        unknown,
        replace(unknown, run=other.run_id),
    )
    assert reasons(stage) == sorted(
        [
            f"there is no run nobody in namespace {stage.namespace!r}",
            f"run {mine.run_id} has no fault {fault.id}",
            f"run {mine.run_id} has no fault nothing",
            f"run {other.run_id} has no fault nothing",
        ]
    )
    assert sum(isinstance(event, MessageQuarantined) for event in stage.events) == 4


def test_a_run_of_another_namespace_is_no_run_of_ours(stage: Stage) -> None:
    owner = stage.owned(stage.lease(), namespace="another")
    come_in(stage, Message.about_order(owner.run_id, OrderId("o"), datetime.now(UTC)))
    assert len(reasons(stage)) == 1


def test_of_a_flood_so_many_are_kept_and_the_others_are_counted(stage: Stage) -> None:
    door = Admission(stage.namespace, stage.store, stage.telemetry, [MessageKind.RESUME], Seal(), stage.clock)
    for _ in range(100):
        assert door.admit([Delivery("resume", b"junk", False)] * 20) == []
    assert kept(stage) == MOST_KEPT
    stage.clock.passed += 2.0
    assert door.admit([Delivery("resume", b"junk", False)] * 1000) == []
    assert kept(stage) == MOST_KEPT + 2 * KEPT_EACH_SECOND
    told = [event.count for event in stage.events if isinstance(event, MessagesDropped)]
    assert len(told) == 2, "once a second at the most"
    assert sum(told) == 3000 - kept(stage)
    assert sum(isinstance(event, MessageQuarantined) for event in stage.events) == kept(stage)


def test_what_is_about_nothing_is_sorted_out_before_it_is_claimed(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    at = datetime.now(UTC)
    known = Message.about_order(owner.run_id, OrderId(new_id()), at)
    messages = [known, Message.about_order(RunId("nobody"), OrderId("o"), at)]
    door = Admission(stage.namespace, stage.store, stage.telemetry, [MessageKind.RESUME], Seal(), stage.clock)
    admitted = door.admit([Delivery("resume", message.encode().encode(), False) for message in messages])
    assert [one.message for one in door.refuse_unknown(admitted)] == [known]
    assert reasons(stage) == [f"there is no run nobody in namespace {stage.namespace!r}"]


def test_of_an_oversized_message_its_beginning_is_kept_and_its_size(stage: Stage) -> None:
    for seal in (Seal(), Seal(["key"])):
        door = Admission(stage.namespace, stage.store, stage.telemetry, [MessageKind.RESUME], seal, stage.clock)
        assert door.admit([Delivery("resume", b"[" * quarantine.MOST_KEPT, False, size=50_000_000)]) == []
    with stage.store.read() as connection:
        held = quarantine.listing(connection, stage.namespace)
    assert [(one.size, len(one.body), one.whole) for one in held] == [(50_000_000, quarantine.MOST_KEPT, False)] * 2
    assert {one.reason for one in held} == {"50000000 bytes; 8192 are the most"}


def test_what_was_cut_is_never_taken_for_a_message(stage: Stage) -> None:
    owner = stage.owned(stage.lease())
    body = Message.about_order(owner.run_id, OrderId(new_id()), datetime.now(UTC)).encode().encode()
    door = Admission(stage.namespace, stage.store, stage.telemetry, [MessageKind.RESUME], Seal(), stage.clock)
    assert door.admit([Delivery("resume", body, False, size=len(body) + 1)]) == []


def kept(stage: Stage) -> int:
    with stage.store.read() as connection:
        return len(quarantine.listing(connection, stage.namespace, limit=10_000))
