"""The way a run takes, arrow by arrow, on PostgreSQL and RabbitMQ: each hop is looked at before the next is made."""

from __future__ import annotations

import secrets
import socket
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, select

import aft
from aft import envelope, names
from aft.brokers.base import Delivery, Outgoing
from aft.dispatcher.intake import Intake
from aft.errors import BrokerError
from aft.fault import FaultState
from aft.ids import OrderId
from aft.recovery.relay import Relay
from aft.rules.trees import rule_cache
from aft.runs.ownership import held_writes
from aft.store.tables import faults, outbox
from aft.telemetry import Event
from tests.acceptance import shop
from tests.acceptance.shop import OutOfStock
from tests.setups import Setup, eventually
from tests.world import Busy, ledger, trouble


@pytest.fixture
def app(production: Setup) -> aft.Aft:
    made = production.app()
    made.check()
    made.delays().declare(made.waits())
    return made


def relay(app: aft.Aft) -> Relay:
    return Relay(app.store, app.broker, app.namespace, app.delays().topology, app.telemetry, app.clock, app.seal)


def intake(app: aft.Aft) -> Intake:
    return app.make_intake(app.delays(), relay(app))


def stepped(dispatcher: Intake) -> bool:
    """Take one step; False while the broker is being connected to, which may take longer."""
    try:
        return dispatcher.step() == 0.0
    except BrokerError:
        return False


def receive_one(app: aft.Aft, queue: str) -> Delivery:
    consumer = app.broker.consumer([queue], prefetch=10)
    try:
        (delivery,) = consumer.receive(10, 60)
        consumer.ack([delivery])
        return delivery
    finally:
        consumer.close()


def in_outbox(app: aft.Aft) -> list[str]:
    with app.store.read() as connection:
        found = connection.execute(select(outbox.c.queue).where(outbox.c.namespace == app.namespace))
        return list(found.scalars())


def test_an_outcome_and_its_frame_are_one_transaction(
    app: aft.Aft, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks from outside after each commit sees both or neither; the last outcome comes with the run's end."""
    monkeypatch.setattr(rule_cache, "FRESH", float("inf"))  # looking at the rules ends a transaction of its own
    monkeypatch.setattr(held_writes, "TICK", 600)
    seen: list[tuple[int, int]] = []

    real = app.store.write_batch

    def look(*deeds: Any) -> Any:
        with psycopg.connect(app.store.engine.url.set(drivername="postgresql").render_as_string(False)) as other:
            found = other.execute(
                "SELECT (SELECT count(*) FROM aft_journal), (SELECT count(*) FROM aft_frames)"
            ).fetchone()
            assert found is not None
            seen.append((found[0], found[1]))
        return real(*deeds) if deeds else None

    app.start(shop.buy, "warm-up")
    look()
    monkeypatch.setattr(app.store, "write_batch", look)  # before each commit
    app.start(shop.buy, order)
    look()
    base = seen[0]
    assert [(recorded - base[0], pushed - base[1]) for recorded, pushed in seen[1:]] == [
        (0, 0),
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 2),
    ]


def test_a_raised_fault_is_recorded_with_its_message_in_the_outbox(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [Busy()]
    run = app.start(shop.buy, order)
    assert run.status == "recovering"
    (fault,) = app.faults()
    assert fault.state is FaultState.OPEN
    assert in_outbox(app) == [names.faults(app.namespace)]


def test_the_relay_moves_the_outbox_to_the_fault_queue(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [Busy()]
    run = app.start(shop.buy, order)
    assert relay(app).run_once() == 1
    assert in_outbox(app) == []
    message = envelope.decode(receive_one(app, names.faults(app.namespace)).body)
    assert (message.kind, message.run, message.fault) == ("fault", run.id, app.faults()[0].id)


def test_a_recoverable_fault_goes_through_its_delay_queue_to_resume(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [Busy()]
    run = app.start(shop.buy, order)
    relay(app).run_once()
    dispatcher = intake(app)
    eventually(lambda: stepped(dispatcher) and app.faults(state="waiting"))
    dispatcher.receiver.stop_consuming()
    assert run.row.wake_id == app.faults()[0].id
    delivery = receive_one(app, names.resume(app.namespace))
    assert envelope.decode(delivery.body).fault == app.faults()[0].id
    assert envelope.decode(delivery.body).kind == "resume"


def test_an_unrecoverable_fault_goes_to_compensate(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [OutOfStock("book", 0)]
    app.start(shop.buy, order)
    relay(app).run_once()
    dispatcher = intake(app)
    eventually(lambda: stepped(dispatcher) and app.faults(state="final"))
    dispatcher.receiver.stop_consuming()
    message = envelope.decode(receive_one(app, names.compensate(app.namespace)).body)
    assert (message.kind, message.fault) == ("compensate", app.faults()[0].id)


def test_a_resumed_run_replays_its_journal_and_executes_only_what_is_new(app: aft.Aft, order: str) -> None:
    trouble[order, "ship"] = [Busy()]
    run = app.start(shop.buy, order)
    with app.dispatcher():
        assert run.result(60) == f"parcel-{order}"
    assert ledger[order] == ["reserve", "pay", "ship!", "ship"]


def test_a_run_sent_to_compensate_is_replayed_and_unwound(app: aft.Aft, order: str) -> None:
    trouble[order, "ship"] = [OutOfStock("book", 0)]
    run = app.start(shop.buy, order)
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert ledger[order] == ["reserve", "pay", "ship!", "refund", "release"]


def test_a_fault_message_that_comes_twice_decides_once(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [Busy()]
    run = app.start(shop.buy, order)
    dispatcher = intake(app)
    (fault,) = app.faults()
    assert dispatcher.decide([fault.id]) == {(fault.id, run.id)}
    assert dispatcher.decide([fault.id]) == set()


def test_a_wake_that_names_no_open_fault_or_order_changes_nothing(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [Busy()]
    run = app.start(shop.buy, order)
    before = run.row
    with app.dispatcher(only=["work"]):
        stale = envelope.Message.about_order(run.id, OrderId("stale"), app.clock.now())
        ignored: list[Event] = []
        app.telemetry.subscribe(ignored.append)
        app.broker.publish([_outgoing(app, stale)])
        eventually(lambda: any(type(seen).__name__ == "WakeIgnored" for seen in ignored))
    assert run.row == before


def _outgoing(app: aft.Aft, message: envelope.Message) -> Outgoing:
    return Outgoing(names.resume(app.namespace), message.encode().encode())


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_happy_path_of_n_activities_makes_n_plus_one_commits_and_no_broker_connection(
    production: Setup, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_cache, "FRESH", float("inf"))  # looking at the rules ends a transaction of its own
    monkeypatch.setattr(held_writes, "TICK", 600)  # however slow this machine is, the end takes the last outcome along
    with socket.create_server(("127.0.0.1", 0)) as doorbell:
        doorbell.setblocking(False)
        nobody = f"amqp://guest:guest@127.0.0.1:{doorbell.getsockname()[1]}/"
        app = replace(production, broker=nobody).app(lease="10m")
        order = secrets.token_hex(4)

        @aft.flow(name=f"straight_{count}")
        def straight(order: str) -> None:
            for _ in range(count):
                shop.reserve(order)

        app.start(straight, order)  # registers the worker, once per process
        commits: list[object] = []
        event.listen(app.store.engine, "commit", commits.append)
        real = app.store.write_batch

        def count_too(*deeds: Any) -> Any:
            commits.append(deeds)
            return real(*deeds)

        monkeypatch.setattr(app.store, "write_batch", count_too)
        assert app.start(straight, order).id
        assert len(commits) == count + 1
        with pytest.raises(BlockingIOError):
            doorbell.accept()  # nobody rang


def test_waits_longer_than_a_level_are_the_timers(app: aft.Aft, order: str) -> None:
    trouble[order, "reserve"] = [aft.Recoverable("later", after="300ms")]
    with app.dispatcher():
        assert app.submit(shop.buy, order).result(60) == f"parcel-{order}"
    with app.store.read() as connection:
        row = connection.execute(select(faults).where(faults.c.namespace == app.namespace)).one()
    assert row.wait_seconds == pytest.approx(0.3)
    assert row.state == "resolved"
    assert "asked to wait" in row.why
