"""Functions that a flow's code may call besides its activities: concurrent branches, waits, pivots and patches."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn, TypeVar, overload

from aft.errors import DefinitionError
from aft.flows.declare import context, options
from aft.flows.declare.activity import Activity
from aft.flows.declare.calls import RAISE, Call, Pivot, Signal, Sleep
from aft.flows.declare.context import FlowContext
from aft.flows.declare.flow import Flow
from aft.flows.declare.options import Duration
from aft.texts import check_storable, format_value

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
#: Characters of a signal's name.
MOST_NAME = 200


@overload
def parallel(first: Call[A], second: Call[B], /) -> tuple[A, B]: ...
@overload
def parallel(first: Call[A], second: Call[B], third: Call[C], /) -> tuple[A, B, C]: ...
@overload
def parallel(*calls: Call[Any]) -> tuple[Any, ...]: ...
def parallel(*calls: Call[Any]) -> tuple[Any, ...]:
    """Execute calls concurrently and return their results, in the order of the calls.

    If one fails for good, the others come to their end first; then its exception is raised. If the flow does not catch
    it, all are undone in the reverse order of their completion. In an async flow use ``asyncio.gather`` or a
    ``TaskGroup``.
    """
    flow = _flow("aft.parallel")
    for call in calls:
        if not isinstance(call, Call):
            raise DefinitionError(f"aft.parallel takes calls, as activity.call(…) makes them, not {format_value(call)}")
    return tuple(flow.parallel(calls, None))


@overload
def map(
    activity: Activity[[A], Coroutine[Any, Any, T]] | Flow[[A], Coroutine[Any, Any, T]],
    items: Iterable[A],
    *,
    concurrency: int = 10,
) -> list[T]: ...
@overload
def map(activity: Activity[[A], T] | Flow[[A], T], items: Iterable[A], *, concurrency: int = 10) -> list[T]: ...
def map(  # aft.map, as in concurrent.futures
    activity: Activity[[Any], Any] | Flow[[Any], Any], items: Iterable[Any], *, concurrency: int = 10
) -> list[Any]:
    """Execute an activity, or a child flow, for each item, ``concurrency`` at a time; return their results in order.

    A set is refused: its order is not the same in a replay.
    """
    flow = _flow("aft.map")
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise DefinitionError(f"aft.map: concurrency={format_value(concurrency)} must be a whole number from 1 on")
    if not isinstance(activity, Activity | Flow):
        raise DefinitionError(f"aft.map takes an activity or a flow, not {format_value(activity)}")
    if isinstance(items, set | frozenset):
        raise DefinitionError("aft.map: a set has no order that a replay could repeat; give it sorted(…)")
    return list(flow.parallel([activity.call(item) for item in items], concurrency))


def wait_for(name: str, type: Any = Any, *, timeout: Duration | None = None, default: Any = RAISE) -> Any:
    """Wait for a signal and return its value; one that was sent before is taken at once, the oldest first.

    ``type`` is what the value must be: one that does not fit is refused, and the wait goes on. After ``timeout`` it
    returns ``default``, or raises ``aft.WaitTimeout``. While it waits the run holds no thread and no connection. In an
    async flow it is awaited, so no type checker can tell what this returns: annotate what you assign it to.
    """
    flow = _flow("aft.wait_for")
    codec = flow.signal_codec(check_signal_name(name), type)
    return flow.call(Call(Signal(name, codec, _duration("timeout", timeout), default)))


def sleep(duration: Duration) -> Any:
    """Continue after this duration; the run holds no thread meanwhile. In an async flow it is awaited."""
    flow = _flow("aft.sleep")
    timeout = _duration("duration", duration)
    assert timeout is not None
    return flow.call(Call(Sleep(timeout)))


def pivot() -> None:
    """Mark the point from which the run only goes forward: what it did so far is not undone any more.

    A failure after it can still be caught, and savepoints after it are still undone; but an uncaught one parks the run
    instead of undoing it, and a retry tries the failed step again.
    """
    _flow("aft.pivot").call(Call(Pivot()))


def patched(change: str) -> bool:
    """Return whether this run has a change of its flow's code: True for runs that reach this place for the first time.

    ``if aft.patched("ask-twice"): …new… else: …old…`` lets runs that have passed it keep the old code, and all others
    use the new one.
    """
    return _flow("aft.patched").patched(_check_name("the name of a change", change))


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """Restart this run with other arguments: an empty journal, the same id, and the same stack.

    For flows that would go on for ever: a journal is replayed as a whole each time the run is claimed.
    """
    _flow("aft.continue_as_new").continue_as_new(args, kwargs)


def check_signal_name(name: str) -> str:
    """Return a signal's name, or raise DefinitionError."""
    return _check_name("a signal's name", name)


def _check_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME:
        raise DefinitionError(f"{what} is a text of 1 to {MOST_NAME} characters, not {format_value(name)}")
    check_storable(what, name, DefinitionError)
    return name


def _duration(what: str, given: Duration | None) -> Any:
    return options.check_duration("a flow", what, given)


def _flow(what: str) -> FlowContext:
    flow = context.flow_context()
    if flow is None:
        raise DefinitionError(f"{what} works only in a flow's own code, while it runs; not in an activity, nor outside")
    return flow
