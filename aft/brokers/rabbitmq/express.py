"""Express: live events to whoever listens now, in memory only, lost rather than waited for.

Events that come soon after each other travel in one message: at thousands a second, each of its own would cost a
dispatcher more than what it tells of. The first after a pause is sent at once.

Mostly nobody listens. Then the broker returns what was sent, and for a moment the sender says that it need not be told
anything; the next event after that asks again. Whoever begins to listen waits as long, once, so it misses nothing: what
is returned to a sender was sent before it had begun.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from uuid import uuid4

from pika import BasicProperties, DeliveryMode, spec
from pika.channel import Channel
from pika.exchange_type import ExchangeType

from aft import names
from aft.brokers.rabbitmq import explain
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.link import Link, Question, Work
from aft.brokers.rabbitmq.redial import Redial
from aft.errors import BrokerError

#: Events that wait to be sent, or to be received, before some are dropped.
MOST_WAITING = 1000
#: Events sent between two looks at whether the broker keeps up.
MOST_AT_ONCE = 200
#: Seconds for which events are gathered after some were sent.
GATHER = 0.01
#: Seconds for which a sender keeps silent when nobody listens, counted from what it sent to find that out.
SILENCE = 0.1
#: The type of a message that holds several events, each after its length in four bytes.
MANY = "many"
#: Seconds that closing waits for events to leave.
GRACE = 2.0


def declare_exchange(namespace: str, *, passive: bool) -> Question:
    """Ask for the exchange of a namespace's events.

    It is durable, its messages are not: so it is there after a restart for roles that may not declare it.
    """
    return lambda channel, reply: channel.exchange_declare(
        names.express(namespace), ExchangeType.fanout.value, passive=passive, durable=True, callback=reply
    )


class ExpressSender:
    """Sends events from a thread of its own. Thread-safe; never blocks, never raises."""

    def __init__(self, address: Address, timeout: float, *, passive: bool) -> None:
        self._passive = passive
        self._timeout = timeout
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MOST_WAITING)
        self._redial = Redial(lambda: _Line(address, timeout, self._note_unheard))
        #: Until when nobody need be told anything, by exchange.
        self._silent_until: dict[str, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def is_heard(self, namespace: str) -> bool:
        """Tell whether somebody may be listening."""
        return time.monotonic() >= self._silent_until.get(names.express(namespace), 0.0)

    def send(self, namespace: str, body: bytes) -> None:
        """Have it sent soon; dropped when too many wait already, or this is closed."""
        if self._closed:
            return
        self._start()
        try:
            self._waiting.put_nowait((namespace, body))
        except queue.Full:
            pass

    def close(self) -> None:
        """Send what waits, if that is quick, and let go of the connection. Harmless twice."""
        with self._lock:
            already, self._closed = self._closed, True
        if already or self._thread is None:
            return
        try:
            self._waiting.put_nowait(None)
            self._thread.join(GRACE)
        except queue.Full:
            pass
        self._redial.close()
        self._thread.join(GRACE)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="aft-express", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (first := self._next()) is not None:
            events = [first, *self._more()]
            try:
                self._send(events)
            except (BrokerError, explain.ChannelRefused):
                continue  # lost; the next ones wait for the next connection, or are dropped
            time.sleep(GATHER)

    def _next(self) -> tuple[str, bytes] | None:
        while not self._closed:
            try:
                return self._waiting.get(timeout=1)
            except queue.Empty:
                continue
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _more(self) -> Iterable[tuple[str, bytes]]:
        for _ in range(MOST_AT_ONCE - 1):
            try:
                event = self._waiting.get_nowait()
            except queue.Empty:
                return
            if event is None:
                return
            yield event

    def _send(self, events: Sequence[tuple[str, bytes]]) -> None:
        line = self._redial.session(self._timeout)
        bodies: dict[str, list[bytes]] = {}
        for namespace, body in events:
            bodies.setdefault(namespace, []).append(body)
        for namespace, those in bodies.items():
            if line.must_ask(namespace, len(those)):
                # The answer also says that the broker has read what was sent before: nothing piles up in this
                # process.
                line.link.ask(declare_exchange(namespace, passive=self._passive))
        line.link.post(partial(self._publish, line.link, bodies))

    def _publish(self, link: Link, bodies: dict[str, list[bytes]]) -> None:
        if link.lost:
            return
        for namespace, those in bodies.items():
            kind, body = (None, those[0]) if len(those) == 1 else (MANY, pack(those))
            properties = BasicProperties(  # type: ignore[no-untyped-call]
                delivery_mode=DeliveryMode.Transient.value, type=kind, correlation_id=repr(time.monotonic())
            )
            link.channel.basic_publish(names.express(namespace), "", body, properties, mandatory=True)

    def _note_unheard(
        self, _channel: Channel, method: spec.Basic.Return, properties: BasicProperties, _body: bytes
    ) -> None:
        self._silent_until[method.exchange] = float(properties.correlation_id) + SILENCE


class _Line:
    """A connection for sending events."""

    def __init__(self, address: Address, timeout: float, on_return: Callable[..., None]) -> None:
        self._on_return = on_return
        self.link = Link(address, timeout, name="aft-express-io", setup=self._prepare)
        #: Events sent since the broker last answered, by the namespaces whose exchange is known to be there.
        self._unanswered: dict[str, int] = {}

    def must_ask(self, namespace: str, events: int) -> bool:
        """Count events that are to be sent; tell whether the broker must be heard before."""
        sent = self._unanswered.get(namespace, MOST_AT_ONCE) + events
        self._unanswered[namespace] = events if sent > MOST_AT_ONCE else sent
        return sent > MOST_AT_ONCE

    def _prepare(self, channel: Channel, ready: Work) -> None:
        channel.add_on_return_callback(self._on_return)
        ready()


class RabbitSubscription:
    """Hears a namespace's events from the moment it was made, which takes as long as senders keep silent.

    Belongs to one thread. When the connection is lost, it comes back by itself; events meanwhile are lost. When the
    reader is slow, the oldest events are dropped.
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
        self._redial = Redial(lambda: _Ear(address, timeout, namespace, passive=passive))
        try:
            self._redial.session(timeout, patient=False)
        except BrokerError:
            self._redial.close()
            raise
        time.sleep(SILENCE)

    def receive(self, timeout: float) -> bytes | None:
        """Return the next event, or None after ``timeout`` seconds, also when the broker is away."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                ear = self._redial.session(deadline - time.monotonic())
            except BrokerError:
                return None
            body = ear.take(deadline - time.monotonic())
            if body is not None or not ear.link.lost:
                return body

    def close(self) -> None:
        """Stop listening. Harmless twice."""
        self._redial.close()
        self._on_close(self)


class _Ear:
    """One connection's exclusive queue, bound to the exchange before the link is ready."""

    def __init__(self, address: Address, timeout: float, namespace: str, *, passive: bool) -> None:
        self._namespace = namespace
        self._passive = passive
        self._arrived = threading.Condition()
        self._buffer: deque[bytes] = deque(maxlen=MOST_WAITING)
        self.link = Link(address, timeout, name="aft-listen", setup=self._prepare, on_lost=self._wake)

    def take(self, timeout: float) -> bytes | None:
        """Wait for an event; None when there is none in time, or the link is lost."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._buffer or self.link.lost, max(0.0, timeout))
            return self._buffer.popleft() if self._buffer else None

    def _prepare(self, channel: Channel, ready: Work) -> None:
        """Bind a queue of our own; pika sends these one after another, ready is the last one's answer."""
        exchange = names.express(self._namespace)
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
        channel.basic_consume(mine, self._hear, auto_ack=True, callback=lambda _: ready())

    def _hear(self, _channel: Channel, _method: spec.Basic.Deliver, props: BasicProperties, body: bytes) -> None:
        with self._arrived:
            self._buffer.extend(unpack(body) if props.type == MANY else (body,))
            self._arrived.notify()

    def _wake(self) -> None:
        with self._arrived:
            self._arrived.notify()


def pack(bodies: Iterable[bytes]) -> bytes:
    """Put several events into one message."""
    return b"".join(len(body).to_bytes(4) + body for body in bodies)


def unpack(body: bytes) -> Iterable[bytes]:
    """Take them apart again; what is cut off is lost."""
    place = 0
    while len(body) - place > 4:
        start = place + 4
        place = start + int.from_bytes(body[place:start])
        yield body[start:place]
