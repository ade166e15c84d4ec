"""The consumer of the embedded broker: takes messages, renews their visibility, and acknowledges them.

What it holds is recorded twice: in the rows (its name, and a ``visible_at`` that it keeps ahead of the clock) and in
its memory. The rows decide. A message that is missing in its memory, after a crash or because a commit's answer was
lost, is not renewed and is redelivered when its visibility is over.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from aft import names
from aft.brokers.base import Delivery
from aft.brokers.embedded import rows
from aft.brokers.embedded.background import Background
from aft.brokers.embedded.transactions import Transactions
from aft.brokers.embedded.watch import Bell, QueueWatch
from aft.clock import SystemClock
from aft.errors import BrokerError
from aft.ids import new_id

#: Seconds to wait when other consumers were faster, or a row is locked: long enough not to spin.
BEATEN = 0.005
#: The shortest wait, in seconds, for a message that is about to become visible: the step of SQLite's clock.
GRAIN = 0.001

_log = logging.getLogger(__name__)
_ticks = SystemClock().ticks


class Tag(NamedTuple):
    """Identifies a delivery for its acknowledgement: the row, and the number of the delivery."""

    id: int
    deliveries: int


class EmbeddedConsumer:
    """Receives from queues of the database; belongs to one thread.

    At the same time may run: its own renewing thread, other consumers on the same queues in this and other
    processes, and publishers. Two consumers never get the same message while both are alive and renewing.

    What a crash leaves behind, and who picks it up: before a take has committed, nothing; after it, rows in this
    consumer's name, which any consumer takes when their visibility is over; before an acknowledgement has committed,
    the same; after it, nothing.
    """

    def __init__(
        self,
        database: Transactions,
        queues: Sequence[str],
        prefetch: int,
        *,
        visibility: float,
        watch: QueueWatch,
        bell: Bell,
        forget: Callable[[EmbeddedConsumer], None],
    ) -> None:
        self._database = database
        self._queues = tuple(dict.fromkeys(queues))
        self._named = json.dumps(self._queues)
        self._prefetch = prefetch
        self._visibility = visibility
        self._watch = watch
        self._bell = bell
        self._forget = forget
        self._name = new_id()
        self._turn = 0
        self._closed = threading.Event()
        self._interrupted = threading.Event()
        # Guards what both threads use; never held while the database is queried.
        self._lock = threading.Lock()
        self._unacknowledged: dict[int, rows.TakenMessage] = {}
        self._renewing: Background | None = None

    def receive(self, limit: int, timeout: float) -> list[Delivery]:
        end = _ticks() + timeout
        while True:
            self._check_open()
            if (room := min(limit, self._prefetch - len(self._unacknowledged))) <= 0:
                self._closed.wait(max(end - _ticks(), 0))
                return []
            mark = self._watch.mark()
            due = self._find_due()
            visible = [queue for queue, seconds in due.items() if seconds <= 0]
            if visible and (deliveries := self._take(visible, room)):
                return deliveries
            if (left := end - _ticks()) <= 0 or self._interrupted.is_set():
                self._interrupted.clear()
                return []
            self._watch.wait(mark, *_pause(left, due))

    def interrupt(self) -> None:
        self._interrupted.set()
        self._bell.ring(self._queues)

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        # Dropped before the database is asked: if that fails they are not renewed, and are redelivered.
        if ids := self._drop(deliveries):
            self._database.write(lambda connection: rows.acknowledge(connection, self._name, ids))

    def close(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            held, self._unacknowledged = self._unacknowledged, {}
            renewing = self._renewing
        if renewing is not None:
            renewing.stop()
        self._release(held)
        self._watch.close()
        self._bell.ring(self._queues)  # another thread may close it while its own still waits
        self._forget(self)

    def _check_open(self) -> None:
        if self._closed.is_set():
            queues = dict.fromkeys(names.split(queue)[0] for queue in self._queues)
            raise BrokerError(f"this consumer of {', '.join(queues)} is closed; make a new one")

    def _find_due(self) -> dict[str, float]:
        """Return the seconds until each queue's first message is due; reads only: empty queues cost no write."""
        return rows.read_due(self._database.query(rows.NEXT_DUE, self._named))

    def _take(self, visible: Sequence[str], limit: int) -> list[Delivery]:
        order = self._in_turn(visible)
        taken = self._database.write(lambda connection: self._take_from(connection, order, limit))
        self._keep(taken)
        return [
            Delivery(
                names.split(row.target)[0], row.body, redelivered=row.deliveries > 1, tag=Tag(row.id, row.deliveries)
            )
            for row in taken
        ]

    def _take_from(self, connection: Connection, order: Sequence[str], limit: int) -> list[rows.TakenMessage]:
        taken: list[rows.TakenMessage] = []
        for queue in order:
            if room := limit - len(taken):
                taken += rows.take(connection, queue, self._name, room, self._visibility)
        return taken

    def _in_turn(self, visible: Sequence[str]) -> list[str]:
        """Rotate the queues, so that a full one does not starve the others."""
        self._turn += 1
        start = self._turn % len(visible)
        return [*visible[start:], *visible[:start]]

    def _keep(self, taken: Sequence[rows.TakenMessage]) -> None:
        with self._lock:
            self._unacknowledged |= {row.id: row for row in taken}
            if taken and self._renewing is None and not self._closed.is_set():
                self._renewing = Background(f"aft-renew-{self._name[-6:]}", self._renew_in_background)

    def _drop(self, deliveries: Iterable[Delivery]) -> list[int]:
        """Stop holding these deliveries; returns the ids of those that were held."""
        tags = [delivery.tag for delivery in deliveries]
        with self._lock:
            ids = {tag.id for tag in tags if isinstance(tag, Tag) and self._is_unacknowledged(tag)}
            for id in ids:
                del self._unacknowledged[id]
        return sorted(ids)

    def _is_unacknowledged(self, tag: Tag) -> bool:
        """Return whether this very delivery is held; a redelivery of the same message is another one."""
        row = self._unacknowledged.get(tag.id)
        return row is not None and row.deliveries == tag.deliveries

    def _renew_in_background(self, thread: Background) -> None:
        while thread.pause(self._visibility / 3):
            with self._lock:
                ids = list(self._unacknowledged)
            if ids:
                self._renew(ids)

    def _renew(self, ids: Sequence[int]) -> None:
        try:
            self._database.write(lambda connection: rows.renew(connection, self._name, ids, self._visibility))
        except BrokerError as error:
            # The next renewal tries again; if all fail, the messages are redelivered to others.
            _log.warning("messages not renewed: %s", error)

    def _release(self, held: Mapping[int, rows.TakenMessage]) -> None:
        if not held:
            return
        targets = {row.target for row in held.values()}

        def release(connection: Connection) -> None:
            rows.release(connection, self._name, held)
            rows.announce(connection, targets)

        try:
            self._database.write(release)
        except BrokerError as error:
            _log.warning("messages not given back, they return after their visibility: %s", error)
        self._bell.ring(targets)


def _pause(left: float, due: Mapping[str, float]) -> tuple[float, float | None]:
    """Return the seconds to wait, until the end or the next due message, and when that is due; None: there is none."""
    soonest = min(due.values(), default=None)
    if soonest is None:
        return left, None
    if soonest <= 0:
        return min(left, BEATEN), soonest
    return min(left, max(soonest, GRAIN)), soonest
