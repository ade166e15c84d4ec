"""Runs the steps of one pass: quick ones on the flow's own thread, each other one on a thread of its own.

Who may run at the same time: the flow's own thread, which alone starts steps, waits for one to finish, and takes it;
the branches' threads, which perform one step each and report it in ``flows.scheduler.finished_steps``; and the inbox
watch's thread. A crash leaves steps at work without a record: the next owner finds them in doubt
(``flows.scheduler.journal_end``).
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from datetime import datetime

from aft.flows.scheduler.blocked_steps import BlockedSteps
from aft.flows.scheduler.finished_steps import FinishedSteps
from aft.flows.session import blocks
from aft.flows.session.blocks import ParkNeeded, ReleaseNeeded, StepNotBegun, explain_blocked
from aft.flows.steps.request import OnRecorded, StepRequest
from aft.flows.steps.run_session import RunSession
from aft.runs.records.journal import Entry

#: Brings a step to its outcome.
Performs = Callable[[OnRecorded | None], Entry]


class StepThreads:
    """The steps of one pass that were started. For the flow's own thread."""

    def __init__(self, session: RunSession, parking: Callable[[BaseException], ParkNeeded]) -> None:
        self._session = session
        self._parking = parking
        self._finished = FinishedSteps(session.owner)
        #: Steps that were started, and were not taken since they finished.
        self.running: set[StepRequest] = set()
        self.blocked = BlockedSteps(session.run_inbox, self.running, session.deps.clock)

    def start(self, step: StepRequest, how: Performs | None = None) -> None:
        """Perform a step, on its own thread unless it is quick; ``how`` replaces its ``perform``, and is quick."""
        step.running = True
        self.running.add(step)
        self._session.step_states.branches.begin()
        if step.quick or how is not None:
            self._run_branch(step, how or step.perform)
            return
        here, run = contextvars.copy_context(), (self._run_branch, step, step.perform)
        thread = threading.Thread(target=here.run, args=run, name=f"aft-branch-{step.path}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            step.blocks = [ReleaseNeeded(f"no thread can be started for step {step.path}: {error}")]
            self._session.step_states.branches.end()
            self._finished.put(step)

    def _run_branch(self, step: StepRequest, perform: Performs) -> None:
        on_recorded: list[Entry] = []

        def finish(entry: Entry) -> None:
            step.entry = entry
            on_recorded.append(entry)
            self._finished.put(step)

        try:
            self.perform(step, finish, perform)
        finally:
            self._session.step_states.branches.end()
            if not on_recorded:
                self._finished.put(step)

    def perform(self, step: StepRequest, finish: OnRecorded | None, perform: Performs) -> None:
        """Perform a step on this thread, until it has its outcome or is blocked; raises nothing."""
        step_states, step.arrivals_seen = self._session.step_states, self._session.run_inbox.arrivals
        if step_states.undo_orders and not (step.undoable and step_states.is_unseen(step.path)):
            step.blocks = [StepNotBegun()]
            return
        try:
            step_states.begun.check(step.path, step.kind, step.name)
            step.entry = perform(finish)
            step.blocks = ()
        except BaseException as error:
            step.blocks = explain_blocked(error, self._parking).blocks

    # Until one finishes -------------------------------------------------------------------------------------------

    @property
    def any_finished(self) -> bool:
        """Whether a started step has finished and was not taken."""
        return bool(self.running) and self._finished.any

    def wait(self, beside: Iterable[StepRequest], deadline: datetime | None) -> StepRequest | None:
        """Wait until a step finishes, and take it; None: blocked steps beside it have to be checked first.

        ``deadline`` is the run's, if it is ahead.
        """
        session, owner = self._session, self._session.owner
        if self.blocked.any_missed(beside):
            return None
        failed = self.blocked.find_failed()
        if not (owner.run.waits or failed or owner.run.deadline_at):
            return self.take(None)
        found = [block for step in (beside if owner.run.waits else failed) for block in step.blocks]
        owner.store_waits()
        limits = [*map(blocks.ends_at, found), deadline]
        due = min((limit for limit in limits if limit is not None), default=None)
        seconds = None if due is None else max(0.0, (due - session.run_inbox.now).total_seconds())
        if not any(map(blocks.is_freed_by_inbox, found)):
            return self.take(seconds)
        with session.deps.inbox_watch.over(owner.run_id, owner.read_to, self._finished.arrived):
            return self.take(seconds)

    def take(self, seconds: float | None) -> StepRequest | None:
        """Take the next step that finishes; None: an inbox item has arrived, or the time is over."""
        step = self._finished.take(seconds)
        return None if step is None else self._note([step])[0]

    def take_finished(self) -> list[StepRequest]:
        """Take all steps that have finished, without waiting."""
        return self._note(self._finished.take_all())

    def _note(self, steps: list[StepRequest]) -> list[StepRequest]:
        self.running.difference_update(steps)
        self.blocked.note_failed(steps)
        return steps
