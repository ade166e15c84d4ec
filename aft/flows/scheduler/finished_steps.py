"""The queue of finished steps of one pass, in the order in which they ended or were blocked.

Who may run at the same time: branches' threads, which put in the step that they have performed; the inbox watch's
thread, which reports arrivals; and the flow's own thread, which alone takes them out. A step is put in before any other
outcome of the run is recorded.
"""

from __future__ import annotations

import queue

from aft.flows.steps.request import StepRequest
from aft.runs.ownership.owner import Owner


class FinishedSteps:
    """The finished steps of one pass, and whether inbox items have arrived for the run."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        #: None: an inbox item has arrived.
        self._queue: queue.SimpleQueue[StepRequest | None] = queue.SimpleQueue()
        #: The length of the inbox, as the watch last reported it.
        self._arrived_to = 0

    def put(self, step: StepRequest) -> None:
        """Add a step that has its outcome, or is blocked."""
        self._queue.put(step)

    def arrived(self, inbox_seq: int) -> None:
        """Report an inbox item; called on the thread that watches all runs, so it never blocks."""
        self._arrived_to = inbox_seq
        self._queue.put(None)

    @property
    def any(self) -> bool:
        """Whether there is anything to take."""
        return not self._queue.empty()

    def take(self, seconds: float | None) -> StepRequest | None:
        """Wait for the next step; None: an inbox item has arrived, or the time is over."""
        try:
            step = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if step is None:
            self._owner.update_inbox_length(self._arrived_to)
        return step

    def take_all(self) -> list[StepRequest]:
        """Take all finished steps, without waiting."""
        found = []
        while self.any:
            if (step := self.take(0)) is not None:
                found.append(step)
        return found
