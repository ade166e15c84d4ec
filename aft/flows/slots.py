"""How many runs may this process execute now? A counted set of slots, taken before work is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds that one look at an empty queue, or for a free slot, takes at the most.
PATIENCE = 0.5
#: Turns in which the urgent go first while others wait; the next turn is the others'.
TURNS_AHEAD = 3


class Slots:
    """A number of slots. Thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._closing = False
        #: Who waits for a slot, and how often the urgent have had one since the others had.
        self._urgent = self._others = self._ahead = 0
        self._changed = threading.Condition()

    def free(self, timeout: float) -> int:
        """Tell how many slots are free, without taking any; wait for the first one; 0 after ``timeout``."""
        with self._changed, self._waiting(urgent=False):
            self._changed.wait_for(lambda: self._open() > 0, timeout)
            return self._open()

    def take(self, limit: int, timeout: float, *, urgent: bool = False, gather: float = 0.0) -> int:
        """Take as many free slots as there are, up to ``limit``; wait for the first one; 0 after ``timeout``.

        While somebody waits who is urgent, nobody else gets one, except in each fourth turn: what is not urgent would
        wait for ever. ``gather``: seconds to wait for more of them, a quarter of all or as many as are wanted: what is
        taken one by one costs more.
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
        """Take every slot, letting nobody have one meanwhile; 0, and none, after ``timeout``."""
        with self._changed:
            self._closing = True
            idle = self._changed.wait_for(lambda: self._free == self.size, timeout)
            self._closing = False
            taken = self._free if idle else 0
            self._free -= taken
            self._changed.notify_all()
            return taken

    def give(self, count: int) -> None:
        """Give slots back."""
        if count:
            with self._changed:
                self._free += count
                self._changed.notify_all()

    @contextmanager
    def _waiting(self, urgent: bool) -> Iterator[None]:
        """Count somebody among those who wait, under the lock; whoever waits beside may be next afterwards."""
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
