"""Unwinding: run frames from the top until none is owed, for a whole run, under a savepoint, or the late ones.

Strictly one after the other, each taken off in the transaction that records it. A crash leaves the stack from the
frame that was being undone downward; the next owner begins there. A compensator that fails leaves with a fault of its
own; the frame stays on top until it is undone, or a person settles it. Children that have not ended are stopped first;
one that has completed is a frame like any other, and is undone by itself.
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
from aft.flows import failures
from aft.flows.activity import Activity, compensator_policy, compensator_question
from aft.flows.arrivals import find_late, take_late
from aft.flows.attempt import Given, forget
from aft.flows.children import Children
from aft.flows.failures import FaultSite
from aft.flows.leaving import Leave, Parks
from aft.flows.policy import Policy
from aft.flows.probe import ProbeCall
from aft.flows.steps import Step, Stepper
from aft.ids import StepPath
from aft.runs import families, late
from aft.runs.deeds import Recording, Write
from aft.runs.owner import Owner
from aft.runs.states import Status
from aft.telemetry import FrameCompensated

#: Why a compensator is not called for an effect whose result could not be stored, or which nobody saw.
_UNKNOWN_RESULT = (
    "it takes the result, which is not known; undo the step by hand and say so (frame-done), "
    "or let it take `result: … | aft.Unknown`, then retry"
)


def unwind_all(stepper: Stepper, cause: Fault | None) -> bool:
    """Undo all that a run owes; tells whether a person let something of it go."""
    owner, ours = stepper.owner, json.dumps([stepper.owner.run_id])
    owner.looked_to = owner.inbox_seq
    questions = (stack.OWED, stack.SKIPPED, families.ANY, late.OPEN)
    owed, skipped, children, arrived = owner.ask([(question, ours) for question in questions])
    if children or arrived or len(owed) == stack.MOST_READ:
        unwind(stepper, cause, None)
        return any_skipped(owner)
    for frame in map(stack.read, owed):
        _reach_frontier(stepper, frame)
        _take_off(stepper, frame, cause, None)
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
        if not scope:
            take_late(stepper)
    for frame in _owed(stepper, scope, path, late):
        if not path and not late:
            _reach_frontier(stepper, frame)
        _take_off(stepper, frame, cause, status)


def undo_late(stepper: Stepper, cause: Fault | None) -> None:
    """Undo what came late and was not recorded, before the run goes on without it."""
    if find_late(stepper) and take_late(stepper):
        unwind(stepper, cause, Status.RECOVERING, late=True)


def undo_failed(stepper: Stepper, path: StepPath, cause: Fault | None) -> None:
    """Undo what an activity did that has failed for good, before the flow hears of it and may take another way.

    It was started, and is undone whatever came of it; or an attempt of it had its effect after it was given up.
    """
    undo_late(stepper, cause)
    if path in stepper.standing.armed:
        unwind(stepper, cause, Status.RECOVERING, path=path)


def undo_strayed(stepper: Stepper, path: StepPath) -> None:
    """Undo what a task did under a savepoint after that had been undone, before the task hears of it.

    It was cancelled then, and tidied up. A crash before leaves a frame, which the next pass finds at the same place.
    """
    for scope, cause in stepper.undone.items():
        if path.startswith(f"{scope}."):
            unwind(stepper, cause, Status.RECOVERING, path=path)
            return


def _reach_frontier(stepper: Stepper, frame: Frame) -> None:
    """Say that an owner which died may have been undoing this frame, and has begun nothing after it.

    Where a single step is undone, or what came late, the code may have had other steps at work.
    """
    stepper.standing.reach_frontier([] if frame.child_id is not None else [StepPath(f"{frame.path}/undo")])


def _take_off(stepper: Stepper, frame: Frame, cause: Fault | None, status: Status | None) -> None:
    if frame.child_id is not None:
        stepper.check_may_go_on()
        if (why := Children(stepper).undo(frame)) is not None:
            _stop(stepper, frame, why)
        return
    activity, compensator = _resolve(stepper, frame)
    if frame.state is not FrameState.OWED and frame.value is None and not activity.does_without_result:
        _park(stepper, frame, _UNKNOWN_RESULT)
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
    unknown = _question_about(stepper, frame, activity)
    step = Step(
        FaultKind.COMPENSATOR,
        path,
        compensator.name,
        policy,
        compensator.fn if unknown is None or compensator.only_if is None else _if_owed(frame, activity, compensator),
        given,
        (),
        wanted,
        status,
        probe=compensator_question(compensator, policy, wanted, key),
        generation=frame.key_generation,
        # What came late may be what was undone already, under the same key.
        doubtful=standing.is_doubtful(path) or (frame.state is FrameState.LATE and frame.path in standing.undone),
        result_probe=unknown if "result" in wanted or compensator.only_if is not None else None,
    )
    # One that was given up and returns after all has undone it; the retry does so again under the same key.
    standing.begin_branch()
    try:
        stepper.perform(step, settle, forget)
    finally:
        standing.end_branch()
    if stack.is_of(frame.key_generation, owner.run.key_generation):
        standing.armed.discard(frame.path)
        standing.undone[frame.path] = standing.undone.get(frame.path, 0) + 1
    told = FrameCompensated(run=owner.run_id, path=frame.path, activity=frame.activity, compensator=frame.compensator)
    stepper.tools.telemetry.emit(told)


def _offered(frame: Frame, activity: Activity[Any, Any], cause: Fault | None, key: str) -> dict[str, Any]:
    """What a compensator may take by name."""
    offered = _arguments(frame, activity)
    offered["result"] = UNKNOWN if frame.value is None else activity.result.decode(frame.value)
    return {**offered, "fault": cause, "key": key}


def _arguments(frame: Frame, activity: Activity[Any, Any]) -> dict[str, Any]:
    """The arguments that an activity was called with; one that it got since, with a default, has that."""
    return activity.arguments.with_defaults(activity.arguments.decode(frame.args or "{}"))


def _if_owed(frame: Frame, activity: Activity[Any, Any], compensator: Compensator) -> Callable[..., Any]:
    """Make the function that undoes an armed frame: it does nothing if the result that was found owes nothing."""
    fn, wants = compensator.fn, compensator.wants

    def is_owed(given: dict[str, Any]) -> bool:
        result = given.get("result", UNKNOWN)
        return result is UNKNOWN or compensator.is_owed({**_arguments(frame, activity), "result": result})

    def undo(**given: Any) -> Any:
        if is_owed(given):
            return fn(**{name: value for name, value in given.items() if name in wants})
        return None

    async def undo_async(**given: Any) -> Any:
        return await undo(**given) if is_owed(given) else None

    return undo_async if inspect.iscoroutinefunction(fn) else undo


def _question_about(stepper: Stepper, frame: Frame, activity: Activity[Any, Any]) -> ProbeCall | None:
    """What the probe of a started activity is asked, so that its compensator may learn the result."""
    if frame.state is not FrameState.ARMED or frame.value is not None:
        return None
    return activity.question(frame.args or "{}", stepper.key(frame.path, frame.key_generation))


def _owed(stepper: Stepper, scope: str, path: str, late: bool) -> Iterator[Frame]:
    """Hand out frames from the top, each when the one above it is off.

    Many are read at once: while the run is ours nobody else pushes, and undoing something pushes nothing.
    """
    owner = stepper.owner
    # Of a savepoint or a step: of this generation of the run; frames of earlier ones are undone with everything.
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


def _resolve(stepper: Stepper, frame: Frame) -> tuple[Activity[Any, Any], Compensator]:
    registry = stepper.tools.registry
    activity = registry.activity(frame.activity)
    compensator = registry.compensator(frame.activity, frame.compensator)
    if activity is None or compensator is None:
        _park(stepper, frame, "this code has no such compensator; bring it back, then retry")
    return activity, compensator


def _park(stepper: Stepper, frame: Frame, why: str) -> NoReturn:
    _stop(
        stepper, frame, f"compensator {frame.compensator!r} of activity {frame.activity!r} (step {frame.path}): {why}"
    )


def _stop(stepper: Stepper, frame: Frame, reason: str) -> NoReturn:
    """Park at a frame: a person retries, skips it, or undoes it by hand."""
    owner, tools = stepper.owner, stepper.tools
    place = FaultSite(
        owner.run_id, owner.epoch, StepPath(f"{frame.path}/undo"), FaultKind.COMPENSATOR, frame.compensator
    )
    fault = failures.describe(
        LookupError(reason), place, Policy(), tools.ladder, tools.clock.now(), state=FaultState.PARKED
    )
    before = stepper.standing.fault(StepPath(f"{frame.path}/undo"))
    raise Leave(Parks(reason, fault, () if before is None else (before.id,)))
