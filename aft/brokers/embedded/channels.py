"""How does PostgreSQL wake others at once? By LISTEN and NOTIFY, on connections outside the pool.

Notifications are a convenience: one that is lost costs time, never a message. A pooler that shares
connections between transactions delivers none; consumers then find new work by looking once a second.
"""

from __future__ import annotations

import base64
import binascii
import logging
import random
from collections.abc import Callable

import psycopg
from psycopg import sql
from sqlalchemy import Engine

from aft import names
from aft.brokers.embedded.background import Background
from aft.clock import SystemClock
from aft.errors import BrokerError
from aft.store.apart import Apart, connect

#: Bytes of the longest payload that PostgreSQL takes.
LARGEST = 7999
#: Seconds until a lost connection is tried again, at the most; the first time it is a twentieth of that.
RECONNECT = 2.0

_log = logging.getLogger(__name__)
_ticks = SystemClock().ticks


class Listener:
    """Calls ``hear`` with each payload of a channel, on a thread of its own, until it is closed.

    A lost connection is made again, with pauses; ``connected`` is called whenever it listens anew, because
    what was sent in between is lost. Nothing is left behind by a crash: the server forgets a listener with
    its connection.
    """

    def __init__(
        self,
        engine: Engine,
        channel: str,
        hear: Callable[[str], None],
        connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._hear = hear
        self._connected = connected
        self._connection: Apart | None = None
        self._thread: Background | None = None

    def connect(self) -> None:
        """Listen from now on; what is sent after this returned is heard once the thread runs."""
        connection = connect(self._engine)
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error:
            connection.close()
            raise
        self._connection = connection

    def start(self) -> None:
        """Begin to hear; connects by itself if need be."""
        self._thread = Background(f"aft-listen-{self._channel}", self._run)

    def close(self) -> None:
        """Stop hearing. Harmless twice."""
        if self._thread is not None:
            self._thread.stop()

    def _run(self, thread: Background) -> None:
        failures = 0
        while not thread.stopping:
            try:
                self._connect_anew()
                failures = 0
                self._hear_until_stopped(thread)
            except psycopg.Error as error:
                _log.info("listening interrupted: channel=%s error=%s", self._channel, error)
                failures += 1
                thread.pause(_back_off(failures))
            finally:
                self._disconnect()

    def _connect_anew(self) -> None:
        if self._connection is None:
            self.connect()
        self._connected()

    def _hear_until_stopped(self, thread: Background) -> None:
        connection = self._connection
        assert connection is not None
        # psycopg's own generator cannot be interrupted; it waits out its time.
        while thread.wait_for(connection):
            connection.pgconn.consume_input()
            while (note := connection.pgconn.notifies()) is not None:
                self._hear(note.extra.decode())

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ChannelExpress:
    """Carries express messages through one channel for each namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Apart | None = None
        self._not_before = 0.0

    def send(self, namespace: str, body: bytes) -> None:
        payload = encode(body)
        if len(payload) > LARGEST or _ticks() < self._not_before:
            return
        try:
            if self._connection is None:
                self._connection = connect(self._engine)
            self._connection.execute("SELECT pg_notify(%s, %s)", (names.express(namespace), payload))
        except psycopg.Error as error:
            _log.debug("express message dropped: %s", error)
            self.close()
            # What comes next is dropped without trying: each attempt may take seconds.
            self._not_before = _ticks() + RECONNECT

    def is_heard(self, namespace: str) -> bool:
        return True  # only the server knows, and tells nobody

    def listen(self, namespace: str, hear: Callable[[bytes], None]) -> Callable[[], None]:
        def hear_payload(payload: str) -> None:
            if (body := decode(payload)) is not None:
                hear(body)

        listener = Listener(self._engine, names.express(namespace), hear_payload)
        try:
            listener.connect()
        except psycopg.Error as error:
            raise BrokerError(f"cannot listen to express messages of {namespace!r}: {error}") from error
        listener.start()
        return listener.close

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def encode(body: bytes) -> str:
    """Make a payload of a body: plain text where it is ASCII, which every server's encoding can carry."""
    if body.isascii() and b"\0" not in body:
        return "t" + body.decode("ascii")
    return "b" + base64.b64encode(body).decode("ascii")


def decode(payload: str) -> bytes | None:
    """Make the body of a payload again; None if somebody else has sent it."""
    kind, text = payload[:1], payload[1:]
    try:
        if kind == "t":
            return text.encode("ascii")
        return base64.b64decode(text, validate=True) if kind == "b" else None
    except (UnicodeEncodeError, binascii.Error, ValueError):
        return None


def _back_off(failures: int) -> float:
    longest = min(RECONNECT, RECONNECT / 20 * 2.0 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)
