"""Schedules requested steps, one or several at a time, until each has its outcome, or the run must leave.

Recorded outcomes come from the journal. New steps are executed: a single one on the flow's own thread, several on a
thread each. Outcomes reach the flow's code one at a time, in the order in which they were committed; so a replay, which
returns them in that order, does the same. New steps begin only when every recorded outcome was returned.

A requested step is brought to its end: completed, or failed for good. One that cannot go on now is blocked; when
nothing is at work any more and something is blocked, the run leaves with all blocks. While others are at work, a
blocked step is tried again when its time has come, when an inbox item arrives, or when the run is interrupted; a wait
that begins then is stored, so that the next owner knows since when it has lasted.

Who may run at the same time: the flow's own thread, which alone calls this module; the branches' threads, which
perform one step each (``flows.scheduler.step_threads``); and the inbox watch's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from aft.flows.orders.interrupts import Interrupts
from aft.flows.scheduler.batch import MOST_BRANCHES, StepBatch, pause_before_more
from aft.flows.scheduler.journal_end import JournalEnd
from aft.flows.scheduler.step_threads import StepThreads
from aft.flows.session.blocks import Block, Blocked, ParkNeeded, WriteFailed
from aft.flows.session.journal_replay import JournalReplay
from aft.flows.steps.request import StepRequest
from aft.flows.steps.run_session import RunSession
from aft.ids import StepPath
from aft.runs.records.journal import Entry


class StepScheduler:
    """Brings the steps of one pass over a flow's code to their outcomes. For the flow's own thread."""

    def __init__(
        self, session: RunSession, entries: list[Entry], parking: Callable[[BaseException], ParkNeeded]
    ) -> None:
        self.replay = JournalReplay(entries)
        self._session = session
        #: Steps requested by an async flow whose outcomes were not delivered yet.
        self.pending: dict[StepPath, StepRequest] = {}
        self.interrupts = Interrupts(session)
        self.journal_end = JournalEnd(session, self.replay)
        self._threads = StepThreads(session, parking)
        self._blocked = self._threads.blocked
        #: Finished steps whose outcomes were not delivered yet.
        self._undelivered: deque[StepRequest] = deque()
        self._keeps_back = False
        self.is_ending = False  #: whether the flow has returned: what it left comes to its end, with its ladder

    # Until all have their outcome ---------------------------------------------------------------------------------

    def complete(self, steps: Sequence[StepRequest], most: int | None = None) -> None:
        """Bring each step to its outcome, ``most`` at a time; raises Blocked if one is blocked.

        Once one has failed for good no more are begun, except those that an earlier owner has begun, or may have. If
        the journal goes on after such a failure, the flow has gone on without the steps that have no outcome.
        """
        if self._session.step_states.undo_orders:
            self.complete_doubted()
        goes_on = self._take_recorded(steps)
        if not goes_on:
            return
        while goes_on:
            if len(steps) != 1 or self._threads.running:
                self._complete_beside(steps, most)
            else:
                (step,) = steps
                if self._may_begin(step):
                    with self._session.step_states.branches:
                        self._threads.perform(step, None, step.perform)
                if step.blocks:
                    self._interrupt(step)
            missed = self._blocked.unblock_missed((*steps, *self.pending.values()))
            goes_on = missed and self._take_recorded(steps)
        self.check_blocks(steps)

    def _take_recorded(self, steps: Sequence[StepRequest]) -> bool:
        """Take recorded outcomes, and spread interrupts among them; False: the flow has gone on since."""
        goes_on = self._find_recorded(steps)
        for entry in [step.entry for step in steps if step.entry is not None and step.has_failed]:
            self._spread(entry, steps)
        return goes_on

    def _may_begin(self, step: StepRequest) -> bool:
        """Whether a step that is called alone has no outcome and is not blocked; an interrupt fails it now."""
        if step.entry is None:
            self.journal_end.note_reached([step], self.pending)
        return step.entry is None and not step.blocks and not self._interrupt(step)

    def complete_doubted(self) -> None:
        """Complete pending steps in doubt of a run that is undone after that; it begins no others."""
        step_states = self._session.step_states
        self.journal_end.note_unknown(self.pending)
        if step_states.undo_orders:
            for step in self.pending.values():
                if not step.running and step.entry is None and step.undoable and step_states.is_unseen(step.path):
                    self._threads.start(step)
            self.finish_all()

    def _interrupt(self, step: StepRequest, beside: Sequence[StepRequest] = (), batch: StepBatch | None = None) -> bool:
        """Fail a step that is not at work if an interrupt reaches it; return whether it does."""
        if not self.interrupts.is_pending() or not self.interrupts.reaches(step):
            return False
        begun = None if batch is None else batch.encode_begun()
        self._threads.perform(step, None, partial(self.interrupts.fail, step, begun=begun))
        if step.entry is not None:
            self._spread(step.entry, beside)
        return True

    def _spread(self, entry: Entry, steps: Iterable[StepRequest] = ()) -> None:
        """Extend an interrupt that one step has recorded to all steps beside it."""
        self.interrupts.mark_beside(entry, (*steps, *self.pending.values()))

    def complete_under(self, path: StepPath) -> None:
        """Complete all steps that cancelled tasks have begun under a savepoint."""
        inside = [step for other, step in self.pending.items() if other.startswith(f"{path}.")]
        self.drop(step for step in inside if not step.needed)
        self.interrupts.end_cancelled(inside)
        needed = [self.pending.pop(step.path) for step in inside if step.needed]
        try:
            if needed:
                self.complete(needed)
        finally:
            for step in needed:
                step.deliver_cancellation()

    def drop(self, steps: Iterable[StepRequest]) -> None:
        """Drop steps without effects that no task waits for; a replay does so at the same place."""
        for step in list(steps):
            del self.pending[step.path]
            self.replay.pass_over(step.path)
            self._session.owner.remove_wait(step.path)

    def _find_recorded(self, steps: Sequence[StepRequest]) -> bool:
        """Take recorded outcomes; False: the flow has gone on since, and there is nothing left to do."""
        for step in steps:
            if step.entry is None and not step.running:
                step.entry = self.replay.find(step.path, step.kind, step.name)
                if step.entry is not None:
                    step.check_same(step.entry)
        new = next((step for step in steps if step.entry is None and not step.running), None)
        if new is None:
            return True  # saves going through all pending steps: outcomes are delivered one by one
        if not self.replay.has_other_outcomes(beside := {other.path for other in steps} | self.pending.keys()):
            return True
        if any(step.has_failed for step in steps):
            return False
        self.journal_end.check_spent(_calls_now(new), new.path, beside)
        return True

    def _complete_beside(self, steps: Sequence[StepRequest], most: int | None) -> None:
        if any(step.entry is None for step in steps):
            self.journal_end.note_reached(steps, self.pending, most)
        batch = StepBatch(steps, most, self._session.step_states, self._threads.running)
        while True:
            self._interrupt_blocked(steps, batch)
            self._start_next(steps, batch)
            if not batch.is_at_work:
                self._keeps_back = batch.keeps_back
                return
            if (finished := self._threads.wait(steps, self.interrupts.deadline_ahead)) is None:
                for again in self._blocked.unblock(steps, self.pending.values()):
                    batch.begin_again(again)
            elif not batch.finish(finished):
                self._undelivered.append(finished)

    def _interrupt_blocked(self, steps: Sequence[StepRequest], batch: StepBatch) -> None:
        if self.interrupts.is_pending():
            for step in (step for step in steps if step.blocks and step not in self._threads.running):
                if self._interrupt(step, steps, batch):
                    batch.finish(step)

    def _start_next(self, steps: Sequence[StepRequest], batch: StepBatch) -> None:
        with self._session.step_states.branches:
            while (step := batch.next()) is not None:
                if self._interrupt(step, steps, batch):
                    batch.finish(step)
                else:
                    self._threads.start(step)

    def check_blocks(self, steps: Iterable[StepRequest]) -> None:
        """Raise Blocked if any of these is blocked; a deadline ahead bounds how long the run is released."""
        if found := [block for step in steps for block in step.blocks]:
            pause = pause_before_more(found, self._session.deps.clock.now()) if self._keeps_back else None
            raise Blocked(*found, *self.interrupts.wake_times(pause))

    # One outcome after the other ------------------------------------------------------------------------------------

    def next(self) -> StepRequest | None:
        """Return the next pending step with an outcome; None: none is pending. Raises Blocked if all are blocked."""
        while True:
            if (path := self.replay.next_of(self.pending)) is not None:
                self._find_recorded([self.pending[path]])
                return self._deliver(self.pending.pop(path))
            if self._undelivered:
                step = self._undelivered.popleft()
                if step.entry is not None and self.pending.pop(step.path, None) is not None:
                    return self._deliver(step)
                continue  # blocked, or dropped
            self._start_pending()
            self._interrupt_pending()
            if self._undelivered:
                continue
            if self._threads.running:
                if (finished := self._threads.wait(self.pending.values(), self.interrupts.deadline_ahead)) is not None:
                    self._undelivered.append(finished)
                else:
                    self._blocked.unblock(self.pending.values(), ())
            elif not self._blocked.unblock_missed(self.pending.values()):
                self.check_blocks(self.pending.values())
                return None

    def _deliver(self, step: StepRequest) -> StepRequest:
        self.interrupts.note_ended(step)
        if step.entry is not None and step.has_failed:
            self._spread(step.entry)
        return step

    def _interrupt_pending(self) -> None:
        """Fail all pending steps that are not at work and that an interrupt reaches.

        Under the owner's lock, and only when the flow has got every finished outcome: the first interrupted step must
        be the next that the flow gets, or its task might be cancelled before, and the interrupt lost.
        """
        if not self.interrupts.is_pending():
            return
        with self._session.owner.lock:
            if self._undelivered or self._threads.any_finished:
                return
            idle = (step for step in list(self.pending.values()) if step not in self._threads.running)
            for step in idle:
                if self.interrupts.reaches(step) and self.interrupts.may_fail(step):
                    self._threads.start(step, partial(self.interrupts.fail, step))

    def _start_pending(self) -> None:
        self.drop(step for step in self.pending.values() if step.is_idle)
        if not self.is_ending:
            self.interrupts.end_cancelled(self.pending.values())
        if any(isinstance(block, WriteFailed) for step in self.pending.values() for block in step.blocks):
            return
        new = [step for step in self.pending.values() if not step.running and not step.blocks and step.entry is None]
        if new:
            self.replay.check_spent(_calls_now(new[0]), self.pending)
            self.journal_end.note_reached((), self.pending)
        if new and self.interrupts.is_pending():
            new = [step for step in new if not self.interrupts.reaches(step)]
        begin = self._blocked.hold_back(new, self._session.step_states)
        self._keeps_back = len(begin) < len(new)
        with self._session.step_states.branches if len(begin) > 1 else nullcontext():
            for step in begin:
                if not step.takes_signal and (step.quick or len(self._threads.running) < MOST_BRANCHES):
                    self._threads.start(step)
            # Until one says that it cannot.
            all(map(self._take_signal, [step for step in begin if step.takes_signal]))

    def _take_signal(self, step: StepRequest) -> bool:
        """Let a step take its signal; False: the flow has to get a recorded outcome first.

        That may cancel the step's task, and the signal would be lost. Under the lock nothing is recorded meanwhile.
        """
        self._session.owner.write_held()
        with self._session.owner.lock:
            self._undelivered += self._threads.take_finished()
            if any(finished.entry is not None for finished in self._undelivered):
                return False
            self._threads.start(step)
            return step.entry is None

    def finish_all(self) -> list[Block]:
        """Wait until no branch is at work any more; return all their blocks."""
        while self._threads.running:
            if (finished := self._threads.take(None)) is not None:
                self._undelivered.append(finished)
        return list({id(b): b for step in (*self._undelivered, *self.pending.values()) for b in step.blocks}.values())


def _calls_now(step: StepRequest) -> str:
    return f"the code now calls {step.kind.value} {step.name!r} as step {step.path}"
