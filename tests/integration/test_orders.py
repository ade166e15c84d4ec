"""Claims about orders: what a person may ask of a parked run, once, with a trace; and of no other run anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aft import names
from aft.errors import OrderRefused
from aft.fault import FaultKind, FaultState
from aft.ids import StepPath
from aft.runs.orders import by_hand as orders
from aft.runs.orders.actor import Actor
from aft.runs.ownership.owner import Owner
from aft.runs.records import audit, inbox
from aft.runs.records.inbox import InboxItem, InboxVerb
from aft.runs.states import Status
from tests.storing import Stage, actor, at_once

Order = Callable[..., None]
ANNE = actor("anne", "called the bank")
ORDERS = pytest.mark.parametrize(
    ("order", "verb"),
    [(orders.retry, InboxVerb.RETRY), (orders.skip_frame, InboxVerb.SKIP), (orders.frame_done, InboxVerb.DONE)],
)


def parked(stage: Stage, **fault: Any) -> Owner:
    """A run that is parked for a compensator."""
    owner = stage.owned(stage.lease())
    compensator = {"kind": FaultKind.COMPENSATOR, "path": StepPath("2/undo"), "state": FaultState.PARKED}
    stage.add_fault(owner, **(compensator | fault))
    stage.change(owner.run_id, status="parked", reason="it failed", cause="fault", worker_id=None)
    return owner


def give(stage: Stage, owner: Owner, order: Order, by: Actor = ANNE) -> None:
    row = stage.row(owner.run_id)
    with stage.store.write() as connection:
        order(connection, row, by)


def items(stage: Stage, owner: Owner) -> list[InboxItem]:
    with stage.store.read() as connection:
        return inbox.unread(connection, owner.run_id)


@ORDERS
def test_an_order_is_a_letter_a_wake_a_message_and_a_line_in_the_audit(
    stage: Stage, order: Order, verb: InboxVerb
) -> None:
    owner = parked(stage)
    give(stage, owner, order)
    row = stage.row(owner.run_id)
    (item,) = items(stage, owner)
    assert (item.verb, item.actor, item.seq) == (verb, "anne", row.inbox_seq)
    assert row.wake_id == item.id
    assert row.status is Status.PARKED
    assert stage.posted() == [names.order_run(stage.namespace, row.flow, row.version)]
    with stage.store.read() as connection:
        (deed,) = audit.of_run(connection, owner.run_id)
    assert (deed.actor, deed.action, deed.note) == ("anne", verb.value, "called the bank")


@pytest.mark.parametrize(("order", "verb"), [(orders.skip_frame, InboxVerb.SKIP), (orders.frame_done, InboxVerb.DONE)])
def test_an_order_about_a_frame_names_its_step_and_the_note(stage: Stage, order: Order, verb: InboxVerb) -> None:
    owner = parked(stage)
    give(stage, owner, order)
    assert items(stage, owner)[0].payload == {"path": "2/undo", "note": "called the bank"}


@ORDERS
@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PARKED])
def test_a_run_that_is_not_parked_takes_no_order(stage: Stage, order: Order, verb: InboxVerb, status: Status) -> None:
    owner = parked(stage)
    stage.change(owner.run_id, status=status.value)
    before = stage.row(owner.run_id)
    with pytest.raises(OrderRefused, match=f"is {status.value}, not parked; there is nothing to be done by hand"):
        give(stage, owner, order)
    assert stage.row(owner.run_id) == before
    assert (items(stage, owner), stage.posted()) == ([], [])


@ORDERS
def test_a_second_order_is_refused_until_the_first_is_carried_out(stage: Stage, order: Order, verb: InboxVerb) -> None:
    owner = parked(stage)
    give(stage, owner, orders.retry)
    with pytest.raises(OrderRefused, match="has an order already that no worker has carried out yet"):
        give(stage, owner, order)
    assert len(items(stage, owner)) == len(stage.posted()) == 1


def test_of_two_people_who_order_at_once_one_is_refused(stage: Stage) -> None:
    owner = parked(stage)

    def order(name: str) -> str:
        try:
            give(stage, owner, orders.retry, actor(name))
        except OrderRefused:
            return ""
        return name

    found = at_once([partial(order, name) for name in ("anne", "bob", "cleo")])
    (winner,) = [name for name in found if name]
    assert [item.actor for item in items(stage, owner)] == [winner]


@pytest.mark.parametrize("order", [orders.skip_frame, orders.frame_done])
@pytest.mark.parametrize("note", [None, "", "  \n"])
def test_a_frame_is_settled_by_hand_only_with_a_note(stage: Stage, order: Order, note: str | None) -> None:
    with pytest.raises(OrderRefused, match="needs a note that says why"):
        give(stage, parked(stage), order, actor("anne", note))


def test_trying_again_needs_no_note(stage: Stage) -> None:
    owner = parked(stage)
    give(stage, owner, orders.retry, actor("anne"))
    assert items(stage, owner)[0].verb is InboxVerb.RETRY


@pytest.mark.parametrize("order", [orders.skip_frame, orders.frame_done])
def test_a_run_that_is_parked_for_something_else_has_no_frame_to_settle(stage: Stage, order: Order) -> None:
    owner = parked(stage, kind=FaultKind.FLOW, path=None)
    with pytest.raises(OrderRefused, match="is not parked for a compensator: it failed; `retry` is what it can do"):
        give(stage, owner, order)


def test_letters_are_read_in_order_and_once(stage: Stage) -> None:
    owner = parked(stage)
    for verb in (orders.retry, orders.skip_frame):
        give(stage, owner, verb)
        stage.change(owner.run_id, wake_id=None)
    found = items(stage, owner)
    assert [item.verb for item in found] == [InboxVerb.RETRY, InboxVerb.SKIP]
    with stage.store.write() as connection:
        inbox.mark_read(connection, owner.run_id, owner.epoch, found[:1])
    assert items(stage, owner) == found[1:]
