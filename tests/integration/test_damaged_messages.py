"""Whatever a column of a stored message holds, the other messages of its queue are delivered, and nothing spins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete, event, text

import aft
from aft import names
from aft.brokers.base import Consumer, Outgoing, Topology
from aft.brokers.embedded import EmbeddedBroker
from aft.recovery.relay import MOST_BODY, Relay
from aft.runs.records import quarantine
from aft.store import Store, outbox, schema
from aft.store.tables import messages, queues
from tests.conftest import make_setup
from tests.setups import Setup

NAMESPACE = "damaged"
TOPOLOGY = Topology(NAMESPACE, frozenset())
FAULTS = names.faults(NAMESPACE)
UNDELIVERABLE = names.undeliverable(NAMESPACE)

#: What SQLite stores in a column of any type.
OF_ANY_TYPE = ("'soon'", "''", "'1e'", "x'ff41'", "CAST(x'ff41' AS TEXT)", "1.5", "9e999", "-9e999", "-(1 << 62)")
TIMES = ("'-infinity'", "'infinity'", "'4714-11-24 BC'", "'294276-12-31'")
COUNTS = ("-2147483648", "-1", "2147483647")
VALUES = [
    *(
        ("sqlite", column, value)
        for column in ("visible_at", "deliveries", "body", "consumer")
        for value in OF_ANY_TYPE
    ),
    *(("sqlite", column, value) for column in ("queue", "target") for value in (*OF_ANY_TYPE, "char(0)")),
    *(("postgresql", "visible_at", value) for value in TIMES),
    *(("postgresql", "deliveries", value) for value in COUNTS),
    *(("postgresql", column, "repeat('ü', 255)") for column in ("queue", "target")),
    *(("postgresql", column, "''") for column in ("queue", "target", "consumer", "body")),
]


@pytest.fixture
def store(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Store]:
    file = f"sqlite:///{tmp_path / 'aft.db'}"
    url = file if database == "sqlite" else request.getfixturevalue("migrated_url")
    with closing(Store(url)) as made:
        schema.check(made)
        with made.write() as connection:
            connection.execute(delete(messages))
            connection.execute(delete(queues))
        yield made
        with made.write() as connection:
            connection.execute(delete(messages))
            connection.execute(delete(queues))


def drain(consumer: Consumer, *, seconds: float = 0.0) -> list[bytes]:
    bodies: list[bytes] = []
    while found := consumer.receive(10, seconds):
        bodies += [delivery.body for delivery in found]
        consumer.ack(found)
    return bodies


@pytest.mark.parametrize(("database", "column", "value"), VALUES)
def test_a_damaged_message_keeps_no_other_from_being_delivered(store: Store, column: str, value: str) -> None:
    with closing(EmbeddedBroker(store)) as broker:
        broker.declare(TOPOLOGY)
        broker.publish([Outgoing(FAULTS, body) for body in (b"one", b"damaged", b"two")])
        with store.write() as connection:
            spoil = text(f"UPDATE aft_messages SET {column} = {value} WHERE body = :body")
            assert connection.execute(spoil, {"body": b"damaged"}).rowcount == 1
        with closing(broker.consumer([FAULTS], 10)) as consumer:
            first = drain(consumer)
            assert {b"one", b"two"} <= set(first)
            assert {type(body) for body in first} == {bytes}
            taken: list[str] = []
            event.listen(store.engine, "before_cursor_execute", lambda *seen: taken.append(seen[2]))
            assert drain(consumer, seconds=0.2) == []
            assert taken == []
            broker.publish([Outgoing(FAULTS, b"three")])
            assert drain(consumer) == [b"three"]
        with closing(broker.consumer([UNDELIVERABLE], 10)) as consumer:
            drain(consumer)
        assert {status.name for status in broker.status(TOPOLOGY)} >= {FAULTS, UNDELIVERABLE}
        broker.prune(NAMESPACE)


@pytest.mark.parametrize(
    ("database", "value"), [("sqlite", "'many'"), ("sqlite", "x'ff'"), ("sqlite", "-7"), ("postgresql", "-7")]
)
def test_a_message_whose_count_of_deliveries_is_none_is_put_aside(store: Store, value: str) -> None:
    with closing(EmbeddedBroker(store)) as broker:
        broker.declare(TOPOLOGY)
        broker.publish([Outgoing(FAULTS, b"damaged")])
        with store.write() as connection:
            connection.execute(text(f"UPDATE aft_messages SET deliveries = {value}"))
        with closing(broker.consumer([FAULTS], 10)) as consumer:
            assert drain(consumer) == []
        with closing(broker.consumer([UNDELIVERABLE], 10)) as consumer:
            assert drain(consumer) == [b"damaged"]


# The outbox ------------------------------------------------------------------------------------------------------


def relay_of(app: aft.Aft) -> Relay:
    return Relay(app.store, app.broker, app.namespace, app.delays().topology, app.telemetry, app.clock, app.seal)


ADDRESSES = {
    "another queue's name": "{queue}.unknown",
    "no name": "",
    "no queue but a key": "/order@1",
    "another queue's name and a key": "{queue}.unknown/order@1",
    "a name of too many bytes": "ü" * 255,
    "a key of too many bytes": "{queue}/" + "ü" * 200,
}


def put_one(app: aft.Aft, address: str, body: str) -> int:
    with app.store.write() as connection:
        (row,) = outbox.put(connection, app.namespace, [(address, body)])
    return row.id


def relayed(app: aft.Aft) -> list[str]:
    """Relay all that there is; tells what is left."""
    relay = relay_of(app)
    for _ in range(3):
        relay.run_once()
    with app.store.read() as connection:
        left = text("SELECT queue FROM aft_outbox WHERE namespace = :namespace")
        return [row.queue for row in connection.execute(left, {"namespace": app.namespace})]


def declared(setup: Setup) -> tuple[aft.Aft, str]:
    app = setup.app()
    app.broker.declare(app.delays().topology())
    return app, names.resume(app.namespace)


def spoil(app: aft.Aft, number: int, column: str, value: str) -> None:
    with app.store.write() as connection:
        connection.execute(text(f"UPDATE aft_outbox SET {column} = {value} WHERE id = {number}"))


def received(app: aft.Aft, queue: str, keys: Sequence[str] = ("order@1",)) -> list[bytes]:
    """Receive two messages, or more."""
    with closing(app.broker.consumer([queue], 10, keys)) as consumer:
        bodies: list[bytes] = []
        while len(bodies) < 2 and (found := consumer.receive(10, 30.0)):
            bodies += [delivery.body for delivery in found]
            consumer.ack(found)
        return bodies


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=list(ADDRESSES))
def test_an_address_that_no_broker_takes_keeps_no_other_message_from_being_relayed(setup: Setup, address: str) -> None:
    app, queue = declared(setup)
    put_one(app, names.address(queue, "order@1"), "one")
    put_one(app, address.format(queue=queue), "damaged")
    put_one(app, names.address(queue, "order@1"), "two")
    assert relayed(app) == []
    assert received(app, queue) == [b"one", b"two"]
    with app.store.read() as connection:
        held = quarantine.listing(connection, app.namespace)
    assert [refusal.body for refusal in held] == [b"damaged"]


def test_a_key_for_a_queue_that_knows_none_keeps_no_other_message_from_being_relayed(setup: Setup) -> None:
    app, _ = declared(setup)
    queue = names.faults(app.namespace)
    for address, body in ((queue, "one"), (f"{queue}/order@1", "damaged"), (queue, "two")):
        put_one(app, address, body)
    assert relayed(app) == []
    assert received(app, queue, keys=[]) == [b"one", b"two"]


@pytest.fixture
def on_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    made = make_setup("sqlite", request, tmp_path)
    yield made
    made.close()


#: What only SQLite keeps.
DAMAGES = {"a NUL": "char(0)", "no UTF-8": "CAST(x'ff41' AS TEXT)", "a blob": "x'ff41'"}


@pytest.mark.parametrize("column", ["queue", "body"])
@pytest.mark.parametrize("value", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_row_of_the_outbox_keeps_no_other_from_being_relayed(
    on_sqlite: Setup, column: str, value: str
) -> None:
    app, queue = declared(on_sqlite)
    _, damaged, _ = [put_one(app, names.address(queue, "order@1"), body) for body in ("one", "damaged", "two")]
    spoil(app, damaged, column, value)
    assert relayed(app) == []
    assert {b"one", b"two"} <= set(received(app, queue))


@pytest.mark.parametrize("value", ["'soon'", "x'ff'", "9e999", "-9e999"])
def test_a_hold_that_is_no_time_keeps_no_other_message_from_being_relayed(on_sqlite: Setup, value: str) -> None:
    check_hold(on_sqlite, value)


@pytest.mark.parametrize("value", ["'infinity'", "'-infinity'"])
def test_a_hold_without_end_keeps_no_other_message_from_being_relayed(production: Setup, value: str) -> None:
    check_hold(production, value)


def check_hold(setup: Setup, value: str) -> None:
    app, queue = declared(setup)
    _, damaged, _ = [put_one(app, names.address(queue, "order@1"), body) for body in ("one", "damaged", "two")]
    spoil(app, damaged, "taken_until", value)
    relayed(app)
    assert {b"one", b"two"} <= set(received(app, queue))


def test_a_body_larger_than_brokers_take_is_quarantined(setup: Setup) -> None:
    app, queue = declared(setup)
    address = names.address(queue, "order@1")
    for body in ("one", "x" * (MOST_BODY + 1), "two"):
        put_one(app, address, body)
    assert relayed(app) == []
    assert received(app, queue) == [b"one", b"two"]
    with app.store.read() as connection:
        held = quarantine.listing(connection, app.namespace)
    assert ["1,000,001 characters" in refusal.reason for refusal in held] == [True]
