"""What only RabbitMQ can do wrong: connections lost or silent, alarms, refusals, arguments that differ."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from aft import names
from aft.brokers.base import Outgoing, Topology
from aft.brokers.rabbitmq import RabbitBroker
from aft.brokers.rabbitmq.consumer import acknowledgements, share
from aft.brokers.rabbitmq.topology import DELIVERY_LIMIT, LONGEST_WAIT, queues
from aft.envelope import MOST_KEPT
from aft.errors import AftError, BrokerError, ConfigError, Unroutable
from tests.contract.harness import SHORT, RabbitHarness, collect, drain, eventually, receive
from tests.contract.proxy import Proxy
from tests.servers import PrivateRabbit, free_ports


@pytest.fixture
def rabbit(rabbit_url: str) -> Iterator[RabbitHarness]:
    made = RabbitHarness("rabbitmq", rabbit_url)
    yield made
    made.close()


@pytest.fixture
def topology(rabbit: RabbitHarness) -> Topology:
    made = rabbit.topology()
    rabbit.broker().declare(made)
    return made


@pytest.fixture
def proxy(rabbit_url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(rabbit_url).port or 5672) as made:
        yield made


@contextmanager
def through(proxy: Proxy, rabbit: RabbitHarness, timeout: float = 10.0) -> Iterator[RabbitBroker]:
    """A broker whose connections go through the proxy."""
    parts = urlsplit(rabbit.url)
    url = parts._replace(netloc=f"guest:guest@127.0.0.1:{proxy.port}").geturl()
    broker = RabbitBroker(url, timeout=timeout)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def channel(url: str) -> Iterator[BlockingChannel]:
    """A channel past the broker under test."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        yield connection.channel()


def calls_under_way(broker: RabbitBroker) -> int:
    """How many calls to publish wait for confirms, asked on the one thread that may look."""
    pipeline, answer = broker._publisher._pipeline, Future[int]()
    assert pipeline is not None
    pipeline.link.post(lambda: answer.set_result(len(pipeline._batches())))
    return answer.result(60)


def consuming() -> set[threading.Thread]:
    """The threads of connections on which somebody consumes."""
    return {thread for thread in threading.enumerate() if thread.name == "aft-consume"}


def faults(topology: Topology, count: int = 1) -> list[Outgoing]:
    return [Outgoing(names.faults(topology.namespace), b"%d" % number) for number in range(count)]


class TestErrorsForPeople:
    def every_call(self, broker: RabbitBroker) -> Iterator[AftError]:
        """The errors of every call that can fail; anything but an AftError fails the test."""
        topology = Topology("t0", frozenset({SHORT}))
        consumer = broker.consumer(["t0.faults.v2"], 1)
        for call in (
            lambda: broker.publish(faults(topology)),
            lambda: broker.declare(topology),
            lambda: broker.status(topology),
            lambda: broker.subscribe("t0"),
            lambda: consumer.receive(1, 2),
        ):
            with pytest.raises(AftError) as caught:
                call()
            yield caught.value
        broker.broadcast("t0", b"never raises")
        broker.close()

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda parts: parts._replace(netloc=f"guest:hush@127.0.0.1:{free_ports(1)}"), "running"),
            (lambda parts: parts._replace(netloc="guest:hush@nowhere.invalid:5672"), "host"),
            (lambda parts: parts._replace(netloc=f"guest:hush@127.0.0.1:{parts.port}"), "password"),
            (lambda parts: parts._replace(path="/no-such-vhost"), "vhost"),
            (lambda parts: parts._replace(scheme="amqps"), "TLS"),
        ],
    )
    def test_a_wrong_address_is_one_clear_line_without_the_password(
        self, rabbit_url: str, change: object, says: str
    ) -> None:
        parts = urlsplit(rabbit_url)
        url = change(parts._replace(netloc=f"guest:guest@127.0.0.1:{parts.port}")).geturl()  # type: ignore[operator]
        for error in self.every_call(RabbitBroker(url, timeout=10)):
            assert isinstance(error, BrokerError)
            text = str(error)
            assert says in text
            assert urlsplit(url).hostname in text
            assert "hush" not in text
            assert "guest:" not in text
            assert "pika" not in text
            assert "\n" not in text
            assert ";" in text, f"it does not say what to do next: {text}"

    def test_something_that_does_not_speak_amqp_is_told_from_a_server_that_is_away(self) -> None:
        with Proxy(free_ports(1)) as nobody:  # accepts, then closes
            broker = RabbitBroker(f"amqp://guest:hush@127.0.0.1:{nobody.port}/", timeout=2)
            assert all("does not speak AMQP" in str(error) for error in self.every_call(broker))

    def test_something_that_says_nothing_is_given_up_in_time(self, rabbit_url: str, proxy: Proxy) -> None:
        proxy.hold()
        broker = RabbitBroker(f"amqp://guest:guest@127.0.0.1:{proxy.port}/", timeout=0.5)
        for error in self.every_call(broker):
            assert "answer" in str(error) or "within" in str(error)

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost",
            "http://guest:hush@localhost/",
            "amqp:///",
            "amqp://guest:hush@",
            "amqp://guest:hush@host:port/",
            "amqp://guest:hush@host:99999/",
            "amqp://guest:hush/hush@host/",
            "amqp://guest@host/",
            "amqp://guest:hush@host/?heartbeat=often",
            "amqp://guest:hush@host/?no_such_option=1",
            "amqp://guest:hush@[::1/",
        ],
    )
    def test_a_malformed_url_is_refused_at_once_without_the_password(self, url: str) -> None:
        with pytest.raises(ConfigError, match="amqp://user:password@host") as caught:
            RabbitBroker(url)
        assert "hush" not in str(caught.value)

    def test_the_url_is_shown_without_its_password(self) -> None:
        shown = RabbitBroker("amqp://me:hush@[::1]:5673/v%2Fhost?heartbeat=5").url
        assert shown == "amqp://me@[::1]:5673/v%2Fhost"

    def test_settings_that_cannot_work_are_refused(self, rabbit_url: str) -> None:
        for wrong in ({"queue_type": "stream"}, {"confirm_window": 0}, {"timeout": 0}):
            with pytest.raises(ConfigError):
                RabbitBroker(rabbit_url, **wrong)

    def test_a_queue_that_does_not_exist_cannot_be_consumed(self, rabbit: RabbitHarness, topology: Topology) -> None:
        consumer = rabbit.broker().consumer([f"{topology.namespace}.gone"], 1)
        with pytest.raises(BrokerError, match=rf"{topology.namespace}\.gone.*aft broker declare"):
            consumer.receive(1, 10)

    def test_what_pika_logs_does_not_reach_stderr(
        self, rabbit: RabbitHarness, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        rabbit.broker().status(rabbit.topology())
        assert capfd.readouterr().err == ""


class TestConnectionLost:
    def test_acknowledgements_for_a_lost_connection_do_nothing_and_the_messages_come_again(
        self, rabbit: RabbitHarness, topology: Topology, proxy: Proxy
    ) -> None:
        rabbit.broker().publish(faults(topology, 6))
        with through(proxy, rabbit) as broker:
            consumer = broker.consumer([names.faults(topology.namespace)], 3)
            old = collect(consumer, 3)
            proxy.cut()
            new = collect(consumer, 3)
            consumer.ack(old)  # the same delivery tags, of another connection
            assert consumer.receive(3, 0.5) == [], "an old acknowledgement was taken for a new one"
            consumer.ack(new)
            rest = drain(consumer, 3)
            assert sorted(int(delivery.body) for delivery in new + rest) == list(range(6))
            assert sum(delivery.redelivered for delivery in new + rest) == 3

    def test_a_publish_that_loses_its_connection_says_so_and_the_next_one_works(
        self, rabbit: RabbitHarness, topology: Topology, proxy: Proxy
    ) -> None:
        with through(proxy, rabbit) as broker, ThreadPoolExecutor(1) as pool:
            broker.publish(faults(topology))
            proxy.hold()
            under_way = pool.submit(broker.publish, faults(topology, 100))
            eventually(lambda: calls_under_way(broker) == 1)
            proxy.cut()
            proxy.release()
            with pytest.raises(BrokerError, match="lost the connection"):
                under_way.result(60)
            broker.publish(faults(topology))

    def test_a_broker_that_confirms_nothing_is_given_up_in_time(
        self, rabbit: RabbitHarness, topology: Topology, proxy: Proxy
    ) -> None:
        with through(proxy, rabbit, timeout=3) as broker:
            broker.publish(faults(topology))
            proxy.hold()
            started = time.monotonic()
            with pytest.raises(BrokerError, match="confirmed nothing within 3 s"):
                broker.publish(faults(topology))
            assert 2.9 < time.monotonic() - started < 60
            proxy.release()
            broker.publish(faults(topology))

    def test_all_threads_that_share_a_lost_connection_are_told(
        self, rabbit: RabbitHarness, topology: Topology, proxy: Proxy
    ) -> None:
        with through(proxy, rabbit) as broker, ThreadPoolExecutor(4) as pool:
            broker.publish(faults(topology))
            proxy.hold()
            calls = [pool.submit(broker.publish, faults(topology, 2000)) for _ in range(4)]
            eventually(lambda: calls_under_way(broker) == 4)
            proxy.cut()
            proxy.release()
            for call in calls:
                with pytest.raises(BrokerError, match="lost the connection"):
                    call.result(60)

    def test_a_deleted_queue_is_an_error_until_it_is_there_again(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        broker = rabbit.broker()
        consumer = broker.consumer([names.faults(topology.namespace)], 1)
        assert receive(consumer, 1, 0.2) == []
        rabbit.forget(topology)
        with pytest.raises(BrokerError, match=r"no queue"):
            consumer.receive(1, 10)
        with pytest.raises(Unroutable):
            broker.publish(faults(topology))
        broker.declare(topology)
        broker.publish(faults(topology))
        drain(consumer, 1)

    def test_a_subscription_comes_back_by_itself(self, rabbit: RabbitHarness, topology: Topology, proxy: Proxy) -> None:
        sender = rabbit.broker()
        with through(proxy, rabbit) as broker:
            ear = broker.subscribe(topology.namespace)
            proxy.cut()

            def heard() -> bool:
                sender.broadcast(topology.namespace, b"news")
                return ear.receive(0.5) == b"news"

            eventually(heard)

    def test_short_receives_get_through_to_a_slow_broker(
        self, rabbit: RabbitHarness, topology: Topology, proxy: Proxy
    ) -> None:
        rabbit.broker().publish(faults(topology))
        with through(proxy, rabbit) as broker:
            consumer = broker.consumer([names.faults(topology.namespace)], 1)
            proxy.hold()
            with pytest.raises(BrokerError):
                consumer.receive(1, 0.05)
            before = consuming()
            for _ in range(5):
                with pytest.raises(BrokerError):
                    consumer.receive(1, 0.05)
            assert consuming() <= before, "each call began anew"
            proxy.release()
            drain(consumer, 1)


class TestRefusals:
    def test_a_message_that_the_queue_refuses_is_an_error(self, rabbit: RabbitHarness, topology: Topology) -> None:
        full = f"{topology.namespace}.full"
        with channel(rabbit.url) as raw:
            raw.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            with pytest.raises(BrokerError, match=rf"{topology.namespace}\.full.*refused"):
                rabbit.broker().publish([Outgoing(full, b"x")] * 5)
            raw.queue_delete(full)

    def test_of_an_oversized_message_only_the_beginning_is_kept_in_memory(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        queue, whole, large = topology.work_queues[0], b"a" * MOST_KEPT, b"b" * (MOST_KEPT + 1)
        with channel(rabbit.url) as past:
            for body in (whole, large):
                past.basic_publish("", queue, body)
        found = collect(rabbit.broker().consumer([queue], 10), 2)
        assert sorted((one.body, one.size) for one in found) == [(whole, None), (large[:-1], len(large))]

    def test_one_callers_unroutable_message_does_not_fail_another_caller(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        broker = rabbit.broker()
        gone = [Outgoing(f"{topology.namespace}.gone", b"x")] * 20
        with ThreadPoolExecutor(4) as pool:
            good = [pool.submit(broker.publish, faults(topology, 50)) for _ in range(10)]
            bad = [pool.submit(broker.publish, gone) for _ in range(10)]
        assert all(call.exception() is None for call in good)
        assert all(isinstance(call.exception(), Unroutable) for call in bad)

    def test_a_queue_name_that_amqp_cannot_carry_is_an_error_and_harms_nobody(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        broker = rabbit.broker()
        with pytest.raises(BrokerError):
            broker.publish([Outgoing("x" * 300, b"x")])
        broker.publish(faults(topology))

    def test_a_small_window_still_carries_a_large_batch(self, rabbit: RabbitHarness, topology: Topology) -> None:
        broker = RabbitBroker(rabbit.url, confirm_window=3)
        broker.publish(faults(topology, 200))
        broker.close()
        drain(rabbit.broker().consumer([names.faults(topology.namespace)], 100), 200)


class TestTopology:
    def test_other_arguments_are_an_error_that_names_the_queue_and_says_what_to_do(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        other = RabbitBroker(rabbit.url, queue_type="classic")
        undeliverable = names.undeliverable(topology.namespace)
        with pytest.raises(BrokerError, match=rf"{undeliverable}.*other arguments.*AFT_QUEUE_TYPE=quorum.*delete each"):
            other.declare(topology)
        found = other.status(topology)
        assert all(status.exists and "other arguments" in status.problem for status in found)
        assert all("inequivalent arg" in status.problem for status in found)

    def test_the_queue_of_a_pool_goes_with_its_workers_and_its_messages_to_the_others(
        self, rabbit: RabbitHarness, topology: Topology, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aft.brokers.rabbitmq.topology.POOL_EXPIRES", 1000)
        broker, resume, keys = rabbit.broker(), names.resume(topology.namespace), frozenset({"a@1"})
        known = replace(topology, pools=frozenset({keys}))
        consumer = broker.consumer([resume], 1, keys)
        receive(consumer, 1, 0.1)
        assert names.pool(resume, keys) in {one.name for one in broker.status(known)}
        consumer.close()
        eventually(lambda: names.pool(resume, keys) not in {one.name for one in broker.status(known)})
        broker.publish([Outgoing(resume, b"kept", "a@1")])
        assert [delivery.body for delivery in drain(broker.consumer([resume], 1, ["b@1"]), 1)] == [b"kept"]

    def test_bindings_that_went_with_their_exchange_are_made_again(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        broker, resume = rabbit.broker(), names.resume(topology.namespace)
        pool, other = broker.consumer([resume], 8, ["a@1", "b@1"]), broker.consumer([resume], 8, ["c@1"])
        for consumer in (pool, other):
            receive(consumer, 1, 0.1)
        with channel(rabbit.url) as raw:
            raw.exchange_delete(resume)
        broker.declare(topology)

        def has_all() -> bool:
            """Whether the pool gets what is sent to it; through the shared queue, the other one gets every second."""
            broker.publish([Outgoing(resume, b"%d" % number, "a@1") for number in range(4)])
            found = {pool: 0, other: 0}
            while sum(found.values()) < 4:
                for consumer in found:
                    deliveries = receive(consumer, 4, 0.1)
                    consumer.ack(deliveries)
                    found[consumer] += len(deliveries)
            return found[pool] == 4

        eventually(has_all)

    def test_a_role_that_declares_nothing_receives_from_its_pool_if_that_is_there_and_from_all_if_not(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        passive, resume = RabbitBroker(rabbit.url, passive=True), names.resume(topology.namespace)
        alone = passive.consumer([resume], 1, ["a@1"])
        receive(alone, 1, 0.1)
        rabbit.broker().publish([Outgoing(resume, b"shared", "a@1")])
        assert [delivery.body for delivery in drain(alone, 1)] == [b"shared"]
        alone.close()
        declaring = rabbit.broker().consumer([resume], 1, ["a@1"])
        receive(declaring, 1, 0.1)
        joined = passive.consumer([resume], 1, ["a@1"])
        receive(joined, 1, 0.1)
        declaring.close()
        rabbit.broker().publish([Outgoing(resume, b"pool", "a@1")])
        assert [delivery.body for delivery in drain(joined, 1)] == [b"pool"]
        passive.close()

    def test_a_role_that_declares_nothing_joins_a_pool_that_others_made_and_left(
        self, rabbit: RabbitHarness, topology: Topology, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aft.brokers.rabbitmq.consumer.POLL_PAUSE", 0.1)
        broker, resume = rabbit.broker(), names.resume(topology.namespace)
        passive = RabbitBroker(rabbit.url, passive=True)
        stays = passive.consumer([resume, names.compensate(topology.namespace)], 4, ["a@1"])
        receive(stays, 1, 0.1)
        leaves = broker.consumer([resume], 1, ["a@1"])
        receive(leaves, 1, 0.1)
        leaves.close()
        broker.publish([Outgoing(resume, b"%d" % number, "a@1") for number in range(3)])
        assert sorted(delivery.body for delivery in drain(stays, 3)) == [b"0", b"1", b"2"]
        passive.close()

    def test_a_changed_wait_is_noticed(self, rabbit: RabbitHarness, topology: Topology) -> None:
        broker = rabbit.broker()
        changed = names.delay(topology.namespace, SHORT)
        with channel(rabbit.url) as raw:
            raw.queue_delete(changed)
            arguments = queues(topology, "quorum")[changed] | {"x-message-ttl": 1}
            raw.queue_declare(changed, durable=True, arguments=arguments)
        problems = {status.name: status.problem for status in broker.status(topology) if status.problem}
        assert list(problems) == [changed]
        assert "x-message-ttl" in problems[changed]
        with pytest.raises(BrokerError, match="x-message-ttl"):
            broker.declare(topology)

    def test_passive_declares_nothing_and_notices_what_is_missing(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        passive = RabbitBroker(rabbit.url, passive=True)
        passive.declare(topology)
        missing = rabbit.topology()
        with pytest.raises(BrokerError, match=r"does not exist.*role that may"):
            passive.declare(missing)
        assert not any(status.exists for status in rabbit.broker().status(missing))
        ear = passive.subscribe(topology.namespace)
        passive.broadcast(topology.namespace, b"heard")
        assert ear.receive(10) == b"heard"
        passive.close()

    def test_a_wait_longer_than_rabbitmq_can_keep_is_refused(self, rabbit: RabbitHarness) -> None:
        longest = Topology("t0", frozenset({LONGEST_WAIT}))
        assert queues(longest, "quorum")[names.delay("t0", LONGEST_WAIT)]["x-message-ttl"] == 2**32 - 1
        with pytest.raises(ValueError, match="49 days"):
            rabbit.broker().declare(Topology("t0", frozenset({timedelta(days=50)})))

    def test_the_longest_wait_is_accepted_by_the_broker(self, rabbit: RabbitHarness) -> None:
        topology = Topology(rabbit.topology().namespace, frozenset({LONGEST_WAIT}))
        rabbit.broker().declare(topology)
        rabbit.forget(topology)

    def test_a_message_delivered_too_often_is_put_aside_not_dropped(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        broker = rabbit.broker()
        broker.publish(faults(topology))
        with channel(rabbit.url) as raw:
            times = 0
            for method, _, _ in raw.consume(names.faults(topology.namespace), inactivity_timeout=2):
                if method is None:
                    break
                times += 1
                raw.basic_nack(method.delivery_tag, requeue=True)
        assert times == DELIVERY_LIMIT + 1
        aside = drain(broker.consumer([names.undeliverable(topology.namespace)], 1), 1)
        assert aside[0].body == b"0"

    def test_a_publish_is_persistent_and_fresh_and_only_the_broker_adds_death_headers(
        self, rabbit: RabbitHarness, topology: Topology
    ) -> None:
        broker = rabbit.broker()
        broker.publish([*faults(topology), Outgoing(names.delay(topology.namespace, SHORT), b"later")])
        with channel(rabbit.url) as raw:
            _, fresh, _ = raw.basic_get(names.faults(topology.namespace))
            assert fresh is not None
            assert fresh.delivery_mode == 2
            assert "x-death" not in (fresh.headers or {})

            def forwarded() -> pika.BasicProperties | None:
                return raw.basic_get(names.resume(topology.namespace), auto_ack=True)[1]

            late = eventually(forwarded)
            assert late is not None
            assert "x-death" in late.headers


class TestAlarm:
    def test_under_a_memory_alarm_a_publish_ends_in_time_and_consuming_goes_on(
        self, private_rabbit: PrivateRabbit
    ) -> None:
        private_rabbit.start()
        rabbit = RabbitHarness("rabbitmq", private_rabbit.url)
        broker, topology = rabbit.broker(timeout=2), rabbit.topology()
        broker.declare(topology)
        broker.publish(faults(topology, 3))
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        private_rabbit.ctl("set_vm_memory_high_watermark", "0")
        try:
            for _ in range(2):  # on the connection that met the alarm, and on a new one
                started = time.monotonic()
                with pytest.raises(BrokerError, match="alarm"):
                    broker.publish(faults(topology, 5000))
                assert time.monotonic() - started < 60
            assert len(drain(consumer, 3)) == 3
            started = time.monotonic()
            for _ in range(3000):
                broker.broadcast(topology.namespace, b"x" * 1000)
            assert time.monotonic() - started < 60
            leaving = RabbitBroker(private_rabbit.url, timeout=1)
            with pytest.raises(BrokerError):
                leaving.publish(faults(topology))
            started = time.monotonic()
            leaving.close()
            assert time.monotonic() - started < 60
        finally:
            private_rabbit.ctl("set_vm_memory_high_watermark", "0.4")
        broker.publish(faults(topology))
        drain(consumer, 1)
        rabbit.close()


class TestClosing:
    def test_no_thread_is_left_behind(self, rabbit: RabbitHarness, topology: Topology) -> None:
        before = set(threading.enumerate())
        broker = RabbitBroker(rabbit.url)
        broker.publish(faults(topology))
        collect(broker.consumer([names.faults(topology.namespace)], 1), 1)
        broker.subscribe(topology.namespace)
        broker.broadcast(topology.namespace, b"x")
        broker.status(topology)
        assert set(threading.enumerate()) - before
        broker.close()
        assert set(threading.enumerate()) - before == set()

    def test_a_waiting_receive_ends_when_the_broker_closes(self, rabbit: RabbitHarness, topology: Topology) -> None:
        broker = RabbitBroker(rabbit.url)
        consumer = broker.consumer([names.faults(topology.namespace)], 1)
        receive(consumer, 1, 0.1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.receive, 1, 60)
            time.sleep(0.2)
            broker.close()
            with pytest.raises(BrokerError):
                waiting.result(60)

    def test_events_sent_just_before_closing_leave(self, rabbit: RabbitHarness, topology: Topology) -> None:
        listening, sender = RabbitBroker(rabbit.url), RabbitBroker(rabbit.url)
        ear = listening.subscribe(topology.namespace)
        sender.broadcast(topology.namespace, b"last words")
        sender.close()
        assert ear.receive(5) == b"last words"
        listening.close()

    def test_acknowledgements_sent_just_before_closing_count(self, rabbit: RabbitHarness, topology: Topology) -> None:
        broker = rabbit.broker()
        broker.publish(faults(topology, 50))
        consumer = broker.consumer([names.faults(topology.namespace)], 50)
        held = collect(consumer, 50)
        for delivery in reversed(held):
            consumer.ack([delivery])
        consumer.close()
        assert receive(broker.consumer([names.faults(topology.namespace)], 50), 50, 0.5) == []


class TestPlans:
    @pytest.mark.parametrize(
        ("tags", "lowest_open", "plan"),
        [
            ([], None, []),
            ([1], None, [(1, False)]),
            ([1, 2, 3], None, [(3, True)]),
            ([1, 2, 3], 4, [(3, True)]),
            ([2, 3], 1, [(2, False), (3, False)]),
            ([1, 2, 4, 6], 3, [(2, True), (4, False), (6, False)]),
            ([5], 7, [(5, False)]),
        ],
    )
    def test_one_acknowledgement_covers_all_that_is_below_every_open_tag(
        self, tags: list[int], lowest_open: int | None, plan: list[tuple[int, bool]]
    ) -> None:
        assert list(acknowledgements(tags, lowest_open)) == plan

    @pytest.mark.parametrize(
        ("prefetch", "count", "shares"),
        [(10, 1, [10]), (10, 3, [4, 3, 3]), (3, 3, [1, 1, 1]), (1, 3, [1, 1, 1])],
    )
    def test_the_prefetch_is_shared_out(self, prefetch: int, count: int, shares: list[int]) -> None:
        assert list(share(prefetch, count)) == shares
