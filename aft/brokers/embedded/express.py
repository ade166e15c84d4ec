"""How are live events sent without ever holding up the sender? By a queue in memory and one thread.

Express messages may be lost: when nobody listens, when a listener is slow, when the sender dies. They are
never on disk. What they travel through is a :class:`Transport`: Unix sockets beside a SQLite file, channels
on PostgreSQL.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

#: Messages that wait to be sent, or to be received; the next one is dropped.
MOST_WAITING = 1000
#: Seconds that closing waits for what has not been sent yet.
DRAIN = 1.0


class Transport(Protocol):
    """Carries express messages between processes."""

    def send(self, namespace: str, body: bytes) -> None:
        """Send to whoever listens; drops what cannot be sent. Never raises. Called by one thread only."""
        ...

    def is_heard(self, namespace: str) -> bool:
        """Tell whether somebody may be listening."""
        ...

    def listen(self, namespace: str, hear: Callable[[bytes], None]) -> Callable[[], None]:
        """Call ``hear`` with each message from now on, on another thread; return what ends that.

        Raises BrokerError where that is not possible.
        """
        ...

    def close(self) -> None:
        """Let go of what ``send`` needed; called by its thread."""
        ...


class EventSender:
    """Sends on a thread of its own, begun with the first message. Thread-safe; never blocks, never raises."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def send(self, namespace: str, body: bytes) -> None:
        """Take the message along, or drop it if too many wait already."""
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                return
            self._waiting.append((namespace, body))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="aft-express", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Send what waits, but not for long, and end the thread. Harmless twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(DRAIN)
            with self._changed:
                self._waiting.clear()
            thread.join(DRAIN)

    def _run(self) -> None:
        while (message := self._next()) is not None:
            self._transport.send(*message)
        self._transport.close()

    def _next(self) -> tuple[str, bytes] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return self._waiting.popleft() if self._waiting else None


class EventBuffer:
    """Keeps what was heard until it is received; drops the newest when it is full."""

    def __init__(self, forget: Callable[[EventBuffer], None]) -> None:
        self._bodies: queue.Queue[bytes] = queue.Queue(MOST_WAITING)
        self._forget = forget
        self._end_listening: Callable[[], None] | None = None

    def open(self, transport: Transport, namespace: str) -> None:
        """Listen from now on."""
        self._end_listening = transport.listen(namespace, self._keep)

    def receive(self, timeout: float) -> bytes | None:
        try:
            return self._bodies.get(timeout=max(timeout, 0))
        except queue.Empty:
            return None

    def close(self) -> None:
        end, self._end_listening = self._end_listening, None
        if end is not None:
            end()
            self._forget(self)

    def _keep(self, body: bytes) -> None:
        try:
            self._bodies.put_nowait(body)
        except queue.Full:
            pass
