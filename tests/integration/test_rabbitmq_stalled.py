"""A RabbitMQ that is there and does not do its work: alarms, silence, a queue without a leader. All calls still end."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from aft import names
from aft.brokers.base import Outgoing, Topology
from aft.brokers.rabbitmq import RabbitBroker, publisher
from aft.errors import BrokerError, Unroutable
from aft.store import outbox
from tests.contract.harness import collect, receive
from tests.contract.proxy import Proxy
from tests.servers import PrivateRabbit
from tests.setups import eventually

WAIT = timedelta(seconds=1)
TOPOLOGY = Topology("away", frozenset({WAIT}))
FAULTS, DELAY = names.faults("away"), names.delay("away", WAIT)
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def rabbit() -> Iterator[PrivateRabbit]:
    with PrivateRabbit() as server:
        yield server


@pytest.fixture
def broker(rabbit: PrivateRabbit) -> Iterator[RabbitBroker]:
    made = RabbitBroker(rabbit.url)
    made.declare(TOPOLOGY)
    yield made
    made.close()


def seconds_until_refused(broker: RabbitBroker, messages: list[Outgoing]) -> float:
    started = time.monotonic()
    with pytest.raises(BrokerError):
        broker.publish(messages)
    return time.monotonic() - started


def test_an_alarm_keeps_nobody_waiting_and_fills_no_memory(rabbit: PrivateRabbit, broker: RabbitBroker) -> None:
    broker.publish([Outgoing(FAULTS, b"before")])
    try:
        rabbit.ctl("set_vm_memory_high_watermark", "0")
        tracemalloc.start()
        with ThreadPoolExecutor(8) as pool:
            offered = [[Outgoing(FAULTS, bytes(4 * MEGABYTE))] for _ in range(24)]
            waited = list(pool.map(lambda batch: seconds_until_refused(broker, batch), offered))
        del offered
        eventually(lambda: kept_in_memory() < 40 * MEGABYTE)
    finally:
        tracemalloc.stop()
        rabbit.ctl("set_vm_memory_high_watermark", "0.4")
    assert max(waited) < 5, "an alarm has no end that anybody could wait for"
    eventually(lambda: not refused(broker, FAULTS))


def kept_in_memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_a_queue_that_confirms_nothing_holds_up_only_itself(
    rabbit: PrivateRabbit, broker: RabbitBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that lost its leader; a first message came before, for which RabbitMQ would stall the channel."""
    monkeypatch.setattr(publisher, "SILENCE", 2.0)
    monkeypatch.setattr(publisher, "SICK", 10.0)
    sick = [Outgoing(DELAY, b"sick")]
    broker.publish([Outgoing(FAULTS, b"well"), *sick])
    stop = threading.Event()

    def keep_publishing() -> None:
        while not stop.is_set():
            refused(broker, FAULTS)

    others = threading.Thread(target=keep_publishing)
    others.start()
    rabbit.ctl("eval", f"sys:suspend(whereis('%2F_{DELAY}')).")
    try:
        assert seconds_until_refused(broker, sick) < 6, "confirms of other queues are no sign of life of this one"
        eventually(lambda: seconds_until_refused(broker, sick) < 0.5)
        eventually(lambda: not refused(broker, FAULTS))
        assert refused(broker, DELAY)
    finally:
        stop.set()
        rabbit.ctl("eval", f"sys:resume(whereis('%2F_{DELAY}')).")
        others.join(30)
    eventually(lambda: not refused(broker, DELAY))


def test_silence_is_given_up_before_the_relay_may_take_what_is_being_published() -> None:
    """Otherwise an ailing broker would get everything twice, again and again."""
    assert publisher.SILENCE <= outbox.HOLD


def refused(broker: RabbitBroker, queue: str) -> bool:
    try:
        broker.publish([Outgoing(queue, b"now?")])
    except BrokerError:
        return True
    return False


def test_who_comes_while_a_silent_broker_is_awaited_does_not_wait_anew(
    rabbit: PrivateRabbit, broker: RabbitBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 3)
    with Proxy(urlsplit(rabbit.url).port or 0) as proxy:
        proxy.hold()
        silent = RabbitBroker(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
        assert seconds_until_refused(silent, [Outgoing(FAULTS, b"x")]) < 8
        assert seconds_until_refused(silent, [Outgoing(FAULTS, b"x")]) < 2
        proxy.release()
        eventually(lambda: not refused(silent, FAULTS))
        silent.close()


def test_a_consumer_says_that_its_queue_is_gone_and_finds_it_again(rabbit: PrivateRabbit, broker: RabbitBroker) -> None:
    """So that whoever consumes can declare it: if nothing is published, nobody else would notice."""
    consumer = broker.consumer([FAULTS], 10)
    receive(consumer, 10, 0.1)
    rabbit.ctl("delete_queue", FAULTS)

    def told() -> bool:
        try:
            consumer.receive(1, 0.5)
        except Unroutable as error:
            return "aft broker declare" in str(error)
        except BrokerError:
            pass  # the delivery was ended; the next call finds out why
        return False

    eventually(told)
    broker.declare(TOPOLOGY)
    broker.publish([Outgoing(FAULTS, b"again")])
    assert [delivery.body for delivery in collect(consumer, 1)] == [b"again"]
