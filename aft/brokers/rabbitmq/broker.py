"""RabbitMQ as aft's broker: publisher, consumers, live events and topology behind the port."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from aft import names
from aft.brokers.base import Consumer, Outgoing, QueueStatus, Subscription, Topology
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.consumer import QueueSource, RabbitConsumer
from aft.brokers.rabbitmq.live_events import RabbitEventSender, RabbitSubscription
from aft.brokers.rabbitmq.publisher import Publisher
from aft.brokers.rabbitmq.topology import QueueType, TopologyClient
from aft.errors import BrokerError, ConfigError


class _Closable(Protocol):
    def close(self) -> None: ...


class RabbitBroker:
    """A RabbitMQ server, 3.10 or later, without plugins. Keeps every guarantee of :mod:`aft.brokers.base`.

    Thread-safe; making one connects to nothing. Publishing, each consumer and live events have their own connections.

    ``queue_type`` is ``"quorum"``, or ``"classic"`` for durable classic queues: those lose a message if the server
    crashes while it is forwarded out of a delay queue, and never move a poison message to the undeliverable queue.
    ``passive`` declares nothing and only checks that queues exist, for roles without the permission.
    ``confirm_window`` is how many messages may be unconfirmed at a time. ``timeout`` is how many seconds connecting, an
    answer or the next confirm may take.
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
        self._events = RabbitEventSender(self._address, timeout, passive=passive)
        self._topology_client = TopologyClient(self._address, timeout, queue_type, passive=passive)
        self._lock = threading.Lock()
        #: Consumers and subscriptions until they are closed, also those that are not referenced elsewhere: their
        #: connections would go on holding messages.
        self._children: set[_Closable] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The broker's URL, without the password."""
        return str(self._address)

    @property
    def exposure(self) -> str | None:
        """How others could read the traffic; None on this machine, and where the certificate is checked."""
        return self._address.exposure

    def version(self) -> str:
        """Return the server's name and version; connects."""
        return self._topology_client.version()

    def declare(self, topology: Topology) -> None:
        """Make the queues exist; ValueError for a wait that no queue can keep. Idempotent."""
        self._topology_client.declare(topology)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Store the messages, all confirmed on return. Raises Unroutable if a queue does not exist."""
        self._publisher.publish(messages)

    def consumer(self, queues: Sequence[str], prefetch: int, keys: Collection[str] = ()) -> Consumer:
        """Return a consumer; it connects with its first ``receive``."""
        self._check_open()
        pools = partial(self._pools, queues, frozenset(keys))
        polls_pools = self._passive and bool(keys)
        forget = self._children.discard
        consumer = RabbitConsumer(self._address, self._timeout, queues, prefetch, forget, pools, polls_pools)
        self._adopt(consumer)
        return consumer

    def _pools(self, queues: Sequence[str], keys: frozenset[str]) -> list[QueueSource]:
        """Return the queues of the pool with these keys; a passive role gets only those that exist."""
        if not keys:
            return []
        found = {names.pool(queue, keys): queue for queue in queues}
        if self._passive:
            return [QueueSource(pool, queue, None, keys) for pool, queue in found.items() if self._is_there(pool)]
        declare = self._topology_client.declare_pool
        return [QueueSource(pool, queue, partial(declare, queue, keys), keys) for pool, queue in found.items()]

    def _is_there(self, queue: str) -> bool:
        try:
            return self._topology_client.exists(queue)
        except BrokerError:
            return False  # the broker is away, which the consumer's own connection finds out, too

    def status(self, topology: Topology) -> list[QueueStatus]:
        """Inspect each queue of the topology, changing nothing."""
        return self._topology_client.status(topology)

    def prune(self, namespace: str) -> None:
        """Do nothing: messages without a pool for their key go to the shared queue, and unused pool queues expire."""

    @property
    def has_live_events(self) -> bool:
        """Whether it carries live events: always."""
        return True

    def broadcast(self, namespace: str, body: bytes) -> None:
        """Send a live event to the present subscriptions; never raises, may lose it."""
        self._events.send(namespace, body)

    def subscribe(self, namespace: str) -> Subscription:
        """Receive the live events of a namespace, from the return of this call on."""
        self._check_open()
        subscription = RabbitSubscription(
            self._address, self._timeout, namespace, self._children.discard, passive=self._passive
        )
        self._adopt(subscription)
        return subscription

    def close(self) -> None:
        """Close every connection, those of consumers and subscriptions too. Idempotent."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for each in (*children, self._events, self._publisher):
            each.close()

    def _adopt(self, child: _Closable) -> None:
        with self._lock:
            self._children.add(child)
        if self._closed:  # closed while it was made
            child.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerError(f"this broker ({self.url}) was closed; make a new one")
