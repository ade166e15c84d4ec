"""One connection to RabbitMQ, with one channel, on its own I/O thread.

A link is used once: it is made, becomes ready, and is lost or closed; to reconnect, make another one. So the state of a
connection (delivery tags, unconfirmed messages) ends with its link.

pika's objects are used only on the link's thread; other threads hand it work with ``post``. Only this package's own
short callbacks run there, never a user's code.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from pika import data
from pika import exceptions as amqp
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.channel import Channel

from aft.brokers.rabbitmq import explain
from aft.brokers.rabbitmq.address import Address
from aft.errors import BrokerError

Work = Callable[[], None]
#: Prepares the link's channel, on its thread, and calls the second argument when that is done.
Setup = Callable[[Channel, Work], None]
#: Sends a request on a channel; the second argument is called with the broker's answer.
Request = Callable[[Channel, Callable[[Any], None]], None]

#: Seconds a close waits for the broker to agree; then the connection is dropped.
GRACE = 3.0
#: Seconds that a memory or disk alarm may last before publishing fails: many alarms are shorter.
ALARM = 1.0


#: How pika reads the value of a header: bytes and a position to the value and the position after it.
Decode = Callable[[bytes, int], tuple[Any, int]]


def _read_any_time(decode: Decode) -> Decode:
    """Return a reader of headers that reads a time beyond all years as None.

    Nothing here reads headers. A message with such a time would end the connection each time that it is delivered.
    """

    def read(encoded: bytes, offset: int) -> tuple[Any, int]:
        try:
            return decode(encoded, offset)
        except (OverflowError, ValueError, OSError):
            if encoded[offset : offset + 1] != b"T":
                raise
            return None, offset + 1 + 8

    return read


data.decode_value = _read_any_time(data.decode_value)  # type: ignore[assignment]


class Link:
    """A connection that starts to open when it is made.

    Thread-safe. ``on_lost`` is called once, on the link's thread, when it has ended for whatever reason; work
    that was posted before and has not run yet runs after it. ``on_blocked`` is called there whenever ``blocked``
    changes.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        *,
        name: str,
        setup: Setup = lambda _channel, ready: ready(),
        on_lost: Work = lambda: None,
        on_blocked: Work = lambda: None,
    ) -> None:
        self.address = address
        #: When it was begun, on Python's monotonic clock.
        self.begun = time.monotonic()
        #: True while the broker accepts no messages, being short of memory or disk space.
        self.blocked = False
        self._timeout = timeout
        self._setup = setup
        self._on_lost = on_lost
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._inbox: deque[Work] = deque()
        self._ready_or_lost = threading.Event()
        self._error: BrokerError | None = None
        self._thread_ended = False
        self._closing = False
        self._loop = IOLoop()
        self._connection: SelectConnection | None = None
        self._channel: Channel | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # --- for any thread ---

    @property
    def lost(self) -> bool:
        """Whether it has failed or was closed; it does not come back."""
        return self._error is not None

    @property
    def server(self) -> str:
        """The server's product and version, once the link is ready: ``RabbitMQ 3.13.1``."""
        properties = getattr(self._connection, "server_properties", None) or {}
        return f"{_text(properties.get('product', 'RabbitMQ'))} {_text(properties.get('version', ''))}".strip()

    def wait(self, timeout: float) -> None:
        """Return when it is ready. Raises BrokerError when it is lost, or not ready in time (it goes on connecting)."""
        if not self._ready_or_lost.wait(max(0.0, timeout)):
            seconds = time.monotonic() - self.begun
            raise BrokerError(
                f"no connection to RabbitMQ at {self.address} within {seconds:.3g} s; is it running there?"
            )
        self.check()

    def check(self) -> None:
        """Raise BrokerError with the reason if the link is lost."""
        if self._error is not None:
            raise type(self._error)(str(self._error))

    def post(self, work: Work) -> None:
        """Run this on the link's thread, in the order of posting. Raises BrokerError when it has ended."""
        with self._lock:
            if self._thread_ended:
                self.check()
            self._inbox.append(work)
        self._loop.add_callback_threadsafe(self._drain)

    def post_later(self, seconds: float, work: Work) -> None:
        """Run this on the link's thread after a while, unless it has ended by then; only from that thread."""
        self._loop.call_later(seconds, work)

    def request(self, request: Request) -> Any:
        """Send a request on a channel of its own and return the broker's answer; raises ChannelRefused, BrokerError."""
        answer: Future[Any] = Future()
        self.post(partial(self._request, request, answer))
        try:
            return answer.result(self._timeout)
        except TimeoutError:
            error = BrokerError(f"RabbitMQ at {self.address} gave no answer within {self._timeout:.3g} s")
            self.drop(error)
            raise error from None

    def drop(self, error: BrokerError) -> None:
        """End it now for this reason, without waiting for the broker; it counts as lost on return."""
        self._fail(error)
        try:
            self.post(partial(self._drop, error))
        except BrokerError:
            pass  # it has ended already

    def close(self) -> None:
        """Close it cleanly, so that everything posted before is sent. Bounded; idempotent."""
        self._closing = True
        error = BrokerError(f"the connection to RabbitMQ at {self.address} was closed")
        try:
            self.post(partial(self._close_connection, error))
        except BrokerError:
            pass
        self._thread.join(GRACE)
        if self._thread.is_alive():  # a blocked broker reads nothing, not even the close
            self.drop(error)
            self._thread.join(GRACE)

    # --- on the link's thread ---

    @property
    def channel(self) -> Channel:
        """The link's channel; only for its own thread, and only once it was ready."""
        assert self._channel is not None
        return self._channel

    def _run(self) -> None:
        try:
            self._connection = SelectConnection(
                self.address.parameters(self._timeout),
                on_open_callback=self._opened,
                on_open_error_callback=self._ended,
                on_close_callback=self._ended,
                custom_ioloop=self._loop,
            )
            self._loop.start()
        except Exception as error:  # whatever it was, no caller may be left waiting for a dead thread
            self._fail(error)
        finally:
            self._finish()

    def _opened(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))
        connection.channel(on_open_callback=self._channel_opened)

    def _set_blocked(self, blocked: bool) -> None:
        self.blocked = blocked
        self._on_blocked()

    def _channel_opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_cancel_callback(self._cancelled)
        self._setup(channel, self._ready_or_lost.set)

    def _channel_closed(self, _channel: Channel, reason: Exception) -> None:
        if isinstance(reason, amqp.ChannelClosedByBroker) and not self._closing:
            self._drop(explain.closed(self.address, reason))

    def _cancelled(self, _frame: object) -> None:
        self._drop(BrokerError(f"RabbitMQ at {self.address} ended the delivery; was the queue deleted?"))

    def _ended(self, _connection: object, error: BaseException) -> None:
        self._fail(error)
        self._loop.stop()

    def _fail(self, error: BaseException) -> None:
        """Record why it is lost; the first reason stays."""
        with self._lock:
            if self._error is None:
                self._error = explain.lost(self.address, error)

    def _close_connection(self, error: BrokerError) -> None:
        connection = self._connection
        if connection is None or self.lost:
            return
        self._fail(error)
        connection.close()

    def _drop(self, error: BaseException) -> None:
        self._fail(error)
        connection = self._connection
        try:
            assert connection is not None
            if connection.is_open or connection.is_closing:
                # pika offers no other way to end an open connection that the broker no longer listens to.
                connection._terminate_stream(self._error)
            else:
                connection.close()
        except Exception:  # it was ending already
            self._loop.stop()

    def _drain(self) -> None:
        while self._inbox:
            work = self._inbox.popleft()
            try:
                work()
            except Exception as error:
                self._drop(error)

    def _finish(self) -> None:
        self._fail(BrokerError(f"the connection to RabbitMQ at {self.address} has ended"))
        with self._lock:
            self._thread_ended = True
        self._on_lost()
        self._drain()
        self._ready_or_lost.set()
        self._loop.close()

    def _request(self, request: Request, answer: Future[Any]) -> None:
        def closed(_channel: Channel, reason: Exception) -> None:
            if answer.done():
                return
            if isinstance(reason, amqp.ChannelClosedByBroker):
                answer.set_exception(explain.ChannelRefused(reason.reply_code, reason.reply_text))
            else:
                answer.set_exception(explain.lost(self.address, self._error or reason))

        def replied(frame: Any) -> None:
            answer.set_result(frame.method)
            channel.close()

        try:
            assert self._connection is not None
            channel = self._connection.channel(on_open_callback=lambda opened: request(opened, replied))
            channel.add_on_close_callback(closed)
        except Exception as error:
            answer.set_exception(explain.lost(self.address, self._error or error))


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
