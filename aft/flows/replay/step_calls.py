"""Turns a call in a flow's code into a numbered step, and the step's outcome into what the code gets.

For the flow's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from aft.flows.course.scopes import Scope, find_scope
from aft.flows.declare.activity import Activity
from aft.flows.declare.calls import Call, Pivot
from aft.flows.declare.no_result import FAILED, REMOVED
from aft.flows.exceptions import failures
from aft.flows.orders import rulings
from aft.flows.replay.exits import PassExit
from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.session.blocks import BranchRemoved
from aft.flows.steps import marks
from aft.flows.steps.activity_step import NOT_EXECUTED
from aft.flows.steps.request import Raises, Returns, StepRequest
from aft.flows.steps.run_session import RunSession
from aft.flows.steps.unwind import undo_failed, undo_if_scope_undone, undo_late, unwind
from aft.flows.steps.waits import WaitSteps
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.states import Status


class StepCalls:
    """The calls of one pass; ``now`` and ``last_seq`` are the time and the ``seq`` of the last outcome that it got."""

    def __init__(self, session: RunSession, scheduler: StepScheduler, exit: PassExit) -> None:
        self._session = session
        self._scheduler = scheduler
        self._exit = exit
        self._waiting = WaitSteps(session)
        self.now, self.last_seq = session.owner.run.started_at or session.owner.run.created_at, 0

    def request(self, call: Call[Any], scope: Scope | None = None) -> StepRequest:
        """Number a step; raises CodecError for arguments that cannot be stored, before anything has happened."""
        scope, target = scope or find_scope(), call.target
        if isinstance(target, Activity):
            args, given = target.arguments.encode_call(call.args, call.kwargs)
            made = self._activity(target, scope.next(), scope.path, args, given)
        elif isinstance(target, Pivot):
            made = marks.pivot(self._session, scope.next(), scope.path)
        else:
            made = self._waiting.make_step(call, scope.next(), scope.path)
        self._scheduler.interrupts.note_task(made, *self._session.course.note_request(made.path))
        self._exit.renewal.note(made)
        return made

    def _activity(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str, given: str) -> StepRequest:
        perform = partial(rulings.perform, self._session, activity, path, scope, args, given)

        def read(entry: Entry) -> Returns:
            return Returns(activity.result.decode(entry.value or "null"))

        step = StepRequest(path, EntryKind.ACTIVITY, activity.name, perform, read)
        step.args, step.given, step.arguments = args, given, activity.arguments
        step.undoable, step.is_traced = activity.compensator is not None, activity.is_traced
        step.was_begun = lambda: self._session.step_states.was_begun(path)
        return step

    def complete(self, steps: Sequence[StepRequest], most: int | None = None) -> list[Any]:
        """Return each step's result; when all have ended, the first failure is raised, as its own class."""
        try:
            self._scheduler.complete(steps, most)
        except BaseException as error:
            self._exit.leave(error)
        self._exit.guard(lambda: self._end_interrupted(steps))
        ended = [(step.entry.seq, place) for place, step in enumerate(steps) if step.entry is not None]
        outcomes = {steps[place].path: self.read_outcome(steps[place]) for _, place in sorted(ended)}
        if failed := [outcome for outcome in outcomes.values() if isinstance(outcome, Raises)]:
            raise failed[0].error
        return [outcome.value for step in steps if isinstance(outcome := outcomes[step.path], Returns)]

    def read_outcome(self, step: StepRequest) -> Returns | Raises:
        """Return what the flow's code gets for an outcome; the effects of a failed step are undone before."""
        entry = step.entry
        assert entry is not None
        self.now, self.last_seq = entry.recorded_at, entry.seq
        outcome = self._exit.guard(lambda: self._read(step, entry))
        if step.is_dropped:
            self._session.course.drop(step.path)
        elif isinstance(outcome, Raises):
            self._exit.renewal.fail(step)
            self._session.course.note_failure(outcome.error, step.path)
        return outcome

    def _read(self, step: StepRequest, entry: Entry) -> Returns | Raises:
        if entry.fault_id is None:
            if entry.key_generation == NOT_EXECUTED:
                undo_late(self._session, None)  # a rule has given its result
            undo_if_scope_undone(self._session, step.path)
            return step.read(entry)
        failure = self._session.find_failure(entry)
        undo_failed(self._session, step.path, failures.fault_of(failure))
        if entry.interrupt is not None and step.kind is EntryKind.CHILD:
            self._end_interrupted([step])
            unwind(self._session, failures.fault_of(failure), Status.RECOVERING, path=step.path)
        if entry.outcome is Outcome.PROCEED:
            return Returns(FAILED)
        if entry.outcome is Outcome.REMOVED:
            return Raises(BranchRemoved()) if step.future is not None else Returns(REMOVED)
        return Raises(failure)

    def _end_interrupted(self, steps: Iterable[StepRequest]) -> None:
        """Stop children of interrupted steps; raises Blocked until they have ended."""
        found = [(step.path, step.entry) for step in steps if step.kind is EntryKind.CHILD]
        self._waiting.children.end_interrupted([path for path, entry in found if entry and entry.interrupt is not None])
