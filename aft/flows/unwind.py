"""Unwinding: run frames from the top until none is owed, for a whole run, under a savepoint, or the late ones.

Strictly one after the other, each taken off in the transaction that records it. A crash leaves the stack from the
frame that was being undone downward; the next owner begins there. A compensator that fails leaves with a fault of its
own; the frame stays on top until it is undone, or a person settles it. Children that have not ended are stopped first;
one that has completed is a frame like any other, and is undone by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from aft.compensation import stack
from aft.compensation.registry import UNKNOWN, Compensator
from aft.compensation.stack import Frame, FrameState
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures
from aft.flows.activity import Activity, compensator_policy, compensator_question
from aft.flows.attempt import Given, forget
from aft.flows.children import Children
from aft.flows.failures import Place
from aft.flows.leaving import Leave, Parks
from aft.flows.policy import Policy
from aft.flows.probe import Question
from aft.flows.steps import Step, Stepper
from aft.ids import StepPath
from aft.runs import families
from aft.runs.deeds import Recording, Write
from aft.runs.owner import Owner
from aft.runs.states import Status
from aft.telemetry import FrameCompensated


def unwind_all(stepper: Stepper, cause: Fault | None) -> bool:
    """Undo all that a run owes; tells whether a person let something of it go."""
    owner, ours = stepper.owner, json.dumps([stepper.owner.run_id])
    owed, skipped, children = owner.ask([(stack.OWED, ours), (stack.SKIPPED, ours), (families.ANY, ours)])
    if children or len(owed) == stack.MOST_READ:
        unwind(stepper, cause, None)
        return any_skipped(owner)
    for values in owed:
        _take_off(stepper, stack.read(values), cause, None)
    return bool(skipped)


def any_skipped(owner: Owner) -> bool:
    """Tell whether a person let something go that a run owed: then it was not fully undone."""
    return bool(owner.ask([(stack.SKIPPED, json.dumps([owner.run_id]))])[0])


def unwind(
    stepper: Stepper,
    cause: Fault | None,
    status: Status | None,
    *,
    scope: str = "",
    path: str = "",
    late: bool = False,
) -> None:
    """Undo what is owed; ``status`` is what a failing compensator makes of the run, None: no change."""
    if not path and not late:
        Children(stepper).stop(scope)
    for frame in _owed(stepper, scope, path, late):
        _take_off(stepper, frame, cause, status)


def _take_off(stepper: Stepper, frame: Frame, cause: Fault | None, status: Status | None) -> None:
    if frame.child_id is not None:
        stepper.check_may_go_on()
        Children(stepper).undo(frame)
        return
    activity, compensator = _resolve(stepper, frame)
    try:
        _undo(stepper, frame, activity, compensator, cause, status)
    except CodecError as error:
        _park(stepper, frame, f"its stored arguments no longer fit the code: {error}")


def _undo(
    stepper: Stepper,
    frame: Frame,
    activity: Activity[Any, Any],
    compensator: Compensator,
    cause: Fault | None,
    status: Status | None,
) -> None:
    """Run a frame's compensator and take the frame off, or leave with a fault; ``status`` is the run's then."""
    stepper.check_may_go_on()
    owner, standing, path = stepper.owner, stepper.standing, StepPath(f"{frame.path}/undo")
    standing.check_ladder(path, status)
    key = stepper.key(path, frame.key_generation)

    def settle(value: Any) -> Recording:
        write = Write(undone=frame.seq, settled=standing.settled(path, FaultState.RESOLVED))
        return Recording(owner.run_id, write, standing.with_letters(path, None))

    def given() -> Given:
        return (), compensator.arguments(_offered(frame, activity, cause, key))

    wanted = given()[1]
    policy = compensator_policy(activity, compensator)
    step = Step(
        FaultKind.COMPENSATOR,
        path,
        compensator.name,
        policy,
        compensator.fn,
        given,
        (),
        wanted,
        status,
        probe=compensator_question(compensator, policy, wanted, key),
        generation=frame.key_generation,
        doubtful=standing.is_doubtful(path),
        result_probe=_question_about(stepper, frame, activity) if "result" in wanted else None,
    )
    # One that was given up and returns after all has undone it; the retry does so again under the same key.
    standing.begin_branch()
    try:
        stepper.perform(step, settle, forget)
    finally:
        standing.end_branch()
    standing.armed.discard(frame.path)
    standing.undone[frame.path] = standing.undone.get(frame.path, 0) + 1
    told = FrameCompensated(run=owner.run_id, path=frame.path, activity=frame.activity, compensator=frame.compensator)
    stepper.tools.telemetry.emit(told)


def _offered(frame: Frame, activity: Activity[Any, Any], cause: Fault | None, key: str) -> dict[str, Any]:
    """What a compensator may take by name."""
    offered = activity.arguments.decode(frame.args or "{}")
    offered["result"] = UNKNOWN if frame.value is None else activity.result.decode(frame.value)
    return {**offered, "fault": cause, "key": key}


def _question_about(stepper: Stepper, frame: Frame, activity: Activity[Any, Any]) -> Question | None:
    """What the probe of a started activity is asked, so that its compensator may learn the result."""
    if frame.state is not FrameState.ARMED or frame.value is not None:
        return None
    return activity.question(frame.args or "{}", stepper.key(frame.path, frame.key_generation))


def _owed(stepper: Stepper, scope: str, path: str, late: bool) -> Iterator[Frame]:
    """Hand out frames from the top, each when the one above it is off.

    Many are read at once: while the run is ours nobody else pushes, and undoing something pushes nothing.
    """
    owner = stepper.owner
    # Of one step: of this beginning of the run; its frames of earlier ones are undone with everything.
    generation = owner.run.key_generation if path else None
    while True:
        found = owner.read(
            lambda connection: stack.owed(
                connection, owner.run_id, scope, path=path, generation=generation, late=late, limit=stack.MOST_READ
            )
        )
        yield from found
        if len(found) < stack.MOST_READ:
            return


def _resolve(stepper: Stepper, frame: Frame) -> tuple[Activity[Any, Any], Compensator]:
    registry = stepper.tools.registry
    activity = registry.activity(frame.activity)
    compensator = registry.compensator(frame.activity, frame.compensator)
    if activity is None or compensator is None:
        _park(stepper, frame, "this code has no such compensator; bring it back, then retry")
    return activity, compensator


def _park(stepper: Stepper, frame: Frame, why: str) -> NoReturn:
    owner, tools = stepper.owner, stepper.tools
    reason = f"compensator {frame.compensator!r} of activity {frame.activity!r} (step {frame.path}): {why}"
    place = Place(owner.run_id, owner.epoch, StepPath(f"{frame.path}/undo"), FaultKind.COMPENSATOR, frame.compensator)
    fault = failures.describe(
        LookupError(reason), place, Policy(), tools.ladder, tools.clock.now(), state=FaultState.PARKED
    )
    raise Leave(Parks(reason, fault))
