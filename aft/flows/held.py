"""Deliveries that are held while their runs are executed, for some seconds at the most.

A broker gives back what a dead consumer held, at once: no other sign of a death comes as early. But it also loses its
patience with a consumer that holds one for long, and would have the run executed twice; so after a while a delivery is
acknowledged although its run goes on, and from then on the worker's lock and lease alone tell.

Two kinds of thread: the receiver, which holds, and acknowledges what is done; the runs' own, which say that they left.
Losing all of this in a crash is the purpose.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from aft.brokers.base import Delivery
from aft.clock import Clock
from aft.ids import RunId
from aft.recovery.door import Admitted
from aft.runs.rows import RunRow

#: Seconds for which a delivery is held at the most.
LONGEST = 3.0


class Held:
    """Deliveries by the run, and its epoch, that they woke. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[tuple[RunId, int], tuple[float, Delivery]] = {}
        self._done: list[Delivery] = []

    def hold(self, claimed: Iterable[RunRow], admitted: Sequence[Admitted]) -> set[int]:
        """Hold the delivery of each claimed run, from before it is executed; returns which, by their ``id()``."""
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

    def let_go(self, row: RunRow) -> None:
        """Say that a run has left."""
        with self._lock:
            if found := self._held.pop((row.id, row.epoch), None):
                self._done.append(found[1])

    def pop_done(self) -> list[Delivery]:
        """What may be acknowledged now: its run has left, or it was held long enough."""
        latest = self._clock.ticks() - LONGEST
        with self._lock:
            for place in [place for place, (since, _) in self._held.items() if since <= latest]:
                self._done.append(self._held.pop(place)[1])
            done, self._done = self._done, []
        return done
