"""Unwinding: run frames from the top until none is owed, for a whole run, under a savepoint, or the late ones.

Strictly one after the other, each taken off in the transaction that records it. A crash leaves the stack from the
frame that was being undone downward; the next owner begins there. A compensator that fails leaves with a fault of its
own; the frame stays on top until it is undone, or a person settles it. Children that have not ended are stopped first;
one that has completed is a frame like any other, and is undone by itself.
"""

from __future__ import annotations

from typing import Any, NoReturn

from aft.compensation import stack
from aft.compensation.registry import Compensator
from aft.compensation.stack import Frame
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures
from aft.flows.activity import Activity
from aft.flows.children import Children
from aft.flows.failures import Place
from aft.flows.leaving import Leave, Parks
from aft.flows.policy import Policy
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.runs.states import Status


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
    children = Children(stepper)
    if not path and not late:
        children.stop(scope)
    while (frame := _top(stepper, scope, path, late)) is not None:
        if frame.child_id is not None:
            stepper.check_may_go_on()
            children.undo(frame)
            continue
        activity, compensator = _resolve(stepper, frame)
        try:
            stepper.undo(frame, activity, compensator, cause, status)
        except CodecError as error:
            _park(stepper, frame, f"its stored arguments no longer fit the code: {error}")


def _top(stepper: Stepper, scope: str, path: str, late: bool) -> Frame | None:
    owner = stepper.owner
    return owner.read(lambda connection: stack.top(connection, owner.run_id, scope, path=path, late=late))


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
