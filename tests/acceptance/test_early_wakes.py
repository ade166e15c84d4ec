"""Somebody with access to the broker brings the messages of faults before their time: no ladder is climbed by that."""

from __future__ import annotations

from datetime import UTC, datetime

import aft
from aft import names
from aft.brokers.base import Outgoing
from aft.envelope import Message, MessageKind
from aft.fault import FaultState
from aft.ids import OrderId
from aft.telemetry import WakeIgnored
from tests.acceptance.theatre import listen
from tests.setups import Setup, eventually
from tests.world import tries


def undo(order: str) -> None:
    tries[order, "undone"] += 1


@aft.compensate_with(undo)
@aft.activity(name="early_reserve")
def reserve(order: str) -> str:
    return order


@aft.activity(name="early_climb", levels=["1h*3", "2h"])
def climb(order: str) -> str:
    tries[order] += 1
    raise ConnectionError(order)


@aft.activity(name="early_hop", levels=["100ms"])
def hop(order: str) -> str:
    tries[order] += 1
    if tries[order] < 2:
        raise ConnectionError(order)
    return order


@aft.flow(name="early_climbing")
def climbing(order: str) -> str:
    reserve(order)
    return climb(order)


@aft.flow(name="early_hopping")
def hopping(order: str) -> str:
    return hop(order)


@aft.activity(name="early_fail")
def fail(order: str) -> str:
    raise ValueError(order)


@aft.flow(name="early_climbing_after_a_failure")
def climbing_after_a_failure(order: str) -> str:
    reserve(order)
    try:
        fail(order)
    except ValueError:
        pass
    return climb(order)


def send_early(app: aft.Aft, run: aft.Run[str], *states: FaultState) -> None:
    """Do what moving messages from their delay queues to that of wakes does, or sending them once more."""
    row, queue = run.row, names.resume(app.namespace)
    wanted = states or (FaultState.WAITING,)
    faults = sorted((one for one in app.faults(limit=50) if one.run_id == row.id), key=lambda one: one.raised_at)
    messages = [
        Message.about_fault(MessageKind.RESUME, row.id, fault.id, datetime.now(UTC))
        for fault in faults
        if fault.state in wanted
    ]
    key = names.key(row.flow, row.version)
    app.broker.publish([Outgoing(queue, message.encode().encode(), key) for message in messages])


def test_a_wake_before_its_time_is_ignored_and_burns_no_attempt(setup: Setup, order: str) -> None:
    app = setup.app()
    heard = listen(app)
    with app.dispatcher():
        run = app.submit(climbing, order)
        eventually(lambda: run.status == "recovering" and run.row.due_at is not None)
        for times in range(1, 6):
            send_early(app, run)
            eventually(lambda: sum(isinstance(event, WakeIgnored) for event in heard) >= times)  # noqa: B023
        row = run.row
    assert (tries[order], tries[order, "undone"], row.status, row.worker_id) == (1, 0, "recovering", None)
    assert row.due_at is not None
    assert any(isinstance(event, WakeIgnored) and "not due" in event.why for event in heard)


def test_a_wake_in_its_time_is_heeded(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(hopping, order).result(60) == order


def test_a_repeated_message_of_an_earlier_fault_does_not_bring_a_wake_before_its_time_along(
    setup: Setup, order: str
) -> None:
    app = setup.app()
    heard = listen(app)
    with app.dispatcher():
        run = app.submit(climbing_after_a_failure, order)
        eventually(lambda: {fault.state for fault in app.faults()} == {FaultState.FINAL, FaultState.WAITING})
        epoch = run.row.epoch
        for times in range(1, 3):
            send_early(app, run, FaultState.FINAL, FaultState.WAITING)
            eventually(lambda: sum(isinstance(event, WakeIgnored) for event in heard) >= 2 * times)  # noqa: B023
        row = run.row
    assert (tries[order], tries[order, "undone"], row.status, row.worker_id) == (1, 0, "recovering", None)
    assert row.epoch == epoch, "nobody even claims it"


def test_a_message_does_not_begin_a_run_before_its_time(setup: Setup, order: str) -> None:
    app = setup.app()
    heard = listen(app)
    with app.dispatcher():
        later = app.submit(hopping.options(after="1h"), f"{order}-later")
        row = later.row
        message = Message.about_order(later.id, OrderId(str(row.wake_id)), datetime.now(UTC))
        key = names.key(row.flow, row.version)
        app.broker.publish([Outgoing(names.resume(app.namespace), message.encode().encode(), key)])
        eventually(lambda: any(isinstance(event, WakeIgnored) for event in heard))
        assert (later.row.epoch, later.row.due_at) == (0, row.due_at)
        later.cancel()
        eventually(lambda: later.status.ended)
