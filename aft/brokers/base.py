"""The broker port: the interface of a message broker, and the guarantees that aft relies on.

Guarantees that every implementation gives, and ``tests/contract`` checks on each:

- **Durable.** When ``publish`` returns, every message is on disk and survives the broker's restart. A message
  that could not be stored or routed makes ``publish`` raise; then any part of the batch may have arrived.
- **At least once.** A delivery that was not acknowledged comes back when its consumer is closed or dies.
  Duplicates happen; consumers look at the row, never at the message alone.
- **Delayed.** A message published to a delay queue appears in the resume queue when its wait is over, not before.
- **Routed.** A message with a key reaches a consumer that has this key, if there is one or was one recently. If several
  groups of consumers with different sets of keys have it, each group may get a copy. If none has it, it is kept for any
  consumer of its queue, or for at least an hour until one with its key comes; ``publish`` does not raise for it.
- **Back-pressure.** A consumer holds at most ``prefetch`` unacknowledged deliveries.
- **Bounded.** Every call ends: with its result, or with a :class:`~aft.errors.BrokerError`, within its time limit.
- **Reconnecting.** After a connection was lost, the next call reconnects. Deliveries received before may be void: then
  acknowledging them does nothing, and they are redelivered.

A broker and its publisher are thread-safe. A consumer belongs to one thread. There is no negative
acknowledgement: nothing in aft is retried by putting a message back.

*Live events* are the other mode: in memory only, at most once. They may be lost, so nothing may depend on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from aft import names
from aft.errors import BrokerError


class QueuesDiffer(BrokerError):
    """Raised when queues or exchanges have another owner: another user has declared them, or uses them exclusively.

    All others exist. The message tells how to make those in ``names`` aft's again.
    """

    def __init__(self, message: str, names: Collection[str]) -> None:
        super().__init__(message)
        self.names = frozenset(names)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish: body, queue, and the key that its consumer must have; without a key, any consumer."""

    queue: str
    body: bytes = field(repr=False)
    key: str = ""

    @property
    def address(self) -> str:
        """Queue and key in one text."""
        return names.address(self.queue, self.key)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received message; the implementation acknowledges it by its ``tag``."""

    queue: str
    body: bytes = field(repr=False)
    redelivered: bool
    tag: object = field(compare=False, default=None)
    #: Bytes of the message, if ``body`` is only its beginning; None: it is whole.
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The queues of one namespace: faults, resume, compensate, undeliverable, and one for each declared wait.

    ``pools`` are sets of keys, one for each group of workers with the same flows; a broker that keeps a queue for each
    of them shows it. Consumers declare theirs themselves.
    """

    namespace: str
    waits: frozenset[timedelta] = frozenset()
    pools: frozenset[frozenset[str]] = frozenset()

    @property
    def work_queues(self) -> tuple[str, ...]:
        """The queues that are consumed."""
        return (
            names.faults(self.namespace),
            names.resume(self.namespace),
            names.compensate(self.namespace),
        )

    @property
    def routed_queues(self) -> tuple[str, ...]:
        """The work queues whose messages have keys."""
        return (names.resume(self.namespace), names.compensate(self.namespace))

    @property
    def pool_queues(self) -> dict[str, frozenset[str]]:
        """The queues of the pools, with their keys."""
        pools = sorted(self.pools, key=sorted)
        return {names.pool(queue, keys): keys for queue in self.routed_queues for keys in pools if keys}

    @property
    def delay_queues(self) -> dict[str, timedelta]:
        """The queues that are not consumed: name and wait."""
        return {names.delay(self.namespace, wait): wait for wait in sorted(self.waits)}


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The state of a queue; ``problem`` says what is wrong with it and what to do, or is empty."""

    name: str
    exists: bool
    messages: int = 0
    consumers: int = 0
    problem: str = ""


class Consumer(Protocol):
    """Receives from one or more queues; belongs to one thread."""

    def receive(self, limit: int, timeout: float) -> list[Delivery]:
        """Return as soon as there is at least one delivery, with up to ``limit``; ``[]`` after ``timeout`` seconds.

        Raises Unroutable if a queue does not exist: a caller with the permission declares it and receives again.
        """
        ...

    def interrupt(self) -> None:
        """Make the ``receive`` that waits, or else the next one, return without waiting. Thread-safe."""
        ...

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge deliveries; they are not redelivered, unless the connection was lost meanwhile."""
        ...

    def close(self) -> None:
        """Stop receiving; what was not acknowledged goes back to its queue. Idempotent."""
        ...


class Subscription(Protocol):
    """Receives live events that are broadcast after it was made; belongs to one thread."""

    def receive(self, timeout: float) -> bytes | None:
        """Return the next event, or None after ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """End the subscription. Idempotent."""
        ...


class Broker(Protocol):
    """A message broker; thread-safe. Making one connects to nothing."""

    @property
    def url(self) -> str:
        """The broker's URL, for people; without its password."""
        ...

    @property
    def exposure(self) -> str | None:
        """How others could read the traffic to it; None if they cannot."""
        ...

    def version(self) -> str:
        """Return the server's name and version, for people: ``RabbitMQ 3.13.1``. Connects; raises BrokerError."""
        ...

    def declare(self, topology: Topology) -> None:
        """Make the queues exist. Idempotent; raises BrokerError when one exists with other arguments.

        That is QueuesDiffer if it is no mistake of this process's settings, and all others exist.
        """
        ...

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Store the messages, all confirmed on return. Raises Unroutable if a queue does not exist."""
        ...

    def consumer(self, queues: Sequence[str], prefetch: int, keys: Collection[str] = ()) -> Consumer:
        """Start to receive from these queues. Raises Unroutable, here or at ``receive``, if one does not exist.

        With ``keys`` it receives messages that have one of them, besides those that no consumer has the key of; all
        of ``queues`` must be routed ones then.
        """
        ...

    def status(self, topology: Topology) -> list[QueueStatus]:
        """Inspect each queue of the topology, changing nothing."""
        ...

    def prune(self, namespace: str) -> None:
        """Delete wake-ups that no consumer with their key has taken for an hour: timers wake their runs instead."""
        ...

    @property
    def has_live_events(self) -> bool:
        """Whether it carries live events; if not, only the rows say what has happened."""
        ...

    def broadcast(self, namespace: str, body: bytes) -> None:
        """Send a live event, ASCII text of at most 7,999 bytes, to the present subscriptions.

        It may be lost, and the first one takes as long as connecting. Never raises.
        """
        ...

    def subscribe(self, namespace: str) -> Subscription | None:
        """Receive the live events of a namespace; None if this broker carries none."""
        ...

    def close(self) -> None:
        """Close every connection. Idempotent."""
        ...
