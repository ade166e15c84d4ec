"""The contract of a message broker, written only against the port: what ``aft/brokers/base.py`` promises."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from aft import names
from aft.brokers.base import Broker, Consumer, Outgoing, Subscription, Topology
from aft.envelope import MOST_BYTES, MOST_KEPT
from aft.errors import BrokerError, Unroutable
from tests.contract.conftest import LIVE_KINDS
from tests.contract.harness import LONG, SHORT, Harness, ServerHarness, collect, drain, eventually, receive


def faults(topology: Topology, *bodies: bytes) -> list[Outgoing]:
    return [Outgoing(names.faults(topology.namespace), body) for body in bodies]


def numbered(topology: Topology, count: int) -> list[Outgoing]:
    return faults(topology, *(b"%d" % number for number in range(count)))


def waiting(topology: Topology, wait: timedelta, body: bytes) -> Outgoing:
    return Outgoing(names.delay(topology.namespace, wait), body)


def subscribed(broker: Broker, topology: Topology) -> Subscription:
    subscription = broker.subscribe(topology.namespace)
    assert subscription is not None
    return subscription


class TestPublishAndReceive:
    def test_what_is_published_is_received(self, broker: Broker, topology: Topology) -> None:
        broker.publish(faults(topology, b"one", b"two"))
        got = drain(broker.consumer([names.faults(topology.namespace)], 10), 2)
        assert sorted(delivery.body for delivery in got) == [b"one", b"two"]
        assert {delivery.queue for delivery in got} == {names.faults(topology.namespace)}
        assert not any(delivery.redelivered for delivery in got)

    def test_a_consumer_receives_from_all_of_its_queues(self, broker: Broker, topology: Topology) -> None:
        broker.publish([Outgoing(queue, queue.encode()) for queue in topology.work_queues])
        got = drain(broker.consumer(topology.work_queues, 10), 3)
        assert {delivery.queue: delivery.body.decode() for delivery in got} == {
            queue: queue for queue in topology.work_queues
        }

    def test_a_message_published_while_a_consumer_waits_is_received(self, broker: Broker, topology: Topology) -> None:
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        assert receive(consumer, 10, 0.2) == []
        timer = threading.Timer(0.3, broker.publish, [faults(topology, b"late")])
        timer.start()
        assert [delivery.body for delivery in consumer.receive(10, 60)] == [b"late"]
        timer.join()

    def test_receive_ends_after_its_timeout(self, broker: Broker, topology: Topology) -> None:
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        receive(consumer, 10, 0.2)
        started = time.monotonic()
        assert consumer.receive(10, 0.3) == []
        assert 0.3 <= time.monotonic() - started < 60

    def test_a_receive_that_waits_returns_when_it_is_interrupted_and_the_next_one_waits(
        self, broker: Broker, topology: Topology
    ) -> None:
        with ThreadPoolExecutor(1) as its_thread:
            consumer = its_thread.submit(broker.consumer, [names.faults(topology.namespace)], 10).result()
            assert its_thread.submit(receive, consumer, 10, 0.2).result() == []
            waiting = its_thread.submit(consumer.receive, 10, 600)
            consumer.interrupt()
            assert waiting.result(60) == []
            waiting = its_thread.submit(consumer.receive, 10, 600)
            broker.publish(faults(topology, b"after"))
            assert [delivery.body for delivery in waiting.result(60)] == [b"after"]

    def test_receive_returns_no_more_than_its_limit(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 10))
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        sizes: list[int] = []
        while sum(sizes) < 10:
            got = consumer.receive(3, 60)
            sizes.append(len(got))
        assert all(0 < size <= 3 for size in sizes)

    def test_to_publish_nothing_is_fine(self, broker: Broker) -> None:
        broker.publish([])

    def test_the_same_body_twice_is_delivered_twice(self, broker: Broker, topology: Topology) -> None:
        broker.publish(faults(topology, b"twin", b"twin"))
        got = drain(broker.consumer([names.faults(topology.namespace)], 10), 2)
        assert [delivery.body for delivery in got] == [b"twin", b"twin"]

    def test_a_large_batch_arrives_whole(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 2000))
        got = drain(broker.consumer([names.faults(topology.namespace)], 200), 2000, within=60)
        assert sorted(int(delivery.body) for delivery in got) == list(range(2000))

    @pytest.mark.parametrize("size", [0, 1, MOST_BYTES, MOST_KEPT])
    def test_a_body_of_any_size_that_is_kept_survives_the_transport(
        self, broker: Broker, topology: Topology, size: int
    ) -> None:
        body = bytes(range(256)) * (size // 256) + b"\0" * (size % 256)
        broker.publish(faults(topology, body))
        got = drain(broker.consumer([names.faults(topology.namespace)], 1), 1)[0]
        assert (got.body, got.size) == (body, None)

    @pytest.mark.parametrize("size", [131_072, 3_000_000])
    def test_an_oversized_body_comes_with_its_size_and_at_least_what_quarantine_keeps(
        self, broker: Broker, topology: Topology, size: int
    ) -> None:
        body = bytes(range(256)) * (size // 256) + b"\0" * (size % 256)
        broker.publish(faults(topology, body))
        got = drain(broker.consumer([names.faults(topology.namespace)], 1), 1)[0]
        assert body.startswith(got.body)
        assert len(got.body) >= MOST_KEPT
        assert (got.size or len(got.body)) == size

    def test_several_threads_publish_at_once(self, broker: Broker, topology: Topology) -> None:
        with ThreadPoolExecutor(8) as pool:
            for done in [
                pool.submit(broker.publish, faults(topology, *(b"%d.%d" % (thread, n) for n in range(50))))
                for thread in range(8)
            ]:
                done.result()
        got = drain(broker.consumer([names.faults(topology.namespace)], 100), 400)
        assert len({delivery.body for delivery in got}) == 400

    def test_a_message_without_a_queue_is_unroutable_and_the_error_names_it(
        self, broker: Broker, topology: Topology
    ) -> None:
        gone = f"{topology.namespace}.gone"
        with pytest.raises(Unroutable, match=gone):
            broker.publish([*faults(topology, b"there"), Outgoing(gone, b"nowhere")])
        broker.publish(faults(topology, b"after"))
        got = drain(broker.consumer([names.faults(topology.namespace)], 10), 1)
        assert got[0].body in (b"there", b"after")

    def test_a_queue_that_does_not_exist_cannot_be_consumed(self, broker: Broker, topology: Topology) -> None:
        with pytest.raises(BrokerError, match=f"{topology.namespace}.gone"):
            broker.consumer([f"{topology.namespace}.gone"], 1).receive(1, 10)


class TestAcknowledgement:
    def test_unacknowledged_come_back_when_the_consumer_closes(self, broker: Broker, topology: Topology) -> None:
        broker.publish(faults(topology, b"one", b"two"))
        first = broker.consumer([names.faults(topology.namespace)], 10)
        collect(first, 2)
        first.close()
        got = drain(broker.consumer([names.faults(topology.namespace)], 10), 2)
        assert sorted(delivery.body for delivery in got) == [b"one", b"two"]
        assert all(delivery.redelivered for delivery in got)

    def test_unacknowledged_come_back_when_the_consumers_process_is_killed(
        self, harness: Harness, broker: Broker, topology: Topology
    ) -> None:
        broker.publish(numbered(topology, 3))
        with harness.holder(names.faults(topology.namespace), 3) as process:
            other = broker.consumer([names.faults(topology.namespace)], 10)
            assert receive(other, 10, 0.5) == []
            process.kill()
            got = drain(other, 3, within=60)
        assert sorted(int(delivery.body) for delivery in got) == [0, 1, 2]
        assert all(delivery.redelivered for delivery in got)

    def test_acknowledged_never_come_again(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 20))
        first = broker.consumer([names.faults(topology.namespace)], 20)
        drain(first, 20)
        first.close()
        assert receive(broker.consumer([names.faults(topology.namespace)], 20), 20, 1) == []

    @pytest.mark.parametrize(
        "acked", [{0}, {9}, {4}, {0, 1, 2}, {7, 8, 9}, {0, 1, 5, 6, 9}, set(range(9)), {1, 3, 5, 7, 9}]
    )
    def test_only_what_was_not_acknowledged_comes_back(
        self, broker: Broker, topology: Topology, acked: set[int]
    ) -> None:
        broker.publish(numbered(topology, 10))
        first = broker.consumer([names.faults(topology.namespace)], 10)
        got = collect(first, 10)
        first.ack(delivery for delivery in got if int(delivery.body) in acked)
        first.close()
        second = broker.consumer([names.faults(topology.namespace)], 20)
        again = drain(second, 10 - len(acked))
        assert {int(delivery.body) for delivery in again} == set(range(10)) - acked
        assert second.receive(20, 0.3) == []

    def test_to_acknowledge_twice_is_harmless(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 2))
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        got = collect(consumer, 2)
        consumer.ack(got[:1])
        consumer.ack(got)
        consumer.ack([])
        broker.publish(faults(topology, b"9"))
        assert [delivery.body for delivery in drain(consumer, 1)] == [b"9"]

    def test_to_acknowledge_what_another_consumer_received_is_harmless(
        self, broker: Broker, topology: Topology
    ) -> None:
        broker.publish(numbered(topology, 1))
        queue = names.faults(topology.namespace)
        first, second = broker.consumer([queue], 1), broker.consumer([queue], 1)
        got = collect(first, 1)
        assert receive(second, 1, 0.2) == []
        first.close()
        second.ack(got)
        assert len(drain(second, 1)) == 1


class TestPrefetch:
    def test_no_more_than_the_prefetch_is_handed_out(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 10))
        consumer = broker.consumer([names.faults(topology.namespace)], 3)
        held = collect(consumer, 3)
        assert consumer.receive(10, 0.5) == []
        consumer.ack(held[:1])
        assert len(consumer.receive(10, 60)) == 1
        assert consumer.receive(10, 0.5) == []

    def test_what_is_beyond_the_prefetch_is_left_for_others(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 10))
        queue = names.faults(topology.namespace)
        collect(slow := broker.consumer([queue], 2), 2)
        assert len(drain(broker.consumer([queue], 20), 8)) == 8
        slow.close()

    def test_the_prefetch_is_for_all_queues_together(self, broker: Broker, topology: Topology) -> None:
        broker.publish([Outgoing(queue, b"x") for queue in topology.work_queues for _ in range(5)])
        slow = broker.consumer(topology.work_queues, 3)
        held = slow.receive(10, 60)
        assert 1 <= len(held) <= 3
        others = drain(broker.consumer(topology.work_queues, 30), 12)
        assert len(others) == 12
        assert len(held + slow.receive(10, 0.5)) <= 3

    def test_more_queues_than_prefetch_still_hands_out_no_more(self, broker: Broker, topology: Topology) -> None:
        broker.publish([Outgoing(queue, queue.encode()) for queue in topology.work_queues])
        consumer = broker.consumer(topology.work_queues, 1)
        seen = set()
        for _ in range(3):
            held = consumer.receive(10, 60)
            assert len(held) == 1
            assert consumer.receive(10, 0.2) == []
            consumer.ack(held)
            seen.add(held[0].queue)
        assert seen == set(topology.work_queues)

    def test_several_consumers_share_a_queue_and_none_gets_anothers_message(
        self, harness: Harness, broker: Broker, topology: Topology
    ) -> None:
        broker.publish(numbered(topology, 300))
        seen: list[int] = []
        all_hold_some = threading.Barrier(3)

        def work() -> None:
            consumer = harness.broker().consumer([names.faults(topology.namespace)], 5)
            got = collect(consumer, 1)
            all_hold_some.wait(60)
            while len(seen) < 300:
                consumer.ack(got)
                seen.extend(int(delivery.body) for delivery in got)
                got = consumer.receive(5, 0.2)

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work) for _ in range(3)]:
                done.result(60)
        assert sorted(seen) == list(range(300))


class TestRouting:
    def test_a_message_with_a_key_goes_to_a_consumer_that_has_it(self, broker: Broker, topology: Topology) -> None:
        resume = names.resume(topology.namespace)
        mine, other = broker.consumer([resume], 10, ["a@1", "b@1"]), broker.consumer([resume], 10, ["c@1"])
        assert receive(mine, 10, 0.1) == receive(other, 10, 0.1) == []  # both are there
        wait = names.delay(topology.namespace, SHORT)
        broker.publish(
            [Outgoing(resume, b"now", "b@1"), Outgoing(wait, b"later", "a@1"), Outgoing(resume, b"c", "c@1")]
        )
        got = drain(mine, 2)
        assert sorted(delivery.body for delivery in got) == [b"later", b"now"]
        assert {delivery.queue for delivery in got} == {resume}
        assert [delivery.body for delivery in drain(other, 1)] == [b"c"]
        assert receive(mine, 10, 0.2) == receive(other, 10, 0.2) == []

    def test_consumers_with_the_same_keys_share_the_messages(self, broker: Broker, topology: Topology) -> None:
        resume = names.resume(topology.namespace)
        consumers = [broker.consumer([resume], 1, keys) for keys in (["a@1", "b@1"], ["b@1", "a@1"])]
        for consumer in consumers:
            assert receive(consumer, 1, 0.1) == []
        broker.publish([Outgoing(resume, b"1", "a@1"), Outgoing(resume, b"2", "a@1")])
        got = [body.body for consumer in consumers for body in collect(consumer, 1)]
        assert sorted(got) == [b"1", b"2"]

    def test_what_nobody_had_the_key_of_is_received_by_the_first_that_has(
        self, broker: Broker, topology: Topology
    ) -> None:
        resume, wait = names.resume(topology.namespace), names.delay(topology.namespace, SHORT)
        broker.publish([Outgoing(resume, b"now", "a@1"), Outgoing(wait, b"later", "a@1")])
        got = drain(broker.consumer([resume], 10, ["a@1"]), 2)
        assert sorted(delivery.body for delivery in got) == [b"later", b"now"]

    @pytest.mark.parametrize("flow", ["with space/and.dot#*", "käufe→", "x" * 400], ids=["signs", "letters", "long"])
    def test_any_name_of_a_flow_makes_a_key(self, broker: Broker, topology: Topology, flow: str) -> None:
        resume = names.resume(topology.namespace)
        consumer = broker.consumer([resume], 10, [names.key(flow, 1)])
        broker.publish([Outgoing(resume, b"found", names.key(flow, 1))])
        assert [delivery.body for delivery in drain(consumer, 1)] == [b"found"]

    def test_messages_are_counted_whatever_their_keys(self, broker: Broker, topology: Topology) -> None:
        resume = names.resume(topology.namespace)
        broker.publish([Outgoing(resume, b"x", key) for key in ("a@1", "b@1", "")])
        assert eventually(lambda: {one.name: one.messages for one in broker.status(topology)}[resume] == 3)


class TestDelay:
    def test_a_delayed_message_turns_up_in_resume_not_before_its_wait(self, broker: Broker, topology: Topology) -> None:
        consumer = broker.consumer([names.resume(topology.namespace)], 10)
        receive(consumer, 1, 0.1)
        started = time.monotonic()
        broker.publish([waiting(topology, SHORT, b"%d" % number) for number in range(50)])
        published = time.monotonic()
        got = consumer.receive(10, 60)
        assert time.monotonic() - started >= SHORT.total_seconds()
        assert time.monotonic() - published < SHORT.total_seconds() + 60
        consumer.ack(got)
        got += drain(consumer, 50 - len(got))
        assert sorted(int(delivery.body) for delivery in got) == list(range(50))
        assert {delivery.queue for delivery in got} == {names.resume(topology.namespace)}

    def test_a_short_wait_is_not_stuck_behind_a_long_one(self, broker: Broker, harness: Harness) -> None:
        longer = timedelta(minutes=10)  # so that the machine may stand still between the two
        topology = harness.topology(SHORT, longer)
        broker.declare(topology)
        broker.publish([waiting(topology, longer, b"long")])
        broker.publish([waiting(topology, SHORT, b"short")])
        got = drain(broker.consumer([names.resume(topology.namespace)], 10), 1)
        assert [delivery.body for delivery in got] == [b"short"]

    def test_a_message_can_be_delayed_again_and_again(self, broker: Broker, topology: Topology) -> None:
        consumer = broker.consumer([names.resume(topology.namespace)], 10)
        for round_ in range(3):
            broker.publish([waiting(topology, SHORT, b"%d" % round_)])
            assert [delivery.body for delivery in drain(consumer, 1)] == [b"%d" % round_]

    def test_a_wait_of_nothing_gets_no_queue(self, broker: Broker, harness: Harness) -> None:
        with pytest.raises(ValueError, match="wait"):
            broker.declare(Topology(harness.topology().namespace, frozenset({timedelta(0)})))


class TestTopology:
    def test_to_declare_twice_changes_nothing(self, broker: Broker, topology: Topology) -> None:
        broker.publish(faults(topology, b"kept"))
        broker.declare(topology)
        assert drain(broker.consumer([names.faults(topology.namespace)], 1), 1)[0].body == b"kept"

    def test_missing_queues_are_said_to_be_missing_and_are_not_made(self, broker: Broker, harness: Harness) -> None:
        missing = harness.topology()
        for _ in range(2):
            found = broker.status(missing)
            assert {status.name for status in found} >= {*missing.work_queues, *missing.delay_queues}
            assert not any(status.exists for status in found)
            assert all(status.problem for status in found)
        with pytest.raises(Unroutable):
            broker.publish(faults(missing, b"nowhere"))

    def test_existing_queues_tell_their_messages(self, broker: Broker, topology: Topology) -> None:
        broker.publish(numbered(topology, 4))

        def look() -> bool:
            found = {status.name: status for status in broker.status(topology)}
            assert all(status.exists and not status.problem for status in found.values())
            assert found[names.resume(topology.namespace)].messages == 0
            return found[names.faults(topology.namespace)].messages == 4

        eventually(look)

    def test_namespaces_do_not_meet(self, harness: Harness, broker: Broker, topology: Topology) -> None:
        other = harness.topology()
        broker.declare(other)
        broker.publish([*faults(other, b"theirs"), *faults(topology, b"ours")])
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        assert [delivery.body for delivery in drain(consumer, 1)] == [b"ours"]
        assert consumer.receive(10, 0.3) == []


class TestVersion:
    def test_it_tells_what_answers_there(self, broker: Broker) -> None:
        assert broker.version().lower().startswith(("rabbitmq ", "embedded"))


class TestLiveEvents:
    @pytest.mark.parametrize("harness", LIVE_KINDS, indirect=True)
    def test_a_subscriber_hears_what_is_sent_after_it_subscribed(
        self, harness: Harness, broker: Broker, topology: Topology
    ) -> None:
        ears = [subscribed(broker, topology), subscribed(harness.broker(), topology)]
        for number in range(10):
            broker.broadcast(topology.namespace, b"%d" % number)
        for ear in ears:
            assert [ear.receive(10) for _ in range(10)] == [b"%d" % number for number in range(10)]
            assert ear.receive(0.1) is None

    @pytest.mark.parametrize("harness", LIVE_KINDS, indirect=True)
    def test_what_nobody_hears_is_lost_silently(self, broker: Broker, topology: Topology) -> None:
        broker.broadcast(topology.namespace, b"lost")
        other = subscribed(broker, topology)
        broker.broadcast(topology.namespace, b"after")
        # They are sent in order: whoever listens from here on listens when the first is gone.
        assert any(other.receive(10) == b"after" for _ in range(2))
        ear = subscribed(broker, topology)
        broker.broadcast(topology.namespace, b"heard")
        assert ear.receive(10) == b"heard"

    @pytest.mark.parametrize("harness", LIVE_KINDS, indirect=True)
    def test_a_slow_subscriber_does_not_block_the_sender(self, broker: Broker, topology: Topology) -> None:
        ear = subscribed(broker, topology)
        started = time.monotonic()
        for number in range(5000):
            broker.broadcast(topology.namespace, b"%d" % number)
        assert time.monotonic() - started < 60
        assert ear.receive(60) is not None

    @pytest.mark.parametrize("harness", LIVE_KINDS, indirect=True)
    def test_an_event_that_is_too_large_is_dropped(self, broker: Broker, topology: Topology) -> None:
        ear = subscribed(broker, topology)
        broker.broadcast(topology.namespace, b"x" * 1_000_000)
        broker.broadcast(topology.namespace, b"after")
        assert ear.receive(10) == b"after"

    @pytest.mark.parametrize("harness", LIVE_KINDS, indirect=True)
    def test_namespaces_do_not_hear_each_other(self, harness: Harness, broker: Broker, topology: Topology) -> None:
        other = harness.topology()
        broker.declare(other)
        ear = subscribed(broker, topology)
        broker.broadcast(other.namespace, b"theirs")
        broker.broadcast(topology.namespace, b"ours")
        assert ear.receive(10) == b"ours"
        assert ear.receive(0.1) is None

    @pytest.mark.parametrize("harness", LIVE_KINDS, indirect=True)
    def test_a_closed_subscription_hears_nothing(self, broker: Broker, topology: Topology) -> None:
        ear = subscribed(broker, topology)
        ear.close()
        ear.close()
        broker.broadcast(topology.namespace, b"late")
        assert ear.receive(0.2) is None

    def test_a_broker_says_whether_it_carries_any(self, harness: Harness, broker: Broker, topology: Topology) -> None:
        assert broker.has_live_events == (harness.kind in LIVE_KINDS)
        broker.broadcast(topology.namespace, b"lost")
        assert (broker.subscribe(topology.namespace) is not None) == broker.has_live_events


class TestClose:
    def test_everything_may_be_closed_twice(self, harness: Harness, topology: Topology) -> None:
        broker = harness.broker()
        consumer = broker.consumer([names.faults(topology.namespace)], 1)
        receive(consumer, 1, 0.1)
        broker.publish(faults(topology, b"x"))
        broker.broadcast(topology.namespace, b"x")
        consumer.close()
        consumer.close()
        broker.close()
        broker.close()

    def test_a_closed_broker_gives_back_what_its_consumers_held(
        self, harness: Harness, broker: Broker, topology: Topology
    ) -> None:
        leaving = harness.broker()
        leaving.publish(faults(topology, b"held"))
        collect(leaving.consumer([names.faults(topology.namespace)], 1), 1)
        leaving.close()
        assert drain(broker.consumer([names.faults(topology.namespace)], 1), 1)[0].redelivered

    def test_a_closed_broker_publishes_no_more(self, harness: Harness, topology: Topology) -> None:
        broker = harness.broker()
        broker.publish(faults(topology, b"before"))
        broker.close()
        with pytest.raises(BrokerError):
            broker.publish(faults(topology, b"after"))
        broker.broadcast(topology.namespace, b"after")

    def test_an_unused_broker_connects_to_nothing_and_closes(self, harness: Harness) -> None:
        harness.broker().close()


class TestServerComesAndGoes:
    @pytest.mark.parametrize("end", ["stop", "kill"])
    def test_what_was_confirmed_survives(self, server: ServerHarness, end: str) -> None:
        broker, topology = server.broker(), server.topology()
        broker.declare(topology)
        server.settle()
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        broker.publish([*numbered(topology, 500), waiting(topology, LONG, b"delayed")])
        held = collect(consumer, 5)
        getattr(server, end)()
        server.start()

        consumer.ack(held)  # void where they belong to a connection; none but these may be missing below
        wanted = {b"%d" % number for number in range(500)} - {delivery.body for delivery in held}
        _receive_all(consumer, wanted)
        resumed = broker.consumer([names.resume(topology.namespace)], 10)
        assert [delivery.body for delivery in drain(resumed, 1)] == [b"delayed"]
        broker.publish(faults(topology, b"again"))
        _receive_all(consumer, {b"again"})

    def test_while_it_is_away_every_call_ends_and_afterwards_all_is_well(self, server: ServerHarness) -> None:
        broker, topology = server.broker(timeout=2), server.topology()
        broker.declare(topology)
        server.settle()
        broker.publish(faults(topology, b"before"))
        consumer = broker.consumer([names.faults(topology.namespace)], 10)
        drain(consumer, 1)
        ear = subscribed(broker, topology)
        server.kill()

        for call in (
            lambda: broker.publish(faults(topology, b"lost")),
            lambda: consumer.receive(10, 1),
            lambda: broker.status(topology),
            lambda: broker.declare(topology),
        ):
            started = time.monotonic()
            with pytest.raises(BrokerError):
                call()
            assert time.monotonic() - started < 60  # bounded; a machine may stand still
        started = time.monotonic()
        broker.broadcast(topology.namespace, b"lost")
        assert ear.receive(0.5) is None
        assert time.monotonic() - started < 60

        server.start()
        eventually(lambda: _published(broker, faults(topology, b"after")))
        _receive_all(consumer, {b"after"})

        def heard() -> bool:
            broker.broadcast(topology.namespace, b"news")
            return ear.receive(1) == b"news"

        eventually(heard)


def _published(broker: Broker, messages: list[Outgoing]) -> bool:
    try:
        broker.publish(messages)
    except BrokerError:
        return False
    return True


def _receive_all(consumer: Consumer, wanted: set[bytes]) -> None:
    """Receive all of these, whatever else comes, comes twice, or fails in between."""
    missing = set(wanted)

    def nothing_is_missing() -> bool:
        try:
            got = consumer.receive(100, 1)
        except BrokerError:
            return False
        consumer.ack(got)
        missing.difference_update(delivery.body for delivery in got)
        return not missing

    eventually(nothing_is_missing, within=60)
