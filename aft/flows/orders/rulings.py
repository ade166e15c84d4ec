"""Applies an exlet's ruling about a step, which is stored in the step's fault.

A ruling that ends the step is journaled here, so a replay agrees. One that lets it go on, perhaps with other arguments,
is left to ``ActivityStep``. A crash before the journal entry leaves the ruling in the fault; the next owner applies
it.

A step that a lost worker may have begun is not executed when a ruling ends it, so it stays unknown whether it had its
effect. Its undo is owed from then on, as if its activity had ``when="started"``: the frame is pushed before the outcome
is journaled. A failed step is undone before the flow's code sees the failure, a completed one with the run. A crash
between the two writes leaves the frame, which the next owner finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aft.compensation import stack
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.course.divergence import check_arguments
from aft.flows.declare.activity import Activity
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.session.blocks import Blocked, InboxChanged, ParkNeeded, RunRemoved
from aft.flows.session.savepoint_orders import choose_order
from aft.flows.steps.activity_step import ActivityStep
from aft.flows.steps.request import OnRecorded
from aft.flows.steps.run_session import RunSession
from aft.flows.steps.unwind import unwind
from aft.ids import StepPath
from aft.rules.cases import step_snapshot
from aft.runs.records.journal import Entry, Outcome
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.states import Status


def perform(
    session: RunSession,
    activity: Activity[Any, Any],
    path: StepPath,
    scope: str,
    args: str,
    given: str,
    on_recorded: OnRecorded | None,
) -> Entry:
    """Bring a step to its outcome: by its ruling, or by executing it.

    ``given`` are the arguments that the code gives, without those left to their defaults.
    """
    if not session.step_states.was_begun(path):
        return ActivityStep(session, activity, path, scope, args, given, on_recorded).execute()
    args = _as_begun(session, activity, path, args, given)
    step = ActivityStep(session, activity, path, scope, args, given, on_recorded)
    if (entry := _apply_ruling(step)) is not None:
        return entry
    step.stored = _arguments(step)
    return step.execute()


def _as_begun(session: RunSession, activity: Activity[Any, Any], path: StepPath, args: str, given: str) -> str:
    """Return the arguments of a step: those that it was begun with, if known, as they go with the same key.

    They are in its fault, or in its armed frame; without either it begins with the present ones. A changed default
    applies only to steps that begin: otherwise the service would see two payments under one key, while the compensator
    gets the frame's arguments. Raises ReplayDiverged if the code gives other arguments than then.
    """
    fault = session.step_states.fault(path)
    try:
        begun = [] if fault is None or fault.name != activity.name else [step_snapshot.read_snapshot(fault).args]
        changed = step_snapshot.changes(fault)
    except (ValueError, TypeError):
        return args  # the fault's snapshot cannot be decoded: treated as missing
    called, made = f"activity {activity.name!r}", args
    for recorded in [*begun, *_armed_with(session, activity, path)]:
        if recorded is not None and recorded != args:
            check_arguments(f"step {path}", called, activity.arguments, recorded, args, changed, given=given)
            made = _put_back(activity, made, recorded)
    return made


def _armed_with(session: RunSession, activity: Activity[Any, Any], path: StepPath) -> list[str | None]:
    owner = session.owner
    if path not in session.step_states.armed:
        return []
    generation = owner.run.key_generation
    frames = owner.read(lambda connection: stack.owed(connection, owner.run_id, path=path, generation=generation))
    return [frame.args for frame in frames if frame.activity == activity.name]


def _put_back(activity: Activity[Any, Any], args: str, recorded: str) -> str:
    """Return the recorded arguments, plus those of parameters that the activity got since."""
    known = {name: value for name, value in json.loads(recorded).items() if name in activity.arguments.names}
    return json.dumps({**json.loads(args), **known})


def _apply_ruling(step: ActivityStep) -> Entry | None:
    """Journal the decision about a step; None: it is to be executed."""
    session, path = step.session, step.path
    fault = session.step_states.decided_fault(path)
    if fault is None:
        return None
    ruling = Ruling.decode(fault.ruling)
    if fault.state is FaultState.FINAL:
        return _end(step, fault, ruling)
    session.release_or_read_inbox()
    session.step_states.check_ladder(path, Status.RECOVERING)
    had = step_snapshot.read_snapshot(fault)
    if ruling.do is RulingAction.GO and had.result is not None:
        step.stored = had.args or step.stored
        with _fitting(fault):
            return step.record_result(json.dumps(ruling.result[0]) if ruling.result else had.result, executed=True)
    if ruling.do in (RulingAction.RESTART, RulingAction.AGAIN) and path in session.step_states.armed:
        unwind(session, fault, Status.RECOVERING, path=path)
        session.step_states.note_known(path)
    return None


def _arguments(step: ActivityStep) -> str:
    """Return the arguments that a step is executed with: its own, with a rule's changes."""
    changed = step_snapshot.changes(step.session.step_states.fault(step.path))
    if not changed:
        return step.stored
    made, codec = json.dumps({**json.loads(step.stored), **changed}), step.activity.arguments
    try:
        codec.call_arguments(codec.decode(made))
    except CodecError as error:
        raise Blocked(_parks(step, error)) from error
    return made


def _parks(step: ActivityStep, error: CodecError) -> ParkNeeded:
    """Return the block for a rule's arguments that the activity cannot take; a retry uses the step's own."""
    owner, deps, path, policy = step.owner, step.session.deps, step.path, step.policy
    failed = step.session.step_states.failures(path)
    place = FaultSite(owner.run_id, owner.epoch, path, FaultKind.ACTIVITY, step.name, failed)
    now, ladder = deps.clock.now(), deps.ladder_of(policy)
    fault = failures.make_fault(error, place, policy, ladder, now, state=FaultState.PARKED)
    why = f"the arguments that a rule has given to {step.name!r} (step {path}) do not fit: {error}"
    before = step.session.step_states.fault(path)
    return ParkNeeded(f"{why}; change the rule, then retry", fault, () if before is None else (before.id,))


def _end(step: ActivityStep, fault: Fault, ruling: Ruling) -> Entry:
    """Journal the end of a step that a ruling or the end of its ladder has decided."""
    session, path = step.session, step.path
    if ruling.do is RulingAction.REMOVE and not _is_branch(session, path, step.scope):
        raise Blocked(RunRemoved(ruling.why))
    if session.step_states.is_unseen(path):
        step.arm()
        if ruling.do is RulingAction.FAIL and choose_order(session.owner, path) is not None:
            # The exlet has a savepoint undone that the step is in: now that its own undo is owed it may be interrupted.
            session.step_states.note_known(path)
            raise InboxChanged
    if ruling.do is RulingAction.COMPLETE:
        with _fitting(fault):
            return step.record_result(json.dumps(ruling.result[0] if ruling.result else None), executed=False)
    if ruling.do is RulingAction.PARK:
        raise Blocked(ParkNeeded(ruling.why, fault, (), reopens=True))
    return step.record_failure(fault, _OUTCOMES.get(ruling.do or RulingAction.FAIL, Outcome.FAILED))


@contextmanager
def _fitting(fault: Fault) -> Iterator[None]:
    """Park if a rule's result is not one that the activity could return; a retry starts the step again."""
    try:
        yield
    except CodecError as error:
        why = f"the result that a rule has given to {fault.name!r} (step {fault.path}) does not fit: {error}"
        raise Blocked(ParkNeeded(f"{why}; change the rule, then retry", fault, (), reopens=True)) from error


_OUTCOMES = {RulingAction.PROCEED: Outcome.PROCEED, RulingAction.REMOVE: Outcome.REMOVED}


def _is_branch(session: RunSession, path: StepPath, scope: str) -> bool:
    """Whether a step is a call of a parallel step, or under a task of an async flow."""
    return scope in session.widths or any(path.startswith(f"{branch}.") for branch in session.branches)
