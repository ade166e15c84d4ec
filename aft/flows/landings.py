"""The steps of one pass that have come to rest, in the order in which they did.

Who may run at the same time: branches' threads, which put in the step that they have performed; the thread that watches
the inbox, which says that something has come; and the flow's own thread, which alone takes them out. A step's outcome
is put in before any other of the run is recorded.
"""

from __future__ import annotations

import queue

from aft.flows.asks import Ask
from aft.runs.owner import Owner


class Landings:
    """What has come to rest in one pass, and whether something has come for the run."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        #: None: something has come into the inbox.
        self._queue: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        #: The length of the inbox, as the watch told it last.
        self._arrived_to = 0

    def put(self, ask: Ask) -> None:
        """Say that a step has its outcome, or is blocked."""
        self._queue.put(ask)

    def arrived(self, inbox_seq: int) -> None:
        """Say that something has come; on the thread that watches for all runs, which must not wait for this one."""
        self._arrived_to = inbox_seq
        self._queue.put(None)

    @property
    def any(self) -> bool:
        """Whether there is anything to be taken."""
        return not self._queue.empty()

    def take(self, seconds: float | None) -> Ask | None:
        """Wait for the next one; None: something has come, or nothing did for so long."""
        try:
            ask = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if ask is None:
            self._owner.hear(self._arrived_to)
        return ask

    def take_all(self) -> list[Ask]:
        """Take what is there, without waiting."""
        found = []
        while self.any:
            if (ask := self.take(0)) is not None:
                found.append(ask)
        return found
