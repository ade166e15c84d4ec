"""Counts how many runs this process may execute at a time; a slot is taken before a run is claimed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: The longest wait for a message or a free slot, in seconds.
PATIENCE = 0.5
#: Turns in which urgent callers go first while others wait; the next turn is the others'.
TURNS_AHEAD = 3


class Slots:
    """A fixed number of slots. Thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._closing = False
        #: The numbers of waiting callers, and how many turns urgent callers have had since the others' last one.
        self._urgent = self._others = self._ahead = 0
        self._changed = threading.Condition()

    def free(self, timeout: float) -> int:
        """Return how many slots are free, without taking any; waits for the first one; 0 after ``timeout``."""
        with self._changed, self._waiting(urgent=False):
            self._changed.wait_for(lambda: self._open() > 0, timeout)
            return self._open()

    def take(self, limit: int, timeout: float, *, urgent: bool = False, gather: float = 0.0) -> int:
        """Take as many free slots as there are, up to ``limit``; waits for the first one; 0 after ``timeout``.

        While an urgent caller waits, others get none, except in each fourth turn: otherwise they would starve.
        ``gather``: seconds to wait for more slots, a quarter of all or ``limit``: claiming runs one by one costs more.
        """
        with self._changed, self._waiting(urgent):
            self._changed.wait_for(lambda: self._open(urgent) > 0, timeout)
            if gather and self._open(urgent):
                self._changed.wait_for(lambda: self._open(urgent) >= min(limit, self.size // 4), gather)
            taken = min(limit, self._open(urgent))
            self._free -= taken
            if taken:
                self._ahead = self._ahead + 1 if urgent else 0
            return taken

    def take_all(self, timeout: float) -> int:
        """Take every slot, giving out none meanwhile; after ``timeout`` take none and return 0."""
        with self._changed:
            self._closing = True
            idle = self._changed.wait_for(lambda: self._free == self.size, timeout)
            self._closing = False
            taken = self._free if idle else 0
            self._free -= taken
            self._changed.notify_all()
            return taken

    def release(self, count: int) -> None:
        """Give slots back."""
        if count:
            with self._changed:
                self._free += count
                self._changed.notify_all()

    @contextmanager
    def _waiting(self, urgent: bool) -> Iterator[None]:
        """Count a waiting caller, under the lock; wakes the others afterwards, as one of them may be next."""
        self._urgent += urgent
        self._others += not urgent
        try:
            yield
        finally:
            self._urgent -= urgent
            self._others -= not urgent
            if self._urgent or (urgent and self._others):
                self._changed.notify_all()

    def _open(self, urgent: bool = False) -> int:
        others_are_next = self._ahead >= TURNS_AHEAD
        yields = (self._others and others_are_next) if urgent else (self._urgent and not others_are_next)
        return 0 if self._closing or yields else self._free

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until every slot is free; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free == self.size, timeout)
