"""RabbitMQ as aft's broker: publisher, consumers, express and topology behind the port."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from aft import names
from aft.brokers.base import Consumer, Outgoing, QueueStatus, Subscription, Topology
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.consumer import QueueSource, RabbitConsumer
from aft.brokers.rabbitmq.express import ExpressSender, RabbitSubscription
from aft.brokers.rabbitmq.publisher import Publisher
from aft.brokers.rabbitmq.topology import QueueType, Surveyor
from aft.errors import BrokerError, ConfigError


class _Closable(Protocol):
    def close(self) -> None: ...


class RabbitBroker:
    """A RabbitMQ server, 3.10 or later, without plugins. Keeps every guarantee of :mod:`aft.brokers.base`.

    Thread-safe; making one connects to nothing. Publishing, each consumer and express have connections of
    their own.

    ``queue_type`` is ``"quorum"``, or ``"classic"`` for durable classic queues: those lose a message that is
    being forwarded out of a delay queue when the server crashes at that moment, and never put a message
    aside. ``passive`` declares nothing and only checks that it is there, for roles without the permission.
    ``confirm_window`` is how many messages may be unconfirmed at a time. ``timeout`` is how many seconds
    connecting, an answer or the next confirm may take.
    """

    def __init__(
        self,
        url: str,
        *,
        queue_type: QueueType = "quorum",
        passive: bool = False,
        confirm_window: int = 1000,
        timeout: float = 30.0,
    ) -> None:
        if queue_type not in ("quorum", "classic"):
            raise ConfigError(f"{queue_type!r} is not a queue type; use 'quorum' or 'classic'")
        if confirm_window < 1 or timeout <= 0:
            raise ConfigError(f"confirm_window ({confirm_window!r}) and timeout ({timeout!r}) must be positive")
        self._address = Address.parse(url)
        self._timeout = timeout
        self._passive = passive
        self._publisher = Publisher(self._address, timeout, confirm_window)
        self._express = ExpressSender(self._address, timeout, passive=passive)
        self._surveyor = Surveyor(self._address, timeout, queue_type, passive=passive)
        self._lock = threading.Lock()
        #: Consumers and subscriptions until they are closed, also those that nobody else refers to any more:
        #: their connections would go on holding messages.
        self._children: set[_Closable] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """Where it is, without the password."""
        return str(self._address)

    @property
    def exposure(self) -> str | None:
        """How others could read what is said to it; None on this machine, and where its certificate is checked."""
        return self._address.exposure

    def version(self) -> str:
        """Tell the server's name and version; connects."""
        return self._surveyor.version()

    def declare(self, topology: Topology) -> None:
        """Make the queues exist; ValueError for a wait that no queue can keep. Idempotent."""
        self._surveyor.declare(topology)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Store the messages, all confirmed on return. Raises Unroutable if a queue does not exist."""
        self._publisher.publish(messages)

    def consumer(self, queues: Sequence[str], prefetch: int, keys: Collection[str] = ()) -> Consumer:
        """Return a consumer; it connects with its first ``receive``."""
        self._check_open()
        pools = partial(self._pools, queues, frozenset(keys))
        looks = self._passive and bool(keys)
        forget = self._children.discard
        consumer = RabbitConsumer(self._address, self._timeout, queues, prefetch, forget, pools, looks)
        self._adopt(consumer)
        return consumer

    def _pools(self, queues: Sequence[str], keys: frozenset[str]) -> list[QueueSource]:
        """Return the queues of the pool with these keys; one that cannot be declared only if it is there."""
        if not keys:
            return []
        found = {names.pool(queue, keys): queue for queue in queues}
        if self._passive:
            return [QueueSource(pool, queue, None, keys) for pool, queue in found.items() if self._is_there(pool)]
        declare = self._surveyor.declare_pool
        return [QueueSource(pool, queue, partial(declare, queue, keys), keys) for pool, queue in found.items()]

    def _is_there(self, queue: str) -> bool:
        try:
            return self._surveyor.exists(queue)
        except BrokerError:
            return False  # the broker is away, which the consumer's own connection finds out, too

    def status(self, topology: Topology) -> list[QueueStatus]:
        """Look at each queue of the topology, changing nothing."""
        return self._surveyor.status(topology)

    def prune(self, namespace: str) -> None:
        """Nothing is left: what nobody has the key of goes to everybody, and a queue without consumers expires."""

    def express(self, namespace: str, body: bytes) -> None:
        """Send to whoever listens now, from a thread of its own; never blocks, never raises, may lose."""
        self._express.send(namespace, body)

    def is_heard(self, namespace: str) -> bool:
        """Tell whether somebody may be listening: False for a moment after the broker knew of nobody."""
        return self._express.is_heard(namespace)

    def subscribe(self, namespace: str) -> Subscription:
        """Listen to the express messages of a namespace; all sent after the return are heard."""
        self._check_open()
        subscription = RabbitSubscription(
            self._address, self._timeout, namespace, self._children.discard, passive=self._passive
        )
        self._adopt(subscription)
        return subscription

    def close(self) -> None:
        """Let go of every connection, of consumers and subscriptions too. Harmless twice."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for each in (*children, self._express, self._publisher):
            each.close()

    def _adopt(self, child: _Closable) -> None:
        with self._lock:
            self._children.add(child)
        if self._closed:  # closed while it was made
            child.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerError(f"this broker ({self.url}) was closed; make a new one")
