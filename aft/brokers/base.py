"""The port: what aft asks of a message broker, and what it may rely on.

Guarantees that every implementation gives, and ``tests/contract`` checks on each:

- **Durable.** When ``publish`` returns, every message is on disk and survives the broker's restart. A message
  that could not be stored or routed makes ``publish`` raise; then any part of the batch may have arrived.
- **At least once.** A delivery that was not acknowledged comes back when its consumer is closed or dies.
  Duplicates happen; consumers look at the row, never at the message alone.
- **Delayed.** A message published to a delay queue appears in the resume queue when its wait is over, not before.
- **Routed.** A message with a key reaches a consumer that has this key, if there is one or was one a moment ago. If
  several groups of consumers with different sets of keys have it, each group may get a copy. If none has it, it is kept
  for any consumer of its queue, or for an hour at the least until one with its key comes; it is no error of its
  publisher.
- **Back-pressure.** A consumer holds at most ``prefetch`` unacknowledged deliveries.
- **Bounded.** Every call ends: with its result, or with a :class:`~aft.errors.BrokerError`, within its time limit.
- **Reconnecting.** After a connection was lost, the next call connects anew. Deliveries received before may be void:
  then acknowledging them does nothing, and they come again.

A broker and its publisher are thread-safe. A consumer belongs to one thread. There is no negative
acknowledgement: nothing in aft is retried by putting a message back.

*Express* is the other mode: memory only, at most once, never blocks the sender; for live events, which may be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from aft import names


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A body, the queue it goes to, and the key that its consumer must have; without a key, any consumer's."""

    queue: str
    body: bytes
    key: str = ""

    @property
    def address(self) -> str:
        """Queue and key in one text."""
        return names.address(self.queue, self.key)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A body that was received; ``tag`` is the implementation's, to acknowledge it by."""

    queue: str
    body: bytes
    redelivered: bool
    tag: object = field(compare=False, default=None)


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
        """The queues that somebody consumes."""
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
        """The queues that nobody consumes: name and wait."""
        return {names.delay(self.namespace, wait): wait for wait in sorted(self.waits)}


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What a queue looks like now; ``problem`` says what is wrong with it and what to do, or is empty."""

    name: str
    exists: bool
    messages: int = 0
    consumers: int = 0
    problem: str = ""


class Consumer(Protocol):
    """Receives from one or more queues; belongs to one thread."""

    def receive(self, limit: int, timeout: float) -> list[Delivery]:
        """Return as soon as there is at least one delivery, with up to ``limit``; ``[]`` after ``timeout`` seconds.

        Raises Unroutable if a queue does not exist, or no longer: whoever may, declares it and receives again.
        """
        ...

    def interrupt(self) -> None:
        """Let the receive that waits, or else the next one, return what there is; any thread may say so."""
        ...

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Say that these are dealt with; they do not come again, unless the connection was lost meanwhile."""
        ...

    def close(self) -> None:
        """Stop receiving; what was not acknowledged goes back to its queue. Harmless twice."""
        ...


class Subscription(Protocol):
    """Hears express messages from the moment it was made; belongs to one thread."""

    def receive(self, timeout: float) -> bytes | None:
        """Return the next message, or None after ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """Stop listening. Harmless twice."""
        ...


class Broker(Protocol):
    """A message broker; thread-safe. Making one connects to nothing."""

    @property
    def url(self) -> str:
        """Where it is, for people to read; without its password."""
        ...

    @property
    def exposure(self) -> str | None:
        """How others could read what is said to it; None if they cannot."""
        ...

    def version(self) -> str:
        """Tell what answers there, for people to read: ``RabbitMQ 3.13.1``. Connects; raises BrokerError."""
        ...

    def declare(self, topology: Topology) -> None:
        """Make the queues exist. Idempotent; raises BrokerError when one exists with other arguments."""
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
        """Look at each queue of the topology, changing nothing."""
        ...

    def prune(self, namespace: str) -> None:
        """Delete wake-ups whose key nobody has had for an hour: their runs have long been taken by their timers."""
        ...

    def express(self, namespace: str, body: bytes) -> None:
        """Send to whoever listens now; never blocks for long, never raises, may lose."""
        ...

    def is_heard(self, namespace: str) -> bool:
        """Tell whether somebody may be listening; what nobody would hear need not be made. Costs next to nothing."""
        ...

    def subscribe(self, namespace: str) -> Subscription:
        """Listen to the express messages of a namespace."""
        ...

    def close(self) -> None:
        """Let go of every connection. Harmless twice."""
        ...
