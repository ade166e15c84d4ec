"""A rate limit: a burst, and a number per second."""

from __future__ import annotations

import threading

from aft.clock import Clock


class Quota:
    """A token bucket: allows ``most`` at once, and ``each_second`` more per second, up to ``most``. Thread-safe."""

    def __init__(self, clock: Clock, most: int, each_second: float) -> None:
        self._clock = clock
        self._most, self._each_second = most, each_second
        self._left, self._at = float(most), clock.ticks()
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Take as many as are wanted, or as are left; return how many."""
        with self._lock:
            here = self._clock.ticks()
            self._left = min(self._most, self._left + (here - self._at) * self._each_second)
            self._at = here
            taken = min(wanted, int(self._left))
            self._left -= taken
            return taken
