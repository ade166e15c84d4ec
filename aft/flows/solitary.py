"""Making room for a run that must be executed alone, because workers have died on it again and again.

It alone shall suffer if the next worker dies too: the other runs here are let go at their next step, until every slot
is free. One thread at a time does this in a process; a process that dies meanwhile leaves nothing behind, for nothing
has been claimed yet.
"""

from __future__ import annotations

from collections.abc import Callable

from aft.flows.slots import PATIENCE, Slots
from aft.flows.tools import Tools
from aft.recovery.keeper import is_leased
from aft.telemetry import logger

#: Seconds for which other runs are let go, at first and at the most; then they go on, and it is tried again.
ALONE_PATIENCE, MOST_PATIENCE = 10.0, 60.0
#: Seconds between two tries that fail, at the most.
LONGEST_REFUSED = 300.0


class Solitary:
    """Takes a due run that must be alone, once every slot is free; ``is_due`` says whether there is such a run."""

    def __init__(
        self, tools: Tools, slots: Slots, is_due: Callable[[], bool], execute: Callable[[int], object]
    ) -> None:
        self._tools = tools
        self._slots = slots
        self._is_due = is_due
        self._execute = execute
        self._refused = 0

    def take(self) -> float:
        """Free every slot and execute the run in them, if there is one; return the seconds until the next look."""
        if self._tools.abandoned.is_full or not is_leased(self._tools.lease) or not self._is_due():
            return PATIENCE
        slots = self._make_room()
        if not slots:
            return self._put_off()
        self._refused = 0
        self._execute(slots)
        return 0.0

    def _make_room(self) -> int:
        """Let runs go at their next step until every slot is free, and take all; 0: not in time, or it is gone."""
        deadline = self._tools.clock.ticks() + min(MOST_PATIENCE, self._pause())
        self._tools.making_room.set()
        try:
            while not (slots := self._slots.take_all(PATIENCE)):
                if self._tools.clock.ticks() >= deadline or self._tools.draining.is_set():
                    return 0
                if not self._is_due():
                    return 0  # somebody else was quicker
            return slots
        finally:
            self._tools.making_room.clear()

    def _put_off(self) -> float:
        """Say when it is tried again to make room: later each time, unless nobody needed it any more."""
        if self._tools.draining.is_set() or not self._is_due():
            return PATIENCE
        self._refused += 1
        logger.warning("no room is made for a run that must be alone: something here takes long; tried again later")
        return self._pause()

    def _pause(self) -> float:
        """Seconds after which it is tried again, and, up to a bound, for which: somebody's steps may all take long."""
        return min(LONGEST_REFUSED, ALONE_PATIENCE * 2.0**self._refused)
