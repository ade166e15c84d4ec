"""A daemon thread that can be stopped at once while it waits for a descriptor: it waits for a second one, too."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from typing import Protocol

#: Seconds to wait for a thread's end; it ends at once unless its connection hangs.
JOIN = 5.0


class HasFileno(Protocol):
    """Any object with a file descriptor to wait for."""

    def fileno(self) -> int: ...


class Background:
    """A daemon thread that pauses or waits for a descriptor, and ends as soon as it is stopped.

    Any thread may stop it, also twice and at the same time. The work gets this object and waits with its methods.
    Nothing of it survives the process, so no crash leaves anything behind.
    """

    def __init__(self, name: str, work: Callable[[Background], None]) -> None:
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._stopping = threading.Event()
        self._stopped = threading.Lock()
        self._thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether the work shall end."""
        return self._stopping.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait this many seconds; return at once, with False, if the work shall end."""
        return not self._stopping.wait(seconds)

    def wait_for(self, source: HasFileno) -> bool:
        """Wait until there is something to read; return at once, with False, if the work shall end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            selector.register(source, selectors.EVENT_READ)
            selector.select()
        return not self.stopping

    def stop(self) -> None:
        """End the work and wait up to ``JOIN`` seconds for its end. Idempotent."""
        with self._stopped:
            if self.stopping:
                return
            self._stopping.set()
            self._wake_sender.send(b"!")
            self._thread.join(JOIN)
            if not self._thread.is_alive():
                self._wake_receiver.close()
                self._wake_sender.close()
