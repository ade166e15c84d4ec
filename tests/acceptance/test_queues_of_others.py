"""Somebody who may declare queues at the broker has taken aft's names: dispatchers start, and runs end all the same."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import aft
from aft import names
from aft.telemetry import Event, ServiceFailed, ServiceRecovered
from tests.acceptance import theatre
from tests.acceptance.theatre import listen
from tests.setups import Setup, eventually
from tests.world import Busy, trouble

pytestmark = pytest.mark.parametrize("setup", ["postgresql+rabbitmq"], indirect=True)

WAIT = timedelta(milliseconds=50)


def a_locked_queue(channel: BlockingChannel, namespace: str) -> str:
    channel.queue_declare(name := names.faults(namespace), exclusive=True)
    return name


def a_locked_queue_of_wake_ups(channel: BlockingChannel, namespace: str) -> str:
    channel.queue_declare(name := names.resume(namespace), exclusive=True)
    return name


def a_queue_with_another_wait(channel: BlockingChannel, namespace: str) -> str:
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-message-ttl": 10**9}
    channel.queue_declare(name := names.delay(namespace, WAIT), durable=True, arguments=arguments)
    return name


def a_queue_of_another_type(channel: BlockingChannel, namespace: str) -> str:
    channel.queue_declare(name := names.undeliverable(namespace), durable=True)
    return name


def an_exchange_of_another_type(channel: BlockingChannel, namespace: str) -> str:
    channel.exchange_declare(name := names.delay(namespace, WAIT), "direct", durable=True)
    return name


def an_exchange_of_live_events(channel: BlockingChannel, namespace: str) -> str:
    channel.exchange_declare(name := names.live_events(namespace), "topic")
    return name


QUEUES = [a_locked_queue, a_locked_queue_of_wake_ups, a_queue_with_another_wait, a_queue_of_another_type]
EXCHANGES = [an_exchange_of_another_type, an_exchange_of_live_events]


@contextmanager
def other_user(setup: Setup) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(setup.broker)) as connection:
        yield connection.channel()


def failures(events: list[Event]) -> list[str]:
    return [event.why for event in events if isinstance(event, ServiceFailed) and event.service == "queues"]


def recovered(events: list[Event]) -> bool:
    return any(isinstance(event, ServiceRecovered) and event.service == "queues" for event in events)


@pytest.mark.parametrize("take", [*QUEUES, *EXCHANGES])
def test_a_dispatcher_starts_and_says_which_queue_is_not_its_own_until_that_is_mended(setup: Setup, take: Any) -> None:
    app, show = setup.app(grace="500ms"), secrets.token_hex(4)
    events = listen(app)
    trouble[show, "tickets"] = [Busy("soon")]
    with other_user(setup) as channel:
        name = take(channel, setup.namespace)
        with app.dispatcher():
            assert app.submit(theatre.evening, show).result(60) == [10, 10, 10]
            why = eventually(lambda: failures(events))[0]
            assert repr(name) in why
            assert "runs go on by their timers" in why
            (channel.exchange_delete if take in EXCHANGES else channel.queue_delete)(name)
            eventually(lambda: recovered(events))
            assert all(one.exists and not one.problem for one in app.broker.status(app.delays().topology()))


def test_where_every_queue_is_of_another_type_the_setting_is_wrong_and_nothing_is_declared(setup: Setup) -> None:
    with setup.app().dispatcher():
        pass
    wrong = setup.app(queue_type="classic", levels="70ms")
    with pytest.raises(aft.BrokerError, match="AFT_QUEUE_TYPE=quorum"):
        wrong.dispatcher().start()
    new = names.delay(setup.namespace, timedelta(milliseconds=70))
    assert not next(one for one in wrong.broker.status(wrong.delays().topology()) if one.name == new).exists
