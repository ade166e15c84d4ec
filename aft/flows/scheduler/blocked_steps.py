"""Finds blocked steps to try again while others are at work: an inbox item may be for them, or their time has come.

A step reads the inbox when it begins, and is blocked some time later. An item that another branch has found meanwhile
may be for it. So each step keeps the count of arrivals at its beginning (``StepRequest.arrivals_seen``); a blocked step
that began before the last arrival tries again.

Only the flow's own thread calls this module; the branches' threads read the same inbox at the same time, and set
``arrivals_seen`` when they begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from aft.clock import Clock
from aft.flows.session import blocks
from aft.flows.session.blocks import InboxChanged, OrdersArrived, RetryPending, StepFailed
from aft.flows.session.inbox import RunInbox
from aft.flows.session.step_states import StepStates
from aft.flows.steps.request import StepRequest

#: How long other tasks of an async flow begin steps after a failure, before the run is released for a decision.
PATIENCE = timedelta(seconds=1)


class BlockedSteps:
    """Tracks which blocked steps of one pass may have missed an inbox item. For the flow's own thread."""

    def __init__(self, run_inbox: RunInbox, running: Collection[StepRequest], clock: Clock) -> None:
        self._run_inbox = run_inbox
        self._clock = clock
        self._running = running
        #: The lowest ``arrivals_seen`` that a step may have.
        self._least_seen = 0
        #: Finished steps that have failed, and need a decision or another try.
        self._failed: set[StepRequest] = set()

    def note_failed(self, steps: Iterable[StepRequest]) -> None:
        """Note which of these finished steps have failed."""
        for step in steps:
            if any(isinstance(block, (StepFailed, RetryPending)) for block in step.blocks):
                self._failed.add(step)

    def find_failed(self) -> set[StepRequest]:
        """Return the steps that have failed and have not begun again since."""
        self._failed = {step for step in self._failed if step.blocks}
        return self._failed

    def hold_back(self, new: list[StepRequest], step_states: StepStates) -> list[StepRequest]:
        """Return the steps that an async flow begins now: no new ones while a failure waits for a decision too long.

        So the run comes to rest soon, and is released; only then is a failure decided about. Steps that an earlier
        owner has begun, or may have, are begun in any case, and so are waits.
        """
        if not self._is_patience_over():
            return new
        return [step for step in new if step.quick or step.was_begun() or step.path in step_states.unknown]

    def _is_patience_over(self) -> bool:
        undecided = [block for step in self.find_failed() for block in step.blocks if isinstance(block, StepFailed)]
        return any(self._clock.now() - block.fault.raised_at > PATIENCE for block in undecided)

    def waits(self, step: StepRequest) -> bool:
        """Whether a step's blocks may all end by an inbox item or at a certain time."""
        return bool(step.blocks) and step not in self._running and all(map(blocks.may_end, step.blocks))

    def any_missed(self, steps: Iterable[StepRequest]) -> bool:
        """Whether an inbox item has arrived since one of these steps began that is blocked now."""
        return self._run_inbox.arrivals > self._least_seen and any(map(self._has_missed, steps))

    def unblock_missed(self, steps: Iterable[StepRequest]) -> bool:
        """Unblock all steps that may have missed an inbox item; return whether there are any."""
        if (arrivals := self._run_inbox.arrivals) <= self._least_seen:
            return False
        missed = [step for step in steps if self._has_missed(step)]
        for step in missed:
            _begin_again(step)
        # Steps at work may have begun before the arrival, and may be blocked later.
        self._least_seen = min([arrivals, *(step.arrivals_seen for step in self._running)])
        return bool(missed)

    def unblock(self, steps: Iterable[StepRequest], beside: Iterable[StepRequest]) -> list[StepRequest]:
        """Read the inbox, and unblock these steps if an item came or their time has come; return them.

        Steps ``beside`` are unblocked if they have missed an item.
        """
        waiting = [step for step in steps if self.waits(step)]
        try:
            self._run_inbox.read_new()
        except InboxChanged:
            # Read by the next pass, which begins when the steps at work have ended.
            for step in waiting:
                step.blocks = [OrdersArrived()]
            return []
        self.unblock_missed([*waiting, *beside])
        for step in waiting:
            if step.blocks and all(blocks.is_over(block, self._run_inbox.now) for block in step.blocks):
                _begin_again(step)
        return [step for step in waiting if not step.blocks]

    def _has_missed(self, step: StepRequest) -> bool:
        return step.arrivals_seen < self._run_inbox.arrivals and self.waits(step)


def _begin_again(step: StepRequest) -> None:
    step.blocks, step.running = (), False
