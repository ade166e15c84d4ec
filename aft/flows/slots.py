"""How many runs may this process execute now? A counted set of slots, taken before work is asked for."""

from __future__ import annotations

import threading


class Slots:
    """A number of slots. Thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._changed = threading.Condition()

    def free(self, timeout: float) -> int:
        """Tell how many slots are free, without taking any; wait for the first one; 0 after ``timeout``."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0, timeout)
            return self._free

    def take(self, limit: int, timeout: float) -> int:
        """Take as many free slots as there are, up to ``limit``; wait for the first one; 0 after ``timeout``."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0, timeout)
            taken = min(limit, self._free)
            self._free -= taken
            return taken

    def give(self, count: int) -> None:
        """Give slots back."""
        if count:
            with self._changed:
                self._free += count
                self._changed.notify_all()

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until every slot is free; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free == self.size, timeout)
