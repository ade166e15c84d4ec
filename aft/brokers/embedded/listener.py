"""Wakes consumers of other processes by PostgreSQL's LISTEN and NOTIFY, on connections outside the pool.

Notifications are an optimization: one that is lost costs time, never a message. A pooler that shares connections
between transactions delivers none; consumers then find new work by polling once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import psycopg
from psycopg import sql
from sqlalchemy import Engine

from aft import durations
from aft.brokers.embedded.background import Background
from aft.store.postgres.dedicated_connection import DedicatedConnection, connect

#: The longest back-off, in seconds, before a lost connection is made again; the first one is a twentieth of that.
RECONNECT = 2.0

_log = logging.getLogger(__name__)


class Listener:
    """Calls ``on_payload`` with each payload of a channel, on a thread of its own, until it is closed.

    A lost connection is made again, with back-off; ``on_connected`` is called whenever it listens again, because
    notifications in between are lost. A crash leaves nothing behind: the server drops a listener with its connection.
    """

    def __init__(
        self,
        engine: Engine,
        channel: str,
        on_payload: Callable[[str], None],
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._on_payload = on_payload
        self._on_connected = on_connected
        self._connection: DedicatedConnection | None = None
        self._thread: Background | None = None

    def connect(self) -> None:
        """Connect and LISTEN; payloads sent after this returned are handled once the thread runs."""
        connection = connect(self._engine)
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error:
            connection.close()
            raise
        self._connection = connection

    def start(self) -> None:
        """Start the thread; it connects by itself if need be."""
        self._thread = Background(f"aft-listen-{self._channel}", self._run)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._thread is not None:
            self._thread.stop()

    def _run(self, thread: Background) -> None:
        failures = 0
        while not thread.stopping:
            try:
                self._reconnect()
                failures = 0
                self._receive_until_stopped(thread)
            except psycopg.Error as error:
                _log.info("listening interrupted: channel=%s error=%s", self._channel, error)
                failures += 1
                thread.pause(durations.back_off(failures, RECONNECT / 20, RECONNECT, spread=0.5))
            finally:
                self._disconnect()

    def _reconnect(self) -> None:
        if self._connection is None:
            self.connect()
        self._on_connected()

    def _receive_until_stopped(self, thread: Background) -> None:
        connection = self._connection
        assert connection is not None
        # psycopg's own generator cannot be interrupted; it waits out its time.
        while thread.wait_for(connection):
            connection.pgconn.consume_input()
            while (note := connection.pgconn.notifies()) is not None:
                self._on_payload(note.extra.decode())

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
