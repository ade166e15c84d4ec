"""How much of something is let through in a time: so much at once, and so much more with each second."""

from __future__ import annotations

import threading

from aft.clock import Clock


class Quota:
    """Lets ``most`` through at once, and ``each_second`` more as time goes by, up to ``most`` again. Thread-safe."""

    def __init__(self, clock: Clock, most: int, each_second: float) -> None:
        self._clock = clock
        self._most, self._each_second = most, each_second
        self._left, self._at = float(most), clock.ticks()
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Take as many as are wanted, or as there are; tells how many."""
        with self._lock:
            here = self._clock.ticks()
            self._left = min(self._most, self._left + (here - self._at) * self._each_second)
            self._at = here
            taken = min(wanted, int(self._left))
            self._left -= taken
            return taken
