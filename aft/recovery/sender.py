"""Publishes outbox rows right after their commit, in the background of each dispatcher process.

A thread that has committed outbox rows, which it holds, hands them over and goes on: a worker thread to its next run,
the intake to its next batch. The sender publishes all waiting rows together; a single row as soon as its thread wakes
up. Confirmed rows are deleted from time to time by another thread: a commit is a disk flush, and no caller waits for
this one.

Crash points. Before the publish, or in it: the rows are in the outbox, and when their hold expires the relay of any
process takes them. Between the confirm and the deletion: the same, so they are published twice, which consumers expect.
Nothing is known here only. So rows that do not fit in, because the broker is slow, are left in the outbox, for the
relay. A queue that confirms nothing blocks the sender once, for as long as a publish may take; from then on everything
is left to the relay for a while, which publishes to each queue separately.

Who may run at the same time: any number of threads hand over; one sends, and one deletes. At its end the process sends
what is left; rows that are handed over after that are sent on the caller's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from aft.errors import StoreError
from aft.store.outbox import OutboxRow

#: Most rows that wait to be sent; they are held for seconds only.
MOST_WAITING = 5000
#: Most rows that are published together.
MOST_AT_ONCE = 500
#: Seconds that each of the two threads waits for rows.
PATIENCE = 0.5
#: Seconds between two deletions; a small part of the time for which rows are held.
GATHER = 0.05


class RowSender(Protocol):
    """Publishes outbox rows that the caller holds, soon; what cannot be published now is left to the relay."""

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        """Publish rows, or leave them to the relay. Never raises."""


class RowPublisher(RowSender, Protocol):
    """Publishes outbox rows and deletes them, in two calls (``recovery.relay``)."""

    def try_publish(self, rows: Sequence[OutboxRow]) -> bool: ...
    def confirm(self, rows: Sequence[OutboxRow]) -> None: ...


class OutboxSender:
    """Publishes rows for the threads of one process. ``send`` and ``confirm_published`` belong to one thread each."""

    def __init__(self, relay: RowPublisher, most: int = MOST_WAITING) -> None:
        self._relay = relay
        self._most = most
        self._waiting: deque[OutboxRow] = deque()
        self._published: list[OutboxRow] = []
        lock = threading.Lock()
        #: Each has one thread that waits for it: there are rows to publish; there are published rows to delete.
        self._changed, self._confirmable = threading.Condition(lock), threading.Condition(lock)
        self._closed = False
        self._interrupted = False

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        """Queue rows to be published soon; return at once. Those that do not fit in are left to the relay."""
        if not rows:
            return
        with self._changed:
            if not self._closed:
                self._waiting.extend(rows[: max(0, self._most - len(self._waiting))])
                self._changed.notify()
                return
        self._relay.try_send(rows)

    def send(self) -> float:
        """Wait for rows, and publish those that are there."""
        rows = self._take(PATIENCE)
        if rows and self._relay.try_publish(rows):
            with self._changed:
                self._published += rows
                self._confirmable.notify()
        return 0.0

    def confirm_published(self) -> float:
        """Wait for published rows, and delete them. Raises StoreError; then the next call tries again."""
        with self._changed:
            self._confirmable.wait_for(lambda: self._published or self._interrupted or self._closed, PATIENCE)
            rows = list(self._published)
        if not rows:
            return 0.0
        self._relay.confirm(rows)
        with self._changed:
            del self._published[: len(rows)]
        return GATHER

    def close(self) -> None:
        """Publish what is left. Idempotent."""
        with self._changed:
            self._closed = True
        while self._waiting:
            self.send()
        with suppress(StoreError):
            self.confirm_published()

    def interrupt(self) -> None:
        """Stop waiting for rows: from now on, what is there is published and deleted at once."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()
            self._confirmable.notify_all()

    def _take(self, timeout: float) -> list[OutboxRow]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._interrupted, timeout)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
