"""Who publishes at once, without keeping anybody waiting? The sender of each dispatcher process.

Whoever has committed outbox rows, which it holds, hands them over and goes on: a run's thread to its next run, the
intake to its next batch. The sender takes all that is waiting and publishes it together. Alone, a message is on its way
as soon as the thread wakes up. What was confirmed is deleted now and then, by another thread: a commit is a flush of
the disk, and nobody waits for this one.

Crash points. Before the publish, or in it: the rows are in the outbox, and when their hold is over the relay of any
process takes them. Between the confirm and the deletion: the same, so they are published twice, which consumers expect.
Nothing that waits here is known here only. So what does not fit in, because the broker is slow, is not waited for: it
is left in the outbox, for the relay. A queue that confirms nothing holds the sender up once, for as long as a publish
may take; from then on everything is the relay's for a while, which asks each queue apart.

Who may run at the same time: any number of threads hand over; one sends, and one deletes. At its end the process sends
what is left; what is handed over after that is sent by whoever brings it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from aft.errors import StoreError
from aft.store.outbox import OutboxRow

#: Rows that wait to be sent, at the most; they are held for seconds only.
MOST_WAITING = 5000
#: Rows that are published together, at the most.
MOST_AT_ONCE = 500
#: Seconds that one look at an empty queue takes.
PATIENCE = 0.5
#: Seconds between two deletions; a small part of the time for which rows are held.
GATHER = 0.05


class Sends(Protocol):
    """Publishes outbox rows that the caller holds, soon; what cannot be published now is the relay's to do."""

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        """Never raises."""


class Publishes(Sends, Protocol):
    """Publishes outbox rows, and deletes them, each apart (``recovery.relay``)."""

    def try_publish(self, rows: Sequence[OutboxRow]) -> bool: ...
    def confirm(self, rows: Sequence[OutboxRow]) -> None: ...


class OutboxSender:
    """Sends rows for the threads of one process. ``send`` and ``tidy`` belong to one thread each, the rest to any."""

    def __init__(self, relay: Publishes, most: int = MOST_WAITING) -> None:
        self._relay = relay
        self._most = most
        self._waiting: deque[OutboxRow] = deque()
        self._published: list[OutboxRow] = []
        self._changed = threading.Condition()
        self._closed = False
        self._interrupted = False

    def try_send(self, rows: Sequence[OutboxRow]) -> None:
        """Have rows published soon; returns at once. Those that do not fit in are left to the relay."""
        if not rows:
            return
        with self._changed:
            if not self._closed:
                self._waiting.extend(rows[: max(0, self._most - len(self._waiting))])
                self._changed.notify()
                return
        self._relay.try_send(rows)

    def send(self) -> float:
        """Wait for rows, and publish all that there are."""
        rows = self._take(PATIENCE)
        if rows and self._relay.try_publish(rows):
            with self._changed:
                self._published += rows
        return 0.0

    def tidy(self) -> float:
        """Delete what was published since the last time. Raises StoreError; then it is tried again."""
        with self._changed:
            rows = list(self._published)
        if rows:
            self._relay.confirm(rows)
            with self._changed:
                del self._published[: len(rows)]
        return GATHER

    def close(self) -> None:
        """Send what is left. Harmless twice."""
        with self._changed:
            self._closed = True
        while self._waiting:
            self.send()
        with suppress(StoreError):
            self.tidy()

    def interrupt(self) -> None:
        """Wait for rows no more: from now on only those are sent that there are."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def _take(self, timeout: float) -> list[OutboxRow]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._interrupted, timeout)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
