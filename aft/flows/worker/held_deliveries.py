"""Keeps deliveries unacknowledged while their runs are executed, for at most LONGEST seconds.

A broker redelivers a dead consumer's deliveries at once: no other sign of a death comes as early. But a broker's
consumer time-out on a long-held delivery would have the run executed twice; so after a while a delivery is acknowledged
although its run goes on, and from then on only the worker's liveness lock and lease show that it is alive.

Two kinds of thread: the receiver, which holds deliveries and acknowledges those that are done; and the runs' own, which
report that their run was released. A crash loses all of this, on purpose: the broker redelivers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from aft.brokers.base import Delivery
from aft.clock import Clock
from aft.ids import RunId
from aft.recovery.admission import AdmittedMessage
from aft.runs.run_rows import RunRow

#: The longest time that a delivery is held, in seconds.
LONGEST = 3.0


class HeldDeliveries:
    """Deliveries by the run, and its epoch, that they woke. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[tuple[RunId, int], tuple[float, Delivery]] = {}
        self._done: list[Delivery] = []

    def hold(self, claimed: Iterable[RunRow], admitted: Sequence[AdmittedMessage]) -> set[int]:
        """Hold the delivery of each claimed run, before it is executed; return the held ones by their ``id()``."""
        since = self._clock.ticks()
        epochs = {row.id: row.epoch for row in claimed}
        held: set[int] = set()
        with self._lock:
            for one in admitted:
                # A second one for the same run is a duplicate.
                if (epoch := epochs.pop(one.message.run, None)) is not None:
                    self._held[one.message.run, epoch] = since, one.delivery
                    held.add(id(one.delivery))
        return held

    def mark_done(self, row: RunRow) -> None:
        """Mark a run's delivery as done: the run was released."""
        with self._lock:
            if found := self._held.pop((row.id, row.epoch), None):
                self._done.append(found[1])

    def pop_done(self) -> list[Delivery]:
        """Return deliveries to acknowledge: their runs were released, or they were held long enough."""
        latest = self._clock.ticks() - LONGEST
        with self._lock:
            for place in [place for place, (since, _) in self._held.items() if since <= latest]:
                self._done.append(self._held.pop(place)[1])
            done, self._done = self._done, []
        return done
