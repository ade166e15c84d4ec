"""Obeying what an exlet has made of a step: its ruling lies in the step's fault.

What ends the step is journaled here, so a replay agrees. What lets it go on, with other arguments perhaps, is left to
the stepper. A crash before the journal has it leaves the ruling in the fault; the next owner obeys it.

A step that a lost worker may have begun is not executed when a ruling ends it, so nobody learns whether it had its
effect. Its undo is owed from then on, as if its activity said ``when="started"``: the frame is pushed before the
outcome is journaled. One that has failed is undone before the flow hears of it, and one that was completed with the
run. A crash between the two leaves the frame, which the next owner finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aft.compensation import stack
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures
from aft.flows.activity import Activity
from aft.flows.asks import Landed
from aft.flows.divergence import check_arguments
from aft.flows.failures import FaultSite
from aft.flows.forward import Forward
from aft.flows.leaving import Leave, NewMail, Parks, Removes
from aft.flows.reaching import choose_order
from aft.flows.steps import Stepper
from aft.flows.unwind import unwind
from aft.ids import StepPath
from aft.rules import kept
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.rulings import Do, Ruling
from aft.runs.states import Status


def perform(
    forward: Forward,
    activity: Activity[Any, Any],
    path: StepPath,
    scope: str,
    args: str,
    given: str,
    landed: Landed | None,
) -> Entry:
    """Bring a step to its outcome: as was decided about it, or by executing it.

    ``given`` are those of its arguments that the code gives, and does not leave to their defaults.
    """
    args = _as_begun(forward.stepper, activity, path, args, given)
    entry = _obey(forward, activity, path, scope, args, given, landed)
    if entry is not None:
        return entry
    made = _arguments(forward.stepper, activity, path, args)
    return forward.execute(activity, path, scope, made, landed, asked=given)


def _as_begun(stepper: Stepper, activity: Activity[Any, Any], path: StepPath, args: str, given: str) -> str:
    """The arguments of a step: those that it was begun with, if that is known, as they go with the same key.

    Its fault, or its armed frame, tells that; without either nobody knows, and it is begun with those of now. A default
    that has changed since counts only for steps that begin: the service would see two payments under one key, and the
    compensator gets what the frame has. Raises ReplayDiverged if the code gives other arguments than then.
    """
    fault = stepper.standing.fault(path)
    try:
        begun = [] if fault is None or fault.name != activity.name else [kept.read(fault).args]
        changed = kept.changes(fault)
    except (ValueError, TypeError):
        return args  # what it kept cannot be read: then it tells nothing either
    called, made = f"activity {activity.name!r}", args
    for recorded in [*begun, *_armed_with(stepper, activity, path)]:
        if recorded is not None and recorded != args:
            check_arguments(f"step {path}", called, activity.arguments, recorded, args, changed, given=given)
            made = _put_back(activity, made, recorded)
    return made


def _armed_with(stepper: Stepper, activity: Activity[Any, Any], path: StepPath) -> list[str | None]:
    owner = stepper.owner
    if path not in stepper.standing.armed:
        return []
    generation = owner.run.key_generation
    frames = owner.read(lambda connection: stack.owed(connection, owner.run_id, path=path, generation=generation))
    return [frame.args for frame in frames if frame.activity == activity.name]


def _put_back(activity: Activity[Any, Any], args: str, recorded: str) -> str:
    """The arguments that were recorded, with those of parameters that the activity got since."""
    known = {name: value for name, value in json.loads(recorded).items() if name in activity.arguments.names}
    return json.dumps({**json.loads(args), **known})


def _obey(
    forward: Forward,
    activity: Activity[Any, Any],
    path: StepPath,
    scope: str,
    args: str,
    given: str,
    landed: Landed | None,
) -> Entry | None:
    """Journal what was decided about a step; None: it is to be executed."""
    stepper = forward.stepper
    fault = stepper.standing.decided_fault(path)
    if fault is None:
        return None
    ruling = Ruling.decode(fault.ruling)
    if fault.state is FaultState.FINAL:
        return _end(forward, activity, path, scope, args, given, fault, ruling, landed)
    stepper.check_may_go_on()
    stepper.standing.check_ladder(path, Status.RECOVERING)
    had = kept.read(fault)
    if ruling.do is Do.GO and had.result is not None:
        value = json.dumps(ruling.result[0]) if ruling.result else had.result
        with _fitting(fault):
            return forward.record_result(
                activity, path, scope, had.args or args, value, landed, executed=True, asked=given
            )
    if ruling.do in (Do.RESTART, Do.AGAIN) and path in stepper.standing.armed:
        unwind(stepper, fault, Status.RECOVERING, path=path)
        stepper.standing.saw(path)
    return None


def _arguments(stepper: Stepper, activity: Activity[Any, Any], path: StepPath, args: str) -> str:
    """The arguments that a step is executed with: its own, or what a rule has made of them."""
    changed = kept.changes(stepper.standing.fault(path))
    if not changed:
        return args
    made = json.dumps({**json.loads(args), **changed})
    try:
        activity.arguments.call_arguments(activity.arguments.decode(made))
    except CodecError as error:
        raise Leave(_parks(stepper, activity, path, error)) from error
    return made


def _parks(stepper: Stepper, activity: Activity[Any, Any], path: StepPath, error: CodecError) -> Parks:
    """Park where a rule has given arguments that the activity cannot take; a retry begins with the step's own."""
    owner, tools, policy = stepper.owner, stepper.tools, activity.policy
    failed = stepper.standing.failures(path)
    place = FaultSite(owner.run_id, owner.epoch, path, FaultKind.ACTIVITY, activity.name, failed)
    now, ladder = tools.clock.now(), tools.ladder_of(policy)
    fault = failures.describe(error, place, policy, ladder, now, state=FaultState.PARKED)
    why = f"the arguments that a rule has given to {activity.name!r} (step {path}) do not fit: {error}"
    before = stepper.standing.fault(path)
    return Parks(f"{why}; change the rule, then retry", fault, () if before is None else (before.id,))


def _end(
    forward: Forward,
    activity: Activity[Any, Any],
    path: StepPath,
    scope: str,
    args: str,
    given: str,
    fault: Fault,
    ruling: Ruling,
    landed: Landed | None,
) -> Entry:
    stepper = forward.stepper
    if ruling.do is Do.REMOVE and not _is_branch(stepper, path, scope):
        raise Leave(Removes(ruling.why))
    if stepper.standing.is_unseen(path):
        forward.arm(activity, path, scope, args)
        if ruling.do is Do.FAIL and choose_order(stepper.owner, path) is not None:
            # The exlet has a savepoint undone that the step is in: now that its own undo is owed it may be interrupted.
            stepper.standing.saw(path)
            raise NewMail
    if ruling.do is Do.COMPLETE:
        value = json.dumps(ruling.result[0] if ruling.result else None)
        with _fitting(fault):
            return forward.record_result(activity, path, scope, args, value, landed, executed=False, asked=given)
    if ruling.do is Do.PARK:
        raise Leave(Parks(ruling.why, fault, (), reopens=True))
    entry = Entry(
        path,
        scope,
        EntryKind.ACTIVITY,
        activity.name,
        _OUTCOMES.get(ruling.do or Do.FAIL, Outcome.FAILED),
        stepper.tools.clock.now(),
        fault.attempt,
        args=args,
        fault_id=fault.id,
        key_generation=stepper.generation(path),
        asked=None if given == args else given,
    )
    recorded = stepper.record(entry, landed=landed)
    stepper.standing.passed(path)
    return recorded


@contextmanager
def _fitting(fault: Fault) -> Iterator[None]:
    """Park where a rule has given a result that the activity could not return; a retry begins the step anew."""
    try:
        yield
    except CodecError as error:
        why = f"the result that a rule has given to {fault.name!r} (step {fault.path}) does not fit: {error}"
        raise Leave(Parks(f"{why}; change the rule, then retry", fault, (), reopens=True)) from error


_OUTCOMES = {Do.PROCEED: Outcome.PROCEED, Do.REMOVE: Outcome.REMOVED}


def _is_branch(stepper: Stepper, path: StepPath, scope: str) -> bool:
    """Whether a step is one of several side by side: a call of a parallel step, or under a task of an async flow."""
    return scope in stepper.widths or any(path.startswith(f"{branch}.") for branch in stepper.branches)
