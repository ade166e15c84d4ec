"""Live events on PostgreSQL: one notification channel for each namespace, on connections outside the pool.

Beside a SQLite file there are none: who follows runs there polls the rows.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import psycopg
from sqlalchemy import Engine

from aft import names
from aft.brokers.embedded.listener import RECONNECT, Listener
from aft.clock import SystemClock
from aft.errors import BrokerError
from aft.store.postgres.dedicated_connection import DedicatedConnection, connect

#: Bytes of the longest payload that PostgreSQL takes.
LARGEST = 7999
#: The most events that wait to be received; further ones are dropped.
MOST_WAITING = 1000
#: Seconds that closing waits for an event that is being sent.
DRAIN = 1.0

_log = logging.getLogger(__name__)
_ticks = SystemClock().ticks


class PostgresEventSender:
    """Sends events on a connection of its own, made by the first one. Thread-safe; never raises."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: DedicatedConnection | None = None
        self._not_before = 0.0
        self._closed = False

    def send(self, namespace: str, body: bytes) -> None:
        """Send an event; dropped if it is too long, or cannot be sent."""
        with self._lock:
            if self._closed or len(body) > LARGEST or _ticks() < self._not_before:
                return
            try:
                if self._connection is None:
                    self._connection = connect(self._engine)
                self._connection.execute(
                    "SELECT pg_notify(%s, %s)", (names.live_events(namespace), body.decode("ascii"))
                )
            except psycopg.Error as error:
                _log.debug("live event dropped: %s", error)
                self._disconnect()
                # What comes next is dropped without trying: each attempt may take seconds.
                self._not_before = _ticks() + RECONNECT

    def close(self) -> None:
        """Close the connection; one that has been sending for ``DRAIN`` seconds is left to its thread. Idempotent."""
        self._closed = True
        if self._lock.acquire(timeout=DRAIN):
            self._disconnect()
            self._lock.release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class PostgresSubscription:
    """Receives a namespace's events that are sent after it was made; drops new ones while too many wait."""

    def __init__(self, engine: Engine, namespace: str, on_close: Callable[[PostgresSubscription], None]) -> None:
        self._bodies: queue.Queue[bytes] = queue.Queue(MOST_WAITING)
        self._on_close = on_close
        self._listener = Listener(engine, names.live_events(namespace), self._add)
        try:
            self._listener.connect()
        except psycopg.Error as error:
            raise BrokerError(f"cannot receive live events of {namespace!r}: {error}") from error
        self._listener.start()

    def receive(self, timeout: float) -> bytes | None:
        """Return the next event, or None after ``timeout`` seconds."""
        try:
            return self._bodies.get(timeout=max(timeout, 0))
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the subscription. Idempotent."""
        self._listener.close()
        self._on_close(self)

    def _add(self, payload: str) -> None:
        try:
            self._bodies.put_nowait(payload.encode())
        except queue.Full:
            pass
