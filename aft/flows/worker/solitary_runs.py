"""Makes room for a run that must be executed alone, because workers have died repeatedly while executing it.

If the next worker dies too, no other run suffers: the other runs here are released at their next step, until every slot
is free. One thread per process does this; a process that dies meanwhile leaves nothing behind, as nothing has been
claimed yet.
"""

from __future__ import annotations

from collections.abc import Callable

from aft import durations
from aft.flows.session.dependencies import Dependencies
from aft.flows.worker.slots import PATIENCE, Slots
from aft.recovery.lease_guard import is_leased
from aft.telemetry import logger

#: Seconds for which other runs are released, at first and at most; then they go on, until the next try.
ALONE_PATIENCE, MOST_PATIENCE = 10.0, 60.0
#: The longest back-off between two failed tries, in seconds.
LONGEST_REFUSED = 300.0


class SolitaryRuns:
    """Executes a due run that must be alone, once every slot is free; ``is_due`` returns whether there is one."""

    def __init__(
        self, deps: Dependencies, slots: Slots, is_due: Callable[[], bool], execute: Callable[[int], object]
    ) -> None:
        self._deps = deps
        self._slots = slots
        self._is_due = is_due
        self._execute = execute
        self._refused = 0

    def take(self) -> float:
        """Free every slot and execute the run in them, if there is one; return the seconds until the next check."""
        if self._deps.abandoned.is_full or not is_leased(self._deps.lease) or not self._is_due():
            return PATIENCE
        slots = self._make_room()
        if not slots:
            return self._put_off()
        self._refused = 0
        self._execute(slots)
        return 0.0

    def _make_room(self) -> int:
        """Release runs at their next step and take all slots; 0: not in time, or the run is not due any more."""
        deadline = self._deps.clock.ticks() + min(MOST_PATIENCE, self._pause())
        self._deps.making_room.set()
        try:
            while not (slots := self._slots.take_all(PATIENCE)):
                if self._deps.clock.ticks() >= deadline or self._deps.draining.is_set():
                    return 0
                if not self._is_due():
                    return 0  # another worker has claimed it
            return slots
        finally:
            self._deps.making_room.clear()

    def _put_off(self) -> float:
        """Return the seconds until the next try to make room: with back-off, unless the run is not due any more."""
        if self._deps.draining.is_set() or not self._is_due():
            return PATIENCE
        self._refused += 1
        logger.warning("no room is made for a run that must be alone: something here takes long; tried again later")
        return self._pause()

    def _pause(self) -> float:
        """Return the back-off in seconds; up to MOST_PATIENCE it is also how long a try lasts."""
        return durations.back_off(self._refused + 1, ALONE_PATIENCE, LONGEST_REFUSED)
