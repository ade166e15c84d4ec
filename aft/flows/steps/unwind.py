"""Unwinds the stack of a run: all of it, the frames under a savepoint or of one step, or those of late effects.

Frames are undone strictly one after the other, each popped in the transaction that records its undo. A crash leaves the
stack from the frame that was being undone downward; the next owner begins there. A compensator that fails raises a
fault of its own; its frame stays on top until it is undone, or a person skips it or marks it as done. Children that
have not ended are stopped first; a completed child is a frame like any other, and undoes itself as a run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from aft.compensation import stack
from aft.compensation.registry import UNKNOWN, Compensator
from aft.compensation.stack import Frame, FrameState
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.declare.activity import Activity, compensator_policy, make_compensator_probe_call
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.session.blocks import Blocked, ParkNeeded
from aft.flows.steps import attempt
from aft.flows.steps.children import Children
from aft.flows.steps.push_late_effects import find_late, take_late
from aft.flows.steps.run_session import RunSession
from aft.flows.steps.step import Given, Step
from aft.ids import StepPath
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import OwnerWrite, Recording
from aft.runs.records import late_effects as late
from aft.runs.states import Status
from aft.runs.wakes import child_runs
from aft.telemetry import FrameCompensated

#: Why a compensator is not called for an effect whose result could not be stored, or was not seen.
_UNKNOWN_RESULT = (
    "it takes the result, which is not known; undo the step by hand and say so (frame-done), "
    "or let it take `result: … | aft.Unknown`, then retry"
)


def unwind_all(session: RunSession, cause: Fault | None) -> bool:
    """Undo all that a run owes; return whether a person skipped any of its frames."""
    owner, ours = session.owner, json.dumps([session.owner.run_id])
    owner.late_checked_to = owner.inbox_seq
    questions = (stack.OWED, stack.SKIPPED, child_runs.ANY, late.OPEN)
    owed, skipped, children, arrived = owner.query([(question, ours) for question in questions])
    if children or arrived or len(owed) == stack.MOST_READ:
        unwind(session, cause, None)
        return any_skipped(owner)
    for frame in map(stack.read_frame, owed):
        _note_journal_end(session, frame)
        _undo_frame(session, frame, cause, None)
    return bool(skipped)


def any_skipped(owner: Owner) -> bool:
    """Whether any frame of a run was skipped: then it was not fully undone."""
    return bool(owner.query([(stack.SKIPPED, json.dumps([owner.run_id]))])[0])


def unwind(
    session: RunSession,
    cause: Fault | None,
    status: Status | None,
    *,
    scope: str = "",
    path: str = "",
    late: bool = False,
) -> None:
    """Undo owed frames, all or those selected; ``status`` is the run's if a compensator fails (None: unchanged)."""
    if not path and not late:
        Children(session).stop(scope)
        if not scope:
            take_late(session)
    for frame in _owed(session, scope, path, late):
        if not path and not late:
            _note_journal_end(session, frame)
        _undo_frame(session, frame, cause, status)


def undo_late(session: RunSession, cause: Fault | None) -> None:
    """Undo late effects of unrecorded steps, before the run goes on without them."""
    if find_late(session) and take_late(session):
        unwind(session, cause, Status.RECOVERING, late=True)


def undo_failed(session: RunSession, path: StepPath, cause: Fault | None) -> None:
    """Undo the effects of an activity that failed for good, before the flow's code sees the failure.

    Its frame was armed when it started; or an attempt had its effect after it was given up.
    """
    undo_late(session, cause)
    if path in session.step_states.armed:
        unwind(session, cause, Status.RECOVERING, path=path)


def undo_if_scope_undone(session: RunSession, path: StepPath) -> None:
    """Undo a step that a cancelled task executed under a savepoint after the savepoint was undone.

    It is undone before the task gets the step's outcome. A crash before that leaves a frame, which the next pass finds
    at the same place.
    """
    for scope, cause in session.undone.items():
        if path.startswith(f"{scope}."):
            unwind(session, cause, Status.RECOVERING, path=path)
            return


def _note_journal_end(session: RunSession, frame: Frame) -> None:
    """Record that a dead owner may have been undoing this frame, and has begun nothing after it.

    Not done when a single step or late effects are undone: other steps of the code may be at work then.
    """
    session.step_states.note_journal_end([] if frame.child_id is not None else [StepPath(f"{frame.path}/undo")])


def _undo_frame(session: RunSession, frame: Frame, cause: Fault | None, status: Status | None) -> None:
    if frame.child_id is not None:
        session.release_or_read_inbox()
        if (why := Children(session).undo(frame)) is not None:
            _stop(session, frame, why)
        return
    activity, compensator = _resolve(session, frame)
    if frame.state is not FrameState.OWED and frame.value is None and not activity.does_without_result:
        _park(session, frame, _UNKNOWN_RESULT)
    try:
        UndoStep(session, frame, activity, compensator, cause, status).undo()
    except CodecError as error:
        _park(session, frame, f"its stored arguments no longer fit the code: {error}")


class UndoStep(Step):
    """The compensator of one frame, executed once; ``cause`` is the failure that the run is undone for."""

    kind = FaultKind.COMPENSATOR

    def __init__(
        self,
        session: RunSession,
        frame: Frame,
        activity: Activity[Any, Any],
        compensator: Compensator,
        cause: Fault | None,
        status: Status | None,
    ) -> None:
        policy, path = compensator_policy(activity, compensator), StepPath(f"{frame.path}/undo")
        super().__init__(session, path, compensator.name, policy, compensator.fn)
        self.frame = frame
        self.activity = activity
        self.compensator = compensator
        self.cause = cause
        self.status = status

    def undo(self) -> None:
        """Run the compensator and pop its frame, or raise Blocked with a fault. Emits: FrameCompensated."""
        frame, step_states = self.frame, self._states
        self.session.release_or_read_inbox()
        step_states.check_ladder(self.path, self.status)
        self.begin(frame.key_generation)
        self.probe = make_compensator_probe_call(self.compensator, self.policy, self.kwargs, self.key)
        # A late effect may be the one that was undone already, under the same key.
        late_again = frame.state is FrameState.LATE and frame.path in step_states.undone
        self.may_have_had_effect = step_states.may_have_had_effect(self.path) or late_again
        self._probe_for_result()
        with step_states.branches, self.reporting():
            attempt.perform(self)
        if stack.is_of(frame.key_generation, self.owner.run.key_generation):
            step_states.armed.discard(frame.path)
            step_states.undone[frame.path] = step_states.undone.get(frame.path, 0) + 1
        self._deps.telemetry.emit(
            FrameCompensated(
                run=self.owner.run_id, path=frame.path, activity=frame.activity, compensator=frame.compensator
            )
        )

    def arguments(self) -> Given:
        """Decode the arguments that the compensator takes by name, of all that it may take."""
        offered, value = self._arguments_of_activity(), self.frame.value
        result = UNKNOWN if value is None else self.activity.result.decode(value)
        key = self.session.key(self.path, self.frame.key_generation)
        return (), self.compensator.arguments({**offered, "result": result, "fault": self.cause, "key": key})

    def record(self, value: Any) -> Recording:
        write = OwnerWrite(
            undone=self.frame.seq, closed_faults=self._states.closed_faults(self.path, FaultState.RESOLVED)
        )
        return Recording(write, self._states.with_signal_read(self.path, None))

    def recorded(self) -> None:
        pass

    def keep_late(self, value: Any, *, refused: bool = False) -> None:
        """Keep nothing: what returns late has undone its step, and the next try does so again under the same key."""

    def _probe_for_result(self) -> None:
        """Let the activity's probe find the result of a started activity, if the compensator has a use for it."""
        frame, only_if = self.frame, self.compensator.only_if
        if frame.state is not FrameState.ARMED or frame.value is not None:
            return
        found = self.activity.make_probe_call(frame.args or "{}", self.session.key(frame.path, frame.key_generation))
        if found is not None and only_if is not None:
            self.fn = self._undo_if_owed()
        if "result" in self.kwargs or only_if is not None:
            self.result_probe = found

    def _arguments_of_activity(self) -> dict[str, Any]:
        """Decode the arguments that the activity was called with; a parameter added since has its default."""
        codec = self.activity.arguments
        return codec.with_defaults(codec.decode(self.frame.args or "{}"))

    def _undo_if_owed(self) -> Callable[..., Any]:
        """Make the function that undoes an armed frame: it does nothing if the result that was found owes no undo."""
        fn, wants = self.compensator.fn, self.compensator.wants

        def is_owed(given: dict[str, Any]) -> bool:
            result = given.get("result", UNKNOWN)
            return result is UNKNOWN or self.compensator.is_owed({**self._arguments_of_activity(), "result": result})

        def undo(**given: Any) -> Any:
            if is_owed(given):
                return fn(**{name: value for name, value in given.items() if name in wants})
            return None

        async def undo_async(**given: Any) -> Any:
            return await undo(**given) if is_owed(given) else None

        return undo_async if inspect.iscoroutinefunction(fn) else undo


def _owed(session: RunSession, scope: str, path: str, late: bool) -> Iterator[Frame]:
    """Yield owed frames from the top, each once the one above it is popped.

    Many are read at once: while this worker owns the run no other process pushes, and undoing pushes nothing.
    """
    owner = session.owner
    # For a savepoint or a step, only this generation's frames; earlier ones are undone with the whole stack.
    generation = owner.run.key_generation if scope or path else None
    while True:
        found = owner.read(
            lambda connection: stack.owed(
                connection, owner.run_id, scope, path=path, generation=generation, late=late, limit=stack.MOST_READ
            )
        )
        yield from found
        if len(found) < stack.MOST_READ:
            return


def _resolve(session: RunSession, frame: Frame) -> tuple[Activity[Any, Any], Compensator]:
    registry = session.deps.registry
    activity = registry.activity(frame.activity)
    compensator = registry.compensator(frame.activity, frame.compensator)
    if activity is None or compensator is None:
        _park(session, frame, "this code has no such compensator; bring it back, then retry")
    return activity, compensator


def _park(session: RunSession, frame: Frame, why: str) -> NoReturn:
    _stop(
        session, frame, f"compensator {frame.compensator!r} of activity {frame.activity!r} (step {frame.path}): {why}"
    )


def _stop(session: RunSession, frame: Frame, reason: str) -> NoReturn:
    """Park at a frame: a person retries it, skips it, or undoes it by hand."""
    owner, deps = session.owner, session.deps
    place = FaultSite(
        owner.run_id, owner.epoch, StepPath(f"{frame.path}/undo"), FaultKind.COMPENSATOR, frame.compensator
    )
    fault = failures.make_fault(
        LookupError(reason), place, Policy(), deps.ladder, deps.clock.now(), state=FaultState.PARKED
    )
    before = session.step_states.fault(StepPath(f"{frame.path}/undo"))
    raise Blocked(ParkNeeded(reason, fault, () if before is None else (before.id,)))
