"""What the embedded broker promises beyond the port's contract: processes, deaths, and writing nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO

import psycopg
import pytest
from sqlalchemy import Connection, Engine, delete, event, insert, select, text, update

import aft
from aft import names
from aft.brokers.base import Delivery, Outgoing, Subscription, Topology
from aft.brokers.embedded import EmbeddedBroker, listener, live_events, rows, watch
from aft.brokers.embedded.consumer import EmbeddedConsumer
from aft.brokers.embedded.watch import IDLE, QUICK, pause_between_polls
from aft.errors import BrokerError, Unroutable
from aft.store import Store, schema
from aft.store.postgres.dedicated_connection import DedicatedConnection
from aft.store.tables import messages, queues

NAMESPACE = "shop"
FAULTS = names.faults(NAMESPACE)
RESUME = names.resume(NAMESPACE)
UNDELIVERABLE = names.undeliverable(NAMESPACE)
WAIT = timedelta(milliseconds=300)
TOPOLOGY = Topology(NAMESPACE, frozenset({WAIT, timedelta(hours=1)}))
#: Seconds: so many that nobody is taken for dead who only waits for a turn.
VISIBILITY = 60.0
#: The same where somebody is to be taken for dead; so many that nobody else is.
BRIEF = 3.0
#: The same where nobody else is there who could be.
BRIEFEST = 0.5

CHILD = """
import sys, time
from aft.store import Store
from aft.brokers.base import Outgoing
from aft.brokers.embedded import EmbeddedBroker

def say(text):
    print(text, flush=True)

url, verb, queue = sys.argv[1:4]
broker = EmbeddedBroker(Store(url), visibility=BRIEF if verb == "hold" else VISIBILITY)
if verb == "hold":
    (delivery,) = broker.consumer([queue], 1).receive(1, 60)
    say(delivery.body.decode())
    time.sleep(60)
elif verb == "publish":
    broker.publish([Outgoing(queue, body.encode()) for body in sys.argv[4:]])
    say("published")
elif verb == "drain":
    consumer, bodies = broker.consumer([queue], 10), []
    while deliveries := consumer.receive(3, 3):
        bodies += [delivery.body.decode() for delivery in deliveries]
        consumer.ack(deliveries)
    say(" ".join(bodies))
elif verb == "answer":
    consumer = broker.consumer([queue], 10)
    say("ready")
    while deliveries := consumer.receive(1, 5):
        say(f"{time.time() - float(deliveries[0].body):.6f}")
        consumer.ack(deliveries)
elif verb == "subscribe":
    subscription = broker.subscribe(queue)
    say("ready")
    say(subscription.receive(10).decode())
elif verb == "broadcast":
    for body in sys.argv[4:]:
        broker.broadcast(queue, body.encode())
broker.close()
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'aft.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with prepared(url) as store:
        yield store


@pytest.fixture
def broker(store: Store) -> Iterator[EmbeddedBroker]:
    with open_broker(store) as broker:
        broker.declare(TOPOLOGY)
        yield broker


def fail_to_connect(engine: Engine) -> DedicatedConnection:
    raise psycopg.OperationalError("no connection for listeners")


def publish_soon(broker: EmbeddedBroker) -> None:
    """Publish the time, when the caller has begun to wait."""
    publish = partial(broker.publish, [Outgoing(FAULTS, repr(time.time() + 0.2).encode())])
    threading.Timer(0.2, publish).start()


@contextmanager
def open_broker(store: Store, visibility: float = VISIBILITY) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(store, visibility=visibility)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def prepared(url: str) -> Iterator[Store]:
    """Give a database with empty tables; others may have used it before."""
    store = Store(url)
    try:
        schema.upgrade(store)
        with store.write() as connection:
            connection.execute(delete(messages))
            connection.execute(delete(queues))
        yield store
    finally:
        store.close()


@contextmanager
def declared(url: str, visibility: float = VISIBILITY) -> Iterator[tuple[Store, EmbeddedBroker]]:
    """Give a prepared database with the queues in place."""
    with prepared(url) as store, open_broker(store, visibility) as broker:
        broker.declare(TOPOLOGY)
        yield store, broker


@contextmanager
def child(url: str, verb: str, queue: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run another process that uses the broker; it is killed at the end if it still runs."""
    root = str(Path(aft.__file__).parents[1])
    script = f"VISIBILITY, BRIEF = {VISIBILITY}, {BRIEF}{CHILD}"
    command = [sys.executable, "-c", script, url, verb, queue, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Read the next line that another process prints."""
    output: IO[str] | None = process.stdout
    assert output is not None
    return output.readline().strip()


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def stored(store: Store) -> list[tuple[str, bytes]]:
    with store.read() as connection:
        found = connection.execute(select(messages.c.target, messages.c.body).order_by(messages.c.id))
        return [(row.target, row.body) for row in found]


def until(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """Collect every statement that is sent to the database."""
    seen: list[str] = []

    def note(connection: Connection, cursor: object, statement: str, *rest: object) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


# Several processes


def test_another_process_receives_what_this_one_publishes(broker: EmbeddedBroker, url: str) -> None:
    with child(url, "answer", FAULTS) as process:
        assert said(process) == "ready"
        broker.publish([Outgoing(FAULTS, repr(time.time()).encode())])
        assert 0 <= float(said(process)) < 5


def test_this_process_receives_what_another_one_publishes(broker: EmbeddedBroker, url: str) -> None:
    consumer = broker.consumer([FAULTS], 10)
    with child(url, "publish", FAULTS, "one", "two"):
        assert bodies(consumer.receive(10, 30)) == [b"one", b"two"]


def test_processes_that_consume_together_share_and_repeat_nothing(broker: EmbeddedBroker, url: str) -> None:
    sent = [f"m{number}" for number in range(60)]
    with child(url, "drain", FAULTS) as one, child(url, "drain", FAULTS) as two:
        for body in sent:
            broker.publish([Outgoing(FAULTS, body.encode())])
        received = (said(one) + " " + said(two)).split()
    assert sorted(received) == sorted(sent)


def test_consumers_that_claim_at_once_get_different_messages(broker: EmbeddedBroker) -> None:
    sent = [b"%d" % number for number in range(200)]
    received: list[bytes] = []

    def drain() -> None:
        consumer = broker.consumer([FAULTS], 1)
        while deliveries := consumer.receive(1, 0):
            received.extend(bodies(deliveries))
            consumer.ack(deliveries)

    broker.publish([Outgoing(FAULTS, body) for body in sent])
    together(drain, 6)
    assert sorted(received) == sorted(sent)


def test_a_claim_does_not_wait_for_another_that_is_stuck(postgres_url: str) -> None:
    with declared(postgres_url) as (store, broker):
        broker.publish([Outgoing(FAULTS, b"one"), Outgoing(FAULTS, b"two")])
        with store.write() as connection, store.lend(connection):
            assert [row.body for row in rows.take(connection, FAULTS, "stuck", 1, 60)] == [b"one"]
            consumer = broker.consumer([FAULTS], 10)
            received: list[Delivery] = []
            # On a thread: one that does wait for the stuck one must not hang the test.
            claiming = threading.Thread(target=lambda: received.extend(consumer.receive(10, 1)))
            claiming.start()
            claiming.join(60)
            assert bodies(received) == [b"two"]


def test_a_killed_consumers_message_comes_back_after_its_visibility(broker: EmbeddedBroker, url: str) -> None:
    broker.publish([Outgoing(FAULTS, b"held")])
    consumer = broker.consumer([FAULTS], 1)
    with child(url, "hold", FAULTS) as process:
        assert said(process) == "held"
        assert consumer.receive(1, 1.5 * BRIEF) == []  # the living one renews
        process.kill()
        killed_at = time.monotonic()
        (delivery,) = consumer.receive(1, 60)
    assert (delivery.body, delivery.redelivered) == (b"held", True)
    assert time.monotonic() - killed_at < BRIEF + 60


# Holding and losing


def test_a_held_message_is_not_given_to_others(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(FAULTS, b"held")])
    with open_broker(store, BRIEF) as holding:
        holder = holding.consumer([FAULTS], 1)
        assert bodies(holder.receive(1, 1)) == [b"held"]
        assert broker.consumer([FAULTS], 1).receive(1, 1.5 * BRIEF) == []


def test_a_former_holders_acknowledgement_deletes_nothing(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(FAULTS, b"contested")])
    former = broker.consumer([FAULTS], 1)
    first = former.receive(1, 1)
    make_visible(store)  # as if the former had been silent for too long
    new = broker.consumer([FAULTS], 1)
    second = new.receive(1, 1)
    assert second[0].redelivered
    former.ack(first)
    assert stored(store) == [(FAULTS, b"contested")]
    former.close()
    assert broker.consumer([FAULTS], 1).receive(1, 0) == []  # nor did its close give it away
    new.ack(second)
    assert stored(store) == []


def test_a_message_taken_again_makes_the_old_delivery_void(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(FAULTS, b"twice")])
    consumer = broker.consumer([FAULTS], 2)
    first = consumer.receive(1, 1)
    make_visible(store)
    second = consumer.receive(1, 1)
    consumer.ack(first)
    assert stored(store) == [(FAULTS, b"twice")]
    consumer.ack(second)
    assert stored(store) == []


def test_what_could_not_be_acknowledged_comes_again(store: Store, broker: EmbeddedBroker) -> None:
    broker.publish([Outgoing(FAULTS, b"again")])
    with open_broker(store, BRIEFEST) as refused:
        consumer = refused.consumer([FAULTS], 1)
        deliveries = consumer.receive(1, 1)
        with refusing(store.engine, "DELETE"), pytest.raises(BrokerError):
            consumer.ack(deliveries)
        (delivery,) = consumer.receive(1, 60)
    assert (delivery.body, delivery.redelivered) == (b"again", True)


def test_closing_gives_back_at_once_what_was_not_acknowledged(broker: EmbeddedBroker, store: Store) -> None:
    with open_broker(store) as other:
        other.publish([Outgoing(FAULTS, b"done"), Outgoing(FAULTS, b"open")])
        closing = other.consumer([FAULTS], 2)
        closing.ack(closing.receive(2, 1)[:1])
        waiting = broker.consumer([FAULTS], 1)
        threading.Timer(0.1, closing.close).start()
        begun = time.monotonic()
        (delivery,) = waiting.receive(1, 60)
        assert (delivery.body, delivery.redelivered) == (b"open", True)
        assert time.monotonic() - begun < 10
        closing.close()
        with pytest.raises(BrokerError, match="closed"):
            closing.receive(1, 0)


def test_the_broker_closes_its_consumers_and_threads(store: Store, broker: EmbeddedBroker) -> None:
    before = set(threading.enumerate())
    with open_broker(store) as closing:
        closing.publish([Outgoing(FAULTS, b"held")])
        consumer = closing.consumer([FAULTS], 1)
        consumer.receive(1, 1)
        subscription = closing.subscribe(NAMESPACE)
        closing.broadcast(NAMESPACE, b"heard")
        assert subscription is None or subscription.receive(5) == b"heard"
    closing.close()
    assert set(threading.enumerate()) <= before
    assert bodies(broker.consumer([FAULTS], 1).receive(1, 1)) == [b"held"]
    with pytest.raises(BrokerError, match="closed"):
        closing.publish([Outgoing(FAULTS, b"late")])


def test_another_thread_may_close_the_broker_while_a_consumer_waits(store: Store, broker: EmbeddedBroker) -> None:
    consumer = broker.consumer([FAULTS], 1)
    threading.Timer(0.1, broker.close).start()
    begun = time.monotonic()
    with pytest.raises(BrokerError, match="closed"):
        consumer.receive(1, 20)
    assert time.monotonic() - begun < 10


def test_no_more_than_prefetch_are_held(broker: EmbeddedBroker) -> None:
    broker.publish([Outgoing(FAULTS, b"%d" % number) for number in range(5)])
    consumer = broker.consumer([FAULTS], 2)
    first = consumer.receive(10, 1)
    assert bodies(first) == [b"0", b"1"]
    assert consumer.receive(10, 0.05) == []
    consumer.ack(first[:1])
    assert bodies(consumer.receive(10, 1)) == [b"2"]


def test_a_full_queue_does_not_starve_another(broker: EmbeddedBroker) -> None:
    broker.publish([Outgoing(FAULTS, b"many")] * 10 + [Outgoing(RESUME, b"one")])
    consumer = broker.consumer([FAULTS, RESUME], 10)
    received = [body for _ in range(2) for body in bodies(consumer.receive(3, 1))]
    assert b"one" in received


def test_a_message_delivered_too_often_moves_aside(broker: EmbeddedBroker, store: Store) -> None:
    # A long visibility: renewing what it holds must not undo what the test does to the rows.
    with open_broker(store, 600.0) as patient:
        patient.publish([Outgoing(FAULTS, b"poison"), Outgoing(FAULTS, b"good")])
        consumer = patient.consumer([FAULTS], 100)
        for _ in range(rows.MOST_DELIVERIES):
            assert sorted(bodies(consumer.receive(2, 1))) == [b"good", b"poison"]
            make_visible(store)
        with store.write() as connection:
            connection.execute(update(messages).where(messages.c.body == b"good").values(deliveries=3))
        assert bodies(consumer.receive(2, 1)) == [b"good"]
        assert consumer.receive(2, 0.05) == []
        assert (UNDELIVERABLE, b"poison") in stored(store)
        status = {one.name: one.messages for one in broker.status(TOPOLOGY)}
        assert (status[UNDELIVERABLE], status[FAULTS]) == (1, 1)


def test_a_count_at_its_end_keeps_no_other_message_from_being_received(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(FAULTS, b"spoilt")])
    with store.write() as connection:
        connection.execute(update(messages).values(deliveries=2**31 - 1))
    broker.publish([Outgoing(FAULTS, b"good")])
    assert bodies(broker.consumer([FAULTS], 100).receive(2, 1)) == [b"good"]
    assert (UNDELIVERABLE, b"spoilt") in stored(store)


def test_the_undeliverable_queue_can_be_read_again_and_again(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(UNDELIVERABLE, b"poison")])
    consumer = broker.consumer([UNDELIVERABLE], 1)
    for number in range(rows.MOST_DELIVERIES + 2):
        (delivery,) = consumer.receive(1, 1)
        assert (delivery.body, delivery.redelivered) == (b"poison", number > 0)
        make_visible(store)
        consumer._unacknowledged.clear()  # forget it, so that there is room to take it again


# Writing


def test_an_empty_receive_writes_nothing(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(names.delay(NAMESPACE, timedelta(hours=1)), b"much later")])
    consumer = broker.consumer([FAULTS, RESUME], 10)
    before = changes(store)
    with statements(store.engine) as seen:
        assert consumer.receive(10, 0.3) == []
        assert consumer.receive(10, 0) == []
    assert [one for one in seen if not one.startswith(("SELECT", "BEGIN"))] == []
    assert "BEGIN IMMEDIATE" not in seen
    assert changes(store) == before


def test_holding_nothing_renews_nothing(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(FAULTS, b"one")])
    with open_broker(store, BRIEFEST) as idle:
        consumer = idle.consumer([FAULTS], 1)
        consumer.ack(consumer.receive(1, 1))
        with statements(store.engine) as seen:
            time.sleep(BRIEFEST)
    assert seen == []


def test_declaring_again_writes_nothing(broker: EmbeddedBroker, store: Store) -> None:
    with statements(store.engine) as seen:
        broker.declare(TOPOLOGY)
    assert [one for one in seen if not one.startswith(("SELECT", "BEGIN"))] == []


def test_a_publish_is_there_whole_or_not_at_all(broker: EmbeddedBroker, store: Store) -> None:
    with pytest.raises(Unroutable, match="nowhere"):
        broker.publish([Outgoing(FAULTS, b"one"), Outgoing("nowhere", b"two")])
    assert stored(store) == []
    with open_broker(store) as other:
        other.declare(TOPOLOGY)
        refused = [Outgoing(FAULTS, b"one"), Outgoing(FAULTS, None)]  # type: ignore[arg-type]
        with pytest.raises(BrokerError):
            other.publish(refused)
    assert stored(store) == []


def test_a_queue_declared_by_others_is_found(broker: EmbeddedBroker, store: Store) -> None:
    broker.publish([Outgoing(FAULTS, b"routes are known from here on")])
    with open_broker(store) as other:
        other.declare(Topology("later"))
    broker.publish([Outgoing(names.faults("later"), b"found")])
    assert (names.faults("later"), b"found") in stored(store)


def test_a_queue_with_other_arguments_is_refused_and_nothing_is_made(store: Store) -> None:
    topology = Topology("twisted", frozenset({WAIT}))
    name = names.delay("twisted", WAIT)
    with store.write() as connection:
        connection.execute(insert(queues).values(name=name, wait_ms=7, target=names.resume("twisted")))
    with open_broker(store) as broker:
        with pytest.raises(BrokerError, match="7 ms"):
            broker.declare(topology)
        status = {one.name: one for one in broker.status(topology)}
    assert "7 ms" in status[name].problem
    assert not status[names.faults("twisted")].exists
    assert "aft broker declare" in status[names.faults("twisted")].problem


def test_many_declare_at_once(store: Store) -> None:
    failures: list[BaseException] = []

    def declare() -> None:
        try:
            with open_broker(store) as broker:
                broker.declare(TOPOLOGY)
        except BaseException as error:
            failures.append(error)

    together(declare, 8)
    assert failures == []


# Time


def test_a_delay_ends_on_time_and_never_early(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL", 600)  # what is received is received because its time has come
    consumer = broker.consumer([RESUME], 10)
    for _ in range(3):
        begun = time.monotonic()
        broker.publish([Outgoing(names.delay(NAMESPACE, WAIT), b"later")])
        (delivery,) = consumer.receive(10, 60)
        took = time.monotonic() - begun
        consumer.ack([delivery])
        assert delivery.queue == RESUME
        assert not delivery.redelivered
        assert WAIT.total_seconds() <= took < WAIT.total_seconds() + 60


def test_a_delay_published_while_a_consumer_waits_is_noticed_on_time(
    broker: EmbeddedBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL", 600)  # what is received was notified, and its time has come
    consumer = broker.consumer([RESUME], 10)
    broker.publish([Outgoing(names.delay(NAMESPACE, timedelta(hours=1)), b"much later")])
    with child(url, "publish", names.delay(NAMESPACE, WAIT), "later") as process:
        received: list[Delivery] = []
        thread = threading.Thread(target=lambda: received.extend(consumer.receive(10, 30)))
        thread.start()
        assert said(process) == "published"
        begun = time.monotonic()
        thread.join()
    assert bodies(received) == [b"later"]
    assert time.monotonic() - begun < WAIT.total_seconds() + 60


def test_status_counts_a_message_where_it_is(broker: EmbeddedBroker) -> None:
    short, long = (names.delay(NAMESPACE, wait) for wait in (WAIT, timedelta(hours=1)))

    def counts(delay: str) -> tuple[int, int, int]:
        status = {one.name: one for one in broker.status(TOPOLOGY)}
        return status[delay].messages, status[RESUME].messages, status[RESUME].consumers

    broker.publish([Outgoing(long, b"much later"), Outgoing(RESUME, b"direct")])
    assert counts(long) == (1, 1, 0)
    broker.publish([Outgoing(short, b"later")])
    until(lambda: counts(short) == (0, 2, 0))
    consumer = broker.consumer([RESUME], 10)
    deliveries = consumer.receive(2, 1)
    assert counts(short) == (0, 2, 1)
    consumer.ack(deliveries)
    assert counts(short) == (0, 0, 0)
    assert counts(long) == (1, 0, 0)


def test_looking_slows_down_while_nothing_happens() -> None:
    assert pause_between_polls(0.0, None) == QUICK
    assert pause_between_polls(0.3, None) == pytest.approx(0.03)
    assert pause_between_polls(3600.0, None) == IDLE
    assert pause_between_polls(3600.0, 0.5) == QUICK
    assert pause_between_polls(3600.0, 60.0) == IDLE


# Errors


def test_no_lower_librarys_exception_leaks(tmp_path: Path) -> None:
    away = "postgresql://postgres@127.0.0.1:1/none"
    for url in (f"sqlite:///{tmp_path / 'missing' / 'aft.db'}", f"sqlite:///{tmp_path / 'empty.db'}", away):
        store = Store(url)
        with open_broker(store) as broker:
            refused(partial(broker.declare, TOPOLOGY))
            refused(partial(broker.publish, [Outgoing(FAULTS, b"")]))
            refused(partial(broker.consumer, [FAULTS], 1))
            refused(partial(broker.status, TOPOLOGY))
            broker.broadcast(NAMESPACE, b"dropped")
        store.close()


def test_lost_connections_are_made_anew(postgres_url: str) -> None:
    with declared(postgres_url, BRIEFEST) as (_, broker):
        consumer = broker.consumer([FAULTS], 1)
        subscription = subscribed(broker)
        broker.broadcast(NAMESPACE, b"before")
        assert subscription.receive(5) == b"before"
        assert consumer.receive(1, 0.1) == []
        cut_all_connections(postgres_url)
        broker.publish([Outgoing(FAULTS, b"after")])
        deliveries = consumer.receive(1, 5)
        assert bodies(deliveries) == [b"after"]
        cut_all_connections(postgres_url)
        consumer.ack(deliveries)
        assert consumer.receive(1, 2 * BRIEFEST) == []
        until(lambda: hears_events(broker, subscription.receive))


def test_notifications_come_again_after_the_listener_was_cut(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL", 600)  # what is received was notified
    with declared(postgres_url) as (store, broker), open_broker(store) as other:
        consumer = broker.consumer([FAULTS], 1)
        until(lambda: listeners(postgres_url, rows.CHANNEL) != set())
        before = listeners(postgres_url, rows.CHANNEL)
        cut_all_connections(postgres_url)
        until(lambda: listeners(postgres_url, rows.CHANNEL) - before != set())
        publish_soon(other)
        (delivery,) = consumer.receive(1, 30)
        assert time.time() - float(delivery.body) < 10


def test_work_is_found_without_notifications(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "connect", fail_to_connect)
    with declared(postgres_url) as (store, broker), open_broker(store) as other:
        consumer = broker.consumer([FAULTS], 1)
        publish_soon(other)
        (delivery,) = consumer.receive(1, 30)
        assert time.time() - float(delivery.body) < 10


def test_what_came_while_nobody_listened_is_found_on_listening_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL", 600)
    with declared(postgres_url) as (store, broker), open_broker(store) as other:
        with monkeypatch.context() as patch:
            patch.setattr(listener, "connect", fail_to_connect)
            consumer = broker.consumer([FAULTS], 1)
            looked, received = looks(consumer, monkeypatch), list[Delivery]()
            waiting = threading.Thread(target=lambda: received.extend(consumer.receive(1, 30)))
            waiting.start()
            assert looked.wait(60)
            other.publish([Outgoing(FAULTS, b"unheard")])
            waiting.join(0.2)
            assert received == []
        waiting.join(60)
        assert bodies(received) == [b"unheard"]


# Live events


def test_live_events_reach_another_process(postgres_url: str) -> None:
    with declared(postgres_url) as (_, broker), child(postgres_url, "subscribe", NAMESPACE) as process:
        assert said(process) == "ready"
        broker.broadcast(NAMESPACE, b'{"runs": []}')
        assert said(process) == '{"runs": []}'


def test_live_events_come_from_another_process(postgres_url: str) -> None:
    with declared(postgres_url) as (_, broker):
        subscription = subscribed(broker)
        with child(postgres_url, "broadcast", NAMESPACE, "one", "two"):
            assert subscription.receive(30) == b"one"
            assert subscription.receive(10) == b"two"


def test_live_events_keep_namespaces_apart(postgres_url: str) -> None:
    other = NAMESPACE + "-other"
    with declared(postgres_url) as (_, broker):
        for mine, theirs in ((NAMESPACE, other), (other, NAMESPACE)):
            subscription = subscribed(broker, mine)
            broker.broadcast(theirs, b"not for us")
            broker.broadcast(mine, b"for us")
            assert subscription.receive(5) == b"for us"
            assert subscription.receive(0.1) is None


def test_a_live_event_that_is_too_long_is_dropped_and_what_is_just_short_enough_is_not(postgres_url: str) -> None:
    with declared(postgres_url) as (_, broker):
        subscription = subscribed(broker)
        for size in (live_events.LARGEST + 1, live_events.LARGEST):
            broker.broadcast(NAMESPACE, b"x" * size)
        assert subscription.receive(5) == b"x" * live_events.LARGEST


def test_what_an_earlier_version_left_beside_a_file_does_no_harm(tmp_path: Path) -> None:
    left = tmp_path / "aft.db.express"
    left.mkdir(mode=0o700)
    (left / f"{NAMESPACE}~0123456789ab").touch()
    with declared(f"sqlite:///{tmp_path / 'aft.db'}") as (_, broker):
        broker.broadcast(NAMESPACE, b"event")
        assert broker.subscribe(NAMESPACE) is None
        broker.publish([Outgoing(FAULTS, b"work")])
        assert bodies(broker.consumer([FAULTS], 1).receive(1, 5)) == [b"work"]


#: Closes watches while another thread looks at the file.
CLOSING = """
import sqlite3, sys, threading
from pathlib import Path
from aft.brokers.embedded.watch import Bell, FileWatch

sqlite3.connect(sys.argv[1]).close()
for _ in range(300):
    watch, looked = FileWatch(Path(sys.argv[1]), Bell(), ["queue"]), threading.Event()

    def look():
        for _ in range(50):
            watch.mark()
            looked.set()

    thread = threading.Thread(target=look)
    thread.start()
    looked.wait()
    watch.close()
    thread.join()
"""


def test_a_watch_that_is_closed_while_its_owner_looks_harms_nobody(tmp_path: Path) -> None:
    """As when a lease is over, and another thread than the receiving one gives its messages back. SQLite would die."""
    done = subprocess.run([sys.executable, "-c", CLOSING, str(tmp_path / "a.db")], check=False, timeout=60)
    assert done.returncode == 0


# Measured, not asserted


def test_measure_latency(broker: EmbeddedBroker, url: str, record_property: Callable[[str, object], None]) -> None:
    name = url.split(":")[0]
    consumer = broker.consumer([RESUME], 10)
    here: list[float] = []

    def answer() -> None:
        while deliveries := consumer.receive(1, 1):
            here.append(time.time() - float(deliveries[0].body))
            consumer.ack(deliveries)

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(20):
        time.sleep(0.02)
        broker.publish([Outgoing(RESUME, repr(time.time()).encode())])
    thread.join()
    with child(url, "answer", FAULTS) as process:
        assert said(process) == "ready"
        there = []
        for _ in range(20):
            time.sleep(0.02)
            broker.publish([Outgoing(FAULTS, repr(time.time()).encode())])
            there.append(float(said(process)))
    for where, found in (("thread", here), ("process", there)):
        median, worst = statistics.median(found) * 1000, max(found) * 1000
        record_property(f"{name} to another {where}, ms", f"median {median:.1f}, worst {worst:.1f}")
        print(f"{name}, publish to receive in another {where}: median {median:.1f} ms, worst {worst:.1f} ms")


# Helpers that reach into the database


def make_visible(store: Store) -> None:
    """Let every held message's visibility be over."""
    with store.write() as connection:
        past = "0" if store.dialect == "sqlite" else "clock_timestamp() - interval '1 s'"
        connection.execute(text(f"UPDATE {messages.name} SET visible_at = {past}"))


def changes(store: Store) -> object:
    """Tell a number that differs after any commit that wrote: of the file, or of the messages' table."""
    if store.file is not None:
        return Path(store.file + "-wal").read_bytes(), Path(store.file).read_bytes()
    with store.read() as connection:
        return connection.execute(text(f"SELECT xmin, ctid, * FROM {messages.name}")).all()


@contextmanager
def refusing(engine: Engine, verb: str) -> Iterator[None]:
    """Let every statement with this word fail."""

    def spoil(
        connection: Connection, cursor: object, statement: str, parameters: object, *rest: object
    ) -> tuple[str, object]:
        return ("NONSENSE" if verb in statement else statement), parameters

    event.listen(engine, "before_cursor_execute", spoil, retval=True)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", spoil)


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(BrokerError):
        call()


def together(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cut_all_connections(url: str) -> None:
    with looking_on(url) as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


def listeners(url: str, channel: str) -> set[int]:
    """The server's processes that listen to a channel."""
    with looking_on(url) as connection:
        query = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = :query")
        return set(connection.execute(query, {"query": f'LISTEN "{channel}"'}).scalars())


def looks(consumer: EmbeddedConsumer, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tell when a consumer has looked into its queues."""
    looked, look = threading.Event(), consumer._find_due

    def look_and_tell() -> dict[str, float]:
        found = look()
        looked.set()
        return found

    monkeypatch.setattr(consumer, "_find_due", look_and_tell)
    return looked


@contextmanager
def looking_on(url: str) -> Iterator[Connection]:
    store = Store(url, pool_size=1)
    try:
        with store.read() as connection:
            yield connection
    finally:
        store.close()


def subscribed(broker: EmbeddedBroker, namespace: str = NAMESPACE) -> Subscription:
    subscription = broker.subscribe(namespace)
    assert subscription is not None
    return subscription


def hears_events(broker: EmbeddedBroker, receive: Callable[[float], bytes | None]) -> bool:
    broker.broadcast(NAMESPACE, b"after")
    return receive(0.1) == b"after"
