"""How many runs may this process execute now? A counted set of slots, taken before work is asked for."""

from __future__ import annotations

import threading

#: Seconds that one look at an empty queue, or for a free slot, takes at the most.
PATIENCE = 0.5


class Slots:
    """A number of slots. Thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._closing = False
        self._urgent = 0
        self._changed = threading.Condition()

    def free(self, timeout: float) -> int:
        """Tell how many slots are free, without taking any; wait for the first one; 0 after ``timeout``."""
        with self._changed:
            self._changed.wait_for(lambda: self._open() > 0, timeout)
            return self._open()

    def take(self, limit: int, timeout: float, *, urgent: bool = False, gather: float = 0.0) -> int:
        """Take as many free slots as there are, up to ``limit``; wait for the first one; 0 after ``timeout``.

        While somebody waits who is urgent, nobody else gets one. ``gather``: seconds to wait for more of them, a
        quarter of all or as many as are wanted: what is taken one by one costs more.
        """
        with self._changed:
            self._urgent += urgent
            self._changed.wait_for(lambda: self._open(urgent) > 0, timeout)
            if gather and self._open(urgent):
                self._changed.wait_for(lambda: self._open(urgent) >= min(limit, self.size // 4), gather)
            taken = min(limit, self._open(urgent))
            self._free -= taken
            self._urgent -= urgent
            if urgent:
                self._changed.notify_all()
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

    def _open(self, urgent: bool = False) -> int:
        return 0 if self._closing or (self._urgent and not urgent) else self._free

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until every slot is free; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free == self.size, timeout)
