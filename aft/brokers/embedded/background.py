"""How does a thread that waits for a descriptor end at once? It waits for a second one, too."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from typing import Protocol

#: Seconds to wait for a thread's end; it ends at once unless its connection hangs.
JOIN = 5.0


class HasFileno(Protocol):
    """Anything that can be waited for."""

    def fileno(self) -> int: ...


class Background:
    """A daemon thread that pauses or waits for a descriptor, and ends as soon as somebody stops it.

    Anybody may stop it, also twice and at the same time. The work is handed this object and does its waiting
    with it. Nothing of it survives the process, so no crash leaves anything behind.
    """

    def __init__(self, name: str, work: Callable[[Background], None]) -> None:
        self._hears, self._says = socket.socketpair()
        self._stopping = threading.Event()
        self._stopped = threading.Lock()
        self._thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether the work shall end."""
        return self._stopping.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait so long; return at once, with False, if the work shall end."""
        return not self._stopping.wait(seconds)

    def wait_for(self, source: HasFileno) -> bool:
        """Wait until there is something to read; return at once, with False, if the work shall end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._hears, selectors.EVENT_READ)
            selector.register(source, selectors.EVENT_READ)
            selector.select()
        return not self.stopping

    def stop(self) -> None:
        """End the work and wait for its end. Harmless twice."""
        with self._stopped:
            if self.stopping:
                return
            self._stopping.set()
            self._says.send(b"!")
            self._thread.join(JOIN)
            if not self._thread.is_alive():
                self._hears.close()
                self._says.close()
