"""The RabbitMQ publisher: persistent, mandatory and confirmed messages, in a pipeline.

A confirm costs a round trip and a disk flush; waiting for them one by one is an order of magnitude slower than a
pipeline. All threads of a process share one: their messages are sent together, and each thread waits for its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pika import BasicProperties, DeliveryMode, spec
from pika.channel import Channel

from aft.brokers.base import Outgoing
from aft.brokers.rabbitmq.address import Address
from aft.brokers.rabbitmq.link import ALARM, Link, Work
from aft.errors import BrokerError, Unroutable

#: Bytes of bodies under way at a time: the window in messages alone would not bound memory.
WINDOW_BYTES = 16 * 1024 * 1024
#: Seconds that publishing waits for a connection; one that takes longer serves a later call.
PATIENCE = 5.0
#: The most seconds without a confirm before a batch is given up; its outbox rows are held no longer either.
SILENCE = 10.0
#: Seconds for which a queue that confirmed nothing is not tried again: one that lost its leader would block all
#: publishers to it.
SICK = 20.0

_SICK_ADVICE = "is it without a leader? see `rabbitmqctl list_queues name state leader`"


class Publisher:
    """Publishes on one connection, made by the first publish and replaced after it was lost. Thread-safe."""

    def __init__(self, address: Address, timeout: float, window: int) -> None:
        self._address = address
        self._timeout = timeout
        self._window = window
        self._opening = threading.Lock()
        self._pipeline: Pipeline | None = None
        self._closed = False

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Return when the broker has confirmed every message.

        Raises Unroutable, or BrokerError when one is refused, the connection is lost, the broker raises an alarm
        that does not pass at once, or it confirms nothing for some seconds; then any part of them may have arrived.
        """
        if not messages:
            return
        pipeline = self._connect()
        batch = PublishBatch(messages)
        pipeline.submit(batch)
        pipeline.wait(batch)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closed = True
        if self._pipeline is not None:
            self._pipeline.link.close()

    def _connect(self) -> Pipeline:
        patience = min(self._timeout, PATIENCE)
        if not self._opening.acquire(timeout=patience):
            raise BrokerError(f"no connection to RabbitMQ at {self._address} within {patience:.3g} s")
        try:
            if self._closed:
                raise BrokerError(f"this broker ({self._address}) was closed; make a new one")
            if self._pipeline is None or self._pipeline.link.lost:
                self._pipeline = Pipeline(self._address, self._timeout, self._window)
            # Counted from its beginning: of all threads that need the same connection, none starts a new wait.
            link = self._pipeline.link
            link.wait(link.begun + patience - time.monotonic())
            return self._pipeline
        finally:
            self._opening.release()


class PublishBatch:
    """The messages of one ``publish`` call, and whether they have all arrived; changed on the link's thread."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        self.done = threading.Event()
        self.error: BrokerError | None = None
        #: Messages that are not sent yet.
        self.unsent = len(messages)
        #: When the last of it was sent or confirmed.
        self.progress_at = 0.0
        #: Messages that are not confirmed yet.
        self.unconfirmed = len(messages)

    def sent(self) -> None:
        """Count one more message as sent."""
        self.unsent -= 1
        self.progress_at = time.monotonic()

    def confirm(self) -> None:
        """Count one more message as confirmed."""
        self.unconfirmed -= 1
        self.progress_at = time.monotonic()
        if self.unconfirmed == 0:
            self.done.set()

    def fail(self, error: BrokerError) -> None:
        """Fail the batch; the first reason stays."""
        if not self.done.is_set():
            self.error = error
            self.done.set()


class Pipeline:
    """One connection's messages under way. Its state is changed only on the link's thread."""

    def __init__(self, address: Address, timeout: float, window: int) -> None:
        self._timeout = min(timeout, SILENCE)
        self._window = window
        self._waiting: deque[tuple[PublishBatch, Outgoing]] = deque()
        self._unconfirmed: dict[int, tuple[PublishBatch, Outgoing]] = {}
        self._bytes = 0
        self._last_tag = 0
        self._oldest = 1
        self._confirmed_at = 0.0
        #: Addresses that confirmed nothing, and until when they are not tried.
        self._sick: dict[str, float] = {}
        self.link = Link(
            address,
            timeout,
            name="aft-publish",
            setup=self._prepare,
            on_lost=self._lost,
            on_blocked=self._alarmed,
        )

    def submit(self, batch: PublishBatch) -> None:
        """Send the batch as the window allows. Raises BrokerError when the link is lost."""
        self.link.post(partial(self._enqueue, batch))

    def wait(self, batch: PublishBatch) -> None:
        """Return when all of the batch is confirmed; raises BrokerError if there is no progress for too long."""
        started = time.monotonic()
        while not batch.done.is_set():
            # While it is queued, confirms of those before it count; then only its own: another queue's prove nothing.
            progress_at = self._confirmed_at if batch.unsent else batch.progress_at
            left = max(started, progress_at) + self._timeout - time.monotonic()
            if left <= 0:
                self._give_up(batch, started)
            batch.done.wait(left)
        if batch.error is not None:
            raise batch.error

    def _give_up(self, batch: PublishBatch, started: float) -> None:
        if max(started, self._confirmed_at) + self._timeout > time.monotonic():
            self._post_abandon(batch)
            return
        why = "a memory or disk alarm" if self.link.blocked else "see its log"
        error = BrokerError(f"RabbitMQ at {self.link.address} confirmed nothing within {self._timeout:.3g} s: {why}")
        batch.fail(error)
        self.link.drop(error)

    def _post_abandon(self, batch: PublishBatch) -> None:
        where = f"RabbitMQ at {self.link.address}"
        which = f"{batch.unconfirmed} messages within {self._timeout:.3g} s"
        batch.fail(BrokerError(f"{where} did not confirm {which}; {_SICK_ADVICE}"))
        try:
            self.link.post(partial(self._abandon, batch))
        except BrokerError:
            pass  # it has ended, and everything with it

    def _abandon(self, batch: PublishBatch) -> None:
        """Stop waiting for a batch; the connection is usable, as others' messages are confirmed."""
        for tag in [tag for tag, (its, _) in self._unconfirmed.items() if its is batch]:
            _, message = self._unconfirmed.pop(tag)
            self._bytes -= len(message.body)
            self._sick[message.address] = time.monotonic() + SICK
        self._fill()

    def _prepare(self, channel: Channel, ready: Work) -> None:
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._confirmed, callback=lambda _: ready())

    def _enqueue(self, batch: PublishBatch) -> None:
        if self.link.lost:
            self._fail_lost(batch)
        elif sick := self._unroutable_among(batch.messages):
            where = f"queue {sick!r} at {self.link.address}"
            batch.fail(BrokerError(f"{where} confirmed nothing when it was last tried; {_SICK_ADVICE}"))
        else:
            self._waiting.extend((batch, message) for message in batch.messages)
            self._fill()
            if self.link.blocked:
                self._refuse_later({batch})

    def _unroutable_among(self, messages: Sequence[Outgoing]) -> str | None:
        if not self._sick:
            return None
        now = time.monotonic()
        return next((message.address for message in messages if self._sick.get(message.address, 0.0) > now), None)

    def _fill(self) -> None:
        """Send until the window is full."""
        while self._waiting and self._has_room():
            batch, message = self._waiting.popleft()
            if not batch.done.is_set():  # else: it failed, its caller has gone
                self._send(batch, message)

    def _has_room(self) -> bool:
        # Under an alarm the broker does not read: messages would pile up in this process.
        return not self.link.blocked and len(self._unconfirmed) < self._window and self._bytes < WINDOW_BYTES

    def _send(self, batch: PublishBatch, message: Outgoing) -> None:
        tag = self._last_tag + 1
        # The id travels back with a returned message: that is how we know which one it was.
        properties = BasicProperties(delivery_mode=DeliveryMode.Persistent.value, message_id=str(tag))  # type: ignore[no-untyped-call]
        try:
            # With a key, to the exchange of the queue's name; it routes by the key (``rabbitmq.topology``).
            exchange, routing_key = (message.queue, message.key) if message.key else ("", message.queue)
            self.link.channel.basic_publish(exchange, routing_key, message.body, properties, mandatory=True)
        except Exception as error:
            batch.fail(BrokerError(f"cannot publish to {message.queue!r} at {self.link.address}: {error!r}"))
            return
        self._last_tag = tag
        self._unconfirmed[tag] = (batch, message)
        self._bytes += len(message.body)
        batch.sent()

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        self._confirmed_at = time.monotonic()
        for tag in self._tags(method.delivery_tag, method.multiple):
            found = self._unconfirmed.pop(tag, None)
            if found is not None:
                self._bytes -= len(found[1].body)
                self._sick.pop(found[1].address, None)
                self._finish(*found, refused=isinstance(method, spec.Basic.Nack))
        self._fill()

    def _tags(self, tag: int, multiple: bool) -> range:
        if not multiple:
            return range(tag, tag + 1)
        tags = range(self._oldest, tag + 1)
        self._oldest = tag + 1
        return tags

    def _finish(self, batch: PublishBatch, message: Outgoing, *, refused: bool) -> None:
        if refused:
            where = f"queue {message.queue!r} at {self.link.address}"
            batch.fail(BrokerError(f"{where} refused a message; is it full, or without a leader?"))
        else:
            batch.confirm()

    def _returned(self, _channel: Channel, _method: object, properties: Any, _body: bytes) -> None:
        found = self._unconfirmed.get(int(properties.message_id or 0))
        if found is not None:
            batch, message = found
            where = f"queue {message.queue!r} does not exist at {self.link.address}"
            batch.fail(Unroutable(f"{where}; declare it: aft broker declare"))

    def _alarmed(self) -> None:
        if self.link.blocked:
            self._refuse_later(self._batches())
        else:
            self._fill()

    def _refuse_later(self, batches: Iterable[PublishBatch]) -> None:
        self.link.post_later(ALARM, partial(self._refuse, batches))

    def _refuse(self, batches: Iterable[PublishBatch]) -> None:
        """Fail these batches if the alarm lasts: callers need not wait for its end, as the outbox has the messages."""
        if self.link.blocked:
            where = f"RabbitMQ at {self.link.address}"
            for batch in batches:
                batch.fail(BrokerError(f"{where} accepts no messages (memory or disk alarm); free some there"))
            self._waiting = deque(each for each in self._waiting if not each[0].done.is_set())

    def _batches(self) -> set[PublishBatch]:
        return {batch for batch, _ in (*self._unconfirmed.values(), *self._waiting)}

    def _lost(self) -> None:
        for batch in self._batches():
            self._fail_lost(batch)
        self._unconfirmed.clear()
        self._waiting.clear()

    def _fail_lost(self, batch: PublishBatch) -> None:
        try:
            self.link.check()
        except BrokerError as error:
            batch.fail(error)
