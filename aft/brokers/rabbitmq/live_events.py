"""Live events on RabbitMQ: to the present subscriptions, in memory only, dropped rather than waited for.

A fanout exchange for each namespace, and an exclusive queue for each subscription. Without subscriptions the broker
drops what it gets.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from pika import BasicProperties, DeliveryMode, spec
from pika.channel import Channel
from pika.exchange_type import ExchangeType

from aft import names
from aft.brokers.rabbitmq import explain
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.link import Link, Request, Work
from aft.brokers.rabbitmq.reconnect import Reconnector
from aft.errors import BrokerError

#: The most events that wait to be received, before the oldest are dropped.
MOST_WAITING = 1000
#: Bytes of an event; aft's have a few thousand. Others may send larger ones, which would fill the memory.
MOST_BYTES = 16_384
#: Seconds that an event waits for a connection before it is dropped.
PATIENCE = 5.0

_TRANSIENT = BasicProperties(delivery_mode=DeliveryMode.Transient.value)  # type: ignore[no-untyped-call]


def declare_exchange(namespace: str, *, passive: bool) -> Request:
    """Return the request that declares the exchange of a namespace's events.

    It is durable, its messages are not: so it exists after a restart for roles that may not declare it.
    """
    return lambda channel, reply: channel.exchange_declare(
        names.live_events(namespace), ExchangeType.fanout.value, passive=passive, durable=True, callback=reply
    )


class RabbitEventSender:
    """Sends events on a connection of its own, made by the first one. Thread-safe; never raises."""

    def __init__(self, address: Address, timeout: float, *, passive: bool) -> None:
        self._lock = threading.Lock()
        self._reconnector = Reconnector(lambda: _SenderLink(address, timeout, passive=passive))

    def send(self, namespace: str, body: bytes) -> None:
        """Hand an event to the connection; dropped if there is none within ``PATIENCE`` seconds."""
        try:
            with self._lock:
                self._reconnector.session(PATIENCE, patient=False).send(namespace, body)
        except (BrokerError, explain.ChannelRefused):
            pass  # lost; later ones may find a connection

    def close(self) -> None:
        """Close the connection after what was handed to it is sent. Idempotent."""
        self._reconnector.close()


class _SenderLink:
    """A connection for sending events."""

    def __init__(self, address: Address, timeout: float, *, passive: bool) -> None:
        self._passive = passive
        self._declared: set[str] = set()
        self.link = Link(address, timeout, name="aft-events")

    def send(self, namespace: str, body: bytes) -> None:
        """Post an event to the connection's thread. Raises BrokerError, ChannelRefused."""
        if namespace not in self._declared:
            self.link.request(declare_exchange(namespace, passive=self._passive))
            self._declared.add(namespace)
        if not self.link.blocked:  # else the broker does not read: they would pile up in this process
            self.link.post(partial(self._publish, names.live_events(namespace), body))

    def _publish(self, exchange: str, body: bytes) -> None:
        if not self.link.lost:
            self.link.channel.basic_publish(exchange, "", body, _TRANSIENT)


class RabbitSubscription:
    """Receives a namespace's events that are sent after it was made; belongs to one thread.

    It reconnects by itself; events meanwhile are lost. When the reader is slow, the oldest events are dropped.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        namespace: str,
        on_close: Callable[[RabbitSubscription], None],
        *,
        passive: bool,
    ) -> None:
        self._on_close = on_close
        self._reconnector = Reconnector(lambda: _ReceiverLink(address, timeout, namespace, passive=passive))
        try:
            self._reconnector.session(timeout, patient=False)
        except BrokerError:
            self._reconnector.close()
            raise

    def receive(self, timeout: float) -> bytes | None:
        """Return the next event, or None after ``timeout`` seconds, also when the broker is away."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                receiver = self._reconnector.session(deadline - time.monotonic())
            except BrokerError:
                return None
            body = receiver.take(deadline - time.monotonic())
            if body is not None or not receiver.link.lost:
                return body

    def close(self) -> None:
        """End the subscription. Idempotent."""
        self._reconnector.close()
        self._on_close(self)


class _ReceiverLink:
    """One connection's exclusive queue, bound to the exchange before the link is ready."""

    def __init__(self, address: Address, timeout: float, namespace: str, *, passive: bool) -> None:
        self._namespace = namespace
        self._passive = passive
        self._arrived = threading.Condition()
        self._buffer: deque[bytes] = deque(maxlen=MOST_WAITING)
        self.link = Link(address, timeout, name="aft-subscription", setup=self._prepare, on_lost=self._wake)

    def take(self, timeout: float) -> bytes | None:
        """Wait for an event; None when there is none in time, or the link is lost."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._buffer or self.link.lost, max(0.0, timeout))
            return self._buffer.popleft() if self._buffer else None

    def _prepare(self, channel: Channel, ready: Work) -> None:
        """Bind an exclusive queue; pika sends these one after another, and the last answer calls ``ready``."""
        exchange = names.live_events(self._namespace)
        mine = f"{exchange}.{uuid4().hex}"
        declare_exchange(self._namespace, passive=self._passive)(channel, lambda _: None)
        # Exclusive, because brokers from 4.3 refuse other transient queues.
        channel.queue_declare(
            mine,
            exclusive=True,
            auto_delete=True,
            arguments={"x-queue-type": "classic", "x-max-length": MOST_WAITING},
            callback=lambda _: None,
        )
        channel.queue_bind(mine, exchange, callback=lambda _: None)
        channel.basic_consume(mine, self._deliver, auto_ack=True, callback=lambda _: ready())

    def _deliver(self, _channel: Channel, _method: spec.Basic.Deliver, _props: BasicProperties, body: bytes) -> None:
        if len(body) > MOST_BYTES:
            return
        with self._arrived:
            self._buffer.append(body)
            self._arrived.notify()

    def _wake(self) -> None:
        with self._arrived:
            self._arrived.notify()
