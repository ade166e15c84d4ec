"""Chooses which of several concurrent steps begins next, within the limit of steps at a time.

Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have: an unseen
effect must not be forgotten. While a failure is not decided yet, nothing new is begun either: the run is released, and
is back soon. Steps are begun in order, up to the limit at a time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from aft.fault import FaultState
from aft.flows.session.blocks import (
    Block,
    OrdersArrived,
    ParkNeeded,
    ReleaseNeeded,
    StepFailed,
    WaitPending,
    WriteFailed,
)
from aft.flows.session.step_states import StepStates
from aft.flows.steps.request import StepRequest

#: Blocks that stop the whole run: nothing more is begun.
STOPS = (ReleaseNeeded, OrdersArrived, WriteFailed, ParkNeeded)
#: The most steps that one run executes at a time, however many the code requests.
MOST_BRANCHES = 100
#: The shortest and the longest time after which a run checks whether a failure was decided, to begin more steps.
SOON, SELDOM = timedelta(seconds=0.5), timedelta(minutes=1)


class StepBatch:
    """The steps of one call of ``parallel`` or ``map``. For the flow's own thread.

    ``at_work`` are the steps that were started and not taken since. A step's own attributes do not show that: its
    thread notes a block before it reports the end.
    """

    def __init__(
        self, steps: Sequence[StepRequest], most: int | None, step_states: StepStates, at_work: Collection[StepRequest]
    ) -> None:
        self._most = min(most or MOST_BRANCHES, MOST_BRANCHES)
        self._steps = set(steps)
        new = [step for step in steps if step.entry is None and not step.running and not step.blocks]
        begun = {step for step in new if step.path in step_states.unknown or step.was_begun()}
        final = {step for step in begun if step_states.has_failed_for_good(step.path)}
        self._begun = deque(step for step in new if step in begun and step not in final)
        self._final = deque(step for step in new if step in final)
        self._fresh = deque(step for step in new if step not in begun)
        self._running = {step for step in steps if step in at_work and step.entry is None}
        self._awaiting: set[StepRequest] = set()
        # The faults of begun steps are known before those are performed again.
        faults = {fault.state for step in begun if (fault := step_states.fault(step.path)) is not None}
        self._failed, self._undecided = bool(final), FaultState.OPEN in faults
        self._stopped = False
        for step in steps:
            self._count(step)

    @property
    def is_at_work(self) -> bool:
        """Whether any of its steps is at work."""
        return bool(self._running)

    @property
    def keeps_back(self) -> bool:
        """Whether steps are not begun only because a failure is not decided yet."""
        return bool(self._fresh) and self._undecided and not (self._failed or self._stopped)

    def encode_begun(self) -> str | None:
        """Encode the paths of the steps that were begun and have not finished; None: all were begun."""
        return json.dumps([step.path for step in (*self._running, *self._begun)]) if self._fresh else None

    def next(self) -> StepRequest | None:
        """Take the next step that may begin now; None if none may."""
        if self._stopped or len(self._running) + len(self._awaiting) >= self._most:
            return None
        # A step that was begun, or may have been, is performed in any case: it is tried, or blocked until it is due.
        if self._begun:
            step = self._begun.popleft()
        elif self._final and not self._running:
            step = self._final.popleft()
        elif self._fresh and not self._undecided and not self._failed:
            step = self._fresh.popleft()
        else:
            return None
        self._running.add(step)
        return step

    def finish(self, step: StepRequest) -> bool:
        """Note that a step has finished; False: it is not of this batch."""
        if step not in self._steps:
            return False
        self._running.discard(step)
        self._count(step)
        return True

    def begin_again(self, step: StepRequest) -> None:
        """Put a step that was blocked before all new ones."""
        self._awaiting.discard(step)
        self._begun.append(step)

    def _count(self, step: StepRequest) -> None:
        self._failed = self._failed or step.has_failed
        for block in step.blocks:
            # An awaited child is at work, though not here.
            if isinstance(block, WaitPending):
                self._awaiting.add(step)
            self._undecided = self._undecided or isinstance(block, StepFailed)
            self._stopped = self._stopped or isinstance(block, STOPS)


def pause_before_more(blocks: Iterable[Block], now: datetime) -> timedelta:
    """Return how long a run that holds steps back is released: longer, the longer a failure is undecided."""
    undecided = max((now - block.fault.raised_at for block in blocks if isinstance(block, StepFailed)), default=SOON)
    return min(max(undecided, SOON), SELDOM)
