"""The RabbitMQ consumer: deliveries are buffered up to the prefetch, acknowledged in batches, void after a lost link.

If an exchange is deleted, a pool loses its bindings, and its messages come through the shared queue. The first of them
that reaches a worker of the pool makes it bind the pool's queue again, which is idempotent. Messages from before there
was a pool come the same way, so it binds at most once in ``BIND_PAUSE`` seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

from pika import BasicProperties, spec
from pika.channel import Channel

from aft.brokers.base import Delivery
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.link import Link, Work
from aft.brokers.rabbitmq.reconnect import Reconnector
from aft.envelope import MOST_KEPT
from aft.errors import BrokerError

#: The shortest time, in seconds, between two bindings of a pool's queue.
BIND_PAUSE = 1.0
#: Seconds between two checks for a pool's queue that did not exist, and that this role may not declare.
POLL_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class QueueSource:
    """A queue to receive from. ``pool`` declares and binds it first, on the same channel; None: it exists already.

    ``keys`` are the routing keys that it is bound to.
    """

    name: str
    #: The queue that deliveries name: for a pool's queue, the routed queue whose messages it gets.
    queue: str
    pool: Callable[[Channel], None] | None = None
    keys: frozenset[str] = frozenset()


class RabbitConsumer:
    """Receives from its queues on a connection of its own; belongs to one thread, ``close`` to any.

    It connects with the first ``receive``, and again whenever the connection was lost. The prefetch is shared
    out among the queues, as the broker counts it for each; with more queues than prefetch each still sends
    one ahead, but no more than ``prefetch`` are ever handed out unacknowledged.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        queues: Sequence[str],
        prefetch: int,
        on_close: Callable[[RabbitConsumer], None] = lambda _: None,
        pools: Callable[[], Sequence[QueueSource]] = tuple,
        polls_pools: bool = False,
    ) -> None:
        """Make a consumer; ``pools`` is called for each connection, and returns sources besides ``queues``.

        With ``polls_pools`` it is also called every ``POLL_PAUSE`` seconds until it has returned one for each queue:
        roles with the permission declare them.
        """
        if not queues or prefetch < 1:
            raise ValueError(f"a consumer needs a queue and a prefetch of 1 or more, not {queues!r}, {prefetch!r}")
        self._on_close = on_close
        self._polls_pools = polls_pools
        self._pools = pools
        self._poll_at = time.monotonic() + POLL_PAUSE
        shared = [QueueSource(queue, queue) for queue in queues]
        self._reconnector = Reconnector(lambda: DeliveryBuffer(address, timeout, [*pools(), *shared], prefetch))

    def receive(self, limit: int, timeout: float) -> list[Delivery]:
        """Return as soon as there is at least one delivery, with up to ``limit``; ``[]`` after ``timeout`` seconds.

        Raises BrokerError when it cannot connect in that time; the next call goes on trying. Raises Unroutable when a
        queue does not exist; it can receive again as soon as that is declared.
        """
        deadline = time.monotonic() + timeout
        while True:
            inbox = self._reconnector.session(deadline - time.monotonic())
            if self._polls_pools and time.monotonic() >= self._poll_at:
                self._poll_for_pools(inbox)
            found = inbox.take(limit, deadline - time.monotonic())
            if found or not inbox.link.lost:
                return found

    def _poll_for_pools(self, inbox: DeliveryBuffer) -> None:
        """Receive also from pool queues that exist by now: messages go there instead of to the shared queue."""
        for source in self._pools() if inbox.lacks_pools else ():
            inbox.join(source)
        self._poll_at = time.monotonic() + POLL_PAUSE

    def interrupt(self) -> None:
        """Make the ``receive`` that waits, or else the next one, return without waiting. Thread-safe."""
        inbox = self._reconnector.current()
        if inbox is not None:
            inbox.interrupt()

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge deliveries; those of a lost connection are left out, as they are redelivered."""
        inbox = self._reconnector.current()
        if inbox is not None:
            inbox.ack(deliveries)

    def close(self) -> None:
        """Send the acknowledgements that are under way, then return the rest to the queues. Idempotent."""
        self._reconnector.close()
        self._on_close(self)


class DeliveryBuffer:
    """The deliveries of one connection: those in the buffer, and those that are not acknowledged yet."""

    def __init__(self, address: Address, timeout: float, sources: Sequence[QueueSource], prefetch: int) -> None:
        # A pool's queue and its shared queue have one share: most of the time only one of the two has messages.
        queues = len({source.queue for source in sources})
        shares = dict(zip({source.queue: None for source in sources}, share(prefetch, queues), strict=True))
        self._shares = {source: shares[source.queue] for source in sources}
        self._bound_at = {source: float("-inf") for source in sources if source.pool is not None}
        self._prefetch = prefetch
        self._arrived = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        #: Delivery tags, ascending: in the buffer, or handed out and not acknowledged.
        self._open: dict[int, None] = {}
        self._interrupted = False
        self.link = Link(address, timeout, name="aft-consume", setup=self._prepare, on_lost=self._lost)

    @property
    def lacks_pools(self) -> bool:
        """Whether there is a queue without a pool's queue for it."""
        return len(self._shares) < 2 * len({source.queue for source in self._shares})

    def join(self, source: QueueSource) -> None:
        """Receive from one more queue, unless it is a source already."""
        if any(source.name == known.name for known in self._shares):
            return
        share = next(share for known, share in self._shares.items() if known.queue == source.queue)
        self._shares[source] = share
        with suppress(BrokerError):  # lost meanwhile: the next connection has it
            self.link.post(lambda: self._subscribe(self.link.channel, source, share, lambda _: None))

    def take(self, limit: int, timeout: float) -> list[Delivery]:
        """Wait for deliveries; none when the link is lost, it is interrupted, or the prefetch is handed out already."""
        with self._arrived:
            self._arrived.wait_for(self._need_not_wait, max(0.0, timeout))
            self._interrupted = False
            if self.link.lost:
                return []
            count = min(limit, self._takeable())
            return [self._buffer.popleft() for _ in range(count)]

    def interrupt(self) -> None:
        """Make the ``take`` that waits, or else the next one, return without waiting."""
        with self._arrived:
            self._interrupted = True
            self._arrived.notify()

    def _need_not_wait(self) -> bool:
        return self._interrupted or self.link.lost or self._takeable() > 0

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge those deliveries that came by this connection and are still open."""
        with self._arrived:
            tags = sorted({tag for tag in map(self._tag_of, deliveries) if tag in self._open})
            for tag in tags:
                del self._open[tag]
            plan = list(acknowledgements(tags, lowest_open=next(iter(self._open), None)))
        if not plan:
            return  # waking the link's thread for nothing would cost more than most of what it does
        try:
            self.link.post(partial(self._send, plan))
        except BrokerError:
            pass  # lost meanwhile: they come again

    def _tag_of(self, delivery: Delivery) -> int | None:
        match delivery.tag:
            case (inbox, int(tag)) if inbox is self:
                return tag
        return None

    def _takeable(self) -> int:
        handed_out = len(self._open) - len(self._buffer)
        return min(len(self._buffer), self._prefetch - handed_out)

    def _send(self, plan: list[tuple[int, bool]]) -> None:
        if not self.link.lost:
            for tag, multiple in plan:
                self.link.channel.basic_ack(tag, multiple)

    def _prepare(self, channel: Channel, ready: Work) -> None:
        """Subscribe to each queue; pika sends these one after another, and the last answer calls ``ready``."""
        waiting = set(self._shares)

        def subscribed(source: QueueSource, _frame: object) -> None:
            waiting.discard(source)
            if not waiting:
                ready()

        for source, prefetch in self._shares.items():
            if source.pool is not None:
                source.pool(channel)
            self._subscribe(channel, source, prefetch, partial(subscribed, source))

    def _subscribe(self, channel: Channel, source: QueueSource, prefetch: int, done: Callable[[object], None]) -> None:
        if not channel.is_open:
            return
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(source.name, partial(self._deliver, source), callback=done)

    def _deliver(
        self,
        source: QueueSource,
        channel: Channel,
        method: spec.Basic.Deliver,
        _properties: BasicProperties,
        body: bytes,
    ) -> None:
        # Of an oversized message no more is kept than quarantine does: a prefetch full of them would fill the memory.
        size = len(body) if len(body) > MOST_KEPT else None
        tag = method.delivery_tag
        with self._arrived:
            self._open[tag] = None
            self._buffer.append(Delivery(source.queue, body[:MOST_KEPT], bool(method.redelivered), (self, tag), size))
            self._arrived.notify()
        if not source.keys:
            self._bind_again(source.queue, method.routing_key, channel)

    def _bind_again(self, queue: str, key: str, channel: Channel) -> None:
        """Bind the pool's queue to its keys again if a message with one of them came through the shared queue."""
        for source, bound_at in self._bound_at.items():
            now = time.monotonic()
            if source.pool is not None and source.queue == queue and key in source.keys and now - bound_at > BIND_PAUSE:
                self._bound_at[source] = now
                source.pool(channel)

    def _lost(self) -> None:
        with self._arrived:
            self._arrived.notify()


def share(prefetch: int, queues: int) -> Iterator[int]:
    """Divide the prefetch among this number of queues as evenly as possible, at least one for each. Pure."""
    each, rest = divmod(prefetch, queues)
    for place in range(queues):
        yield max(1, each + (place < rest))


def acknowledgements(tags: Sequence[int], lowest_open: int | None) -> Iterator[tuple[int, bool]]:
    """Plan the fewest acknowledgements of these ascending tags, as (tag, multiple).

    One "up to and including" for those below every tag that is still open; one each for the others.
    """
    below = sum(1 for tag in tags if lowest_open is None or tag < lowest_open)
    if below:
        yield tags[below - 1], below > 1
    for tag in islice(tags, below, None):
        yield tag, False
