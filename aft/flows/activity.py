"""Activities are steps with effects: ``@aft.activity`` says how one is tried, ``@aft.compensate_with`` how undone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from aft import durations
from aft.codec import ArgumentsCodec, ValueCodec, arguments_codec, result_codec
from aft.compensation.registry import Compensator, When, make_compensator
from aft.errors import DefinitionError
from aft.flows import context
from aft.flows.declaring import check_function, check_name
from aft.flows.policy import Declared, Policy
from aft.flows.registry import declared as registry
from aft.recovery.levels import Ladder, Level

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[R]):
    """An activity and its arguments, not yet executed; awaited in an async flow, it is."""

    activity: Activity[Any, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __await__(self) -> Generator[Call[R], Any, R]:
        return cast(R, (yield self))


class Activity(Generic[P, R]):
    """A function with effects. Outside a run it is that function; inside a run it is durable."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        policy: Policy | None = None,
        compensator: Compensator | None = None,
    ) -> None:
        self.fn = fn
        self.name = check_name("an activity", name or fn.__name__)
        self.policy = policy or Policy()
        self.compensator = compensator
        self.is_async = inspect.iscoroutinefunction(fn)
        if self.is_async and self.policy.transactional:
            raise DefinitionError(
                f"activity {self.name!r} is async and transactional: aft's transaction is not async; use def"
            )
        if self.policy.transactional and self.policy.timeout is not None:
            raise DefinitionError(
                f"activity {self.name!r} is transactional and has a timeout: one that is given up could still commit; "
                "set a statement timeout in the database instead"
            )
        functools.update_wrapper(self, fn)

    @functools.cached_property
    def arguments(self) -> ArgumentsCodec:
        """How its arguments are stored."""
        return arguments_codec(self.fn)

    @functools.cached_property
    def result(self) -> ValueCodec:
        """How its result is stored."""
        return result_codec(self.fn)

    @property
    def parameters(self) -> list[str]:
        """The names of its arguments."""
        return list(inspect.signature(self.fn).parameters)

    def check(self) -> None:
        """Raise DefinitionError if its annotations cannot be stored."""
        _ = self.arguments, self.result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        flow = context.flow_context()
        if flow is None:
            return self.fn(*args, **kwargs)
        return cast(R, flow.call(self, args, kwargs))

    @overload
    def call(self: Activity[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]: ...
    @overload
    def call(self: Activity[P, R], *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def call(self, *args: Any, **kwargs: Any) -> Call[Any]:
        """Make a call that is not executed yet; await it in an async flow."""
        return Call(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<activity {self.name!r}>"


@overload
def activity(fn: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def activity(
    *,
    name: str | None = None,
    levels: Sequence[Level | str | float | timedelta] | None = None,
    immediate: int | None = None,
    timeout: str | float | timedelta | None = None,
    recoverable: Declared = (),
    unrecoverable: Declared = (),
    transactional: bool = False,
) -> Callable[[Callable[P, R]], Activity[P, R]]: ...
def activity(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    levels: Sequence[Level | str | float | timedelta] | None = None,
    immediate: int | None = None,
    timeout: str | float | timedelta | None = None,
    recoverable: Declared = (),
    unrecoverable: Declared = (),
    transactional: bool = False,
) -> Any:
    """Make a function an activity.

    ``levels`` is its ladder: a wait and a number of tries each (a bare "10m": one try). ``immediate`` are retries in
    the process, before anything becomes a fault. Executions = (immediate + 1) × (1 + Σ tries). ``timeout`` stops
    waiting for it. ``recoverable`` and ``unrecoverable`` are exception classes, or functions of the exception.
    ``transactional`` lets it work in aft's own transaction (``aft.session()``): effect and record commit together.
    """

    def declare(target: Callable[..., Any]) -> Activity[Any, Any]:
        shown = str(name or getattr(target, "name", None) or getattr(target, "__name__", "?"))
        policy = Policy(
            ladder=_ladder(shown, levels),
            immediate=_immediate(shown, immediate),
            timeout=_timeout(shown, timeout),
            recoverable=_declared(shown, "recoverable", recoverable),
            unrecoverable=_declared(shown, "unrecoverable", unrecoverable),
            transactional=transactional,
        )
        _refuse_both(shown, policy)
        if isinstance(target, Activity):
            if target.policy != Policy():
                raise DefinitionError(f"activity {target.name!r} is declared twice with @aft.activity")
            made: Activity[Any, Any] = Activity(
                target.fn, name=name or target.name, policy=policy, compensator=target.compensator
            )
        else:
            made = Activity(check_function("activity", target), name=name, policy=policy)
        registry.add_activity(made)
        return made

    return declare if fn is None else declare(fn)


def compensate_with(
    compensator: Callable[..., Any], *, when: When = "completed"
) -> Callable[[Callable[P, R]], Activity[P, R]]:
    """Say how an activity is undone; enough on its own to make a function an activity.

    The compensator takes by name what it needs: any argument of the activity, ``result``, ``fault``, ``key``. With
    ``when="started"`` it is owed even if nobody knows whether the activity had its effect; its ``result`` may then be
    ``aft.UNKNOWN``. It may itself be an activity, with levels of its own; otherwise its activity's apply.
    """

    def declare(target: Callable[P, R]) -> Activity[P, R]:
        made: Activity[P, R] = (
            target if isinstance(target, Activity) else Activity(check_function("compensate_with", target))
        )
        if made.compensator is not None:
            raise DefinitionError(
                f"activity {made.name!r} has two compensators, {made.compensator.name!r} and "
                f"{_name_of(made.name, compensator)!r}; call the second one from the first"
            )
        undo = make_compensator(
            made.name, made.parameters, _name_of(made.name, compensator), _function_of(compensator), when
        )
        made = Activity[P, R](made.fn, name=made.name, policy=made.policy, compensator=undo)
        if isinstance(compensator, Activity):
            # A renamed or re-declared compensator keeps its own levels: they are looked up by name at unwind.
            registry.add_activity(compensator)
        registry.add_activity(made)
        return made

    return declare


def compensator_policy(activity_: Activity[Any, Any], compensator: Compensator) -> Policy:
    """How a compensator is tried: as it declares itself if it is an activity, else as its activity is."""
    own = registry.activity(compensator.name)
    if own is not None and own.fn is compensator.fn:
        return own.policy
    return replace(activity_.policy, transactional=False)


def _name_of(activity_: str, compensator: Callable[..., Any]) -> str:
    name = getattr(compensator, "name", None) or getattr(compensator, "__name__", None)
    if not callable(compensator) or not isinstance(name, str) or name == "<lambda>":
        raise DefinitionError(
            f"activity {activity_!r} names {compensator!r} as its compensator; it must be a named function"
        )
    return name


def _function_of(compensator: Callable[..., Any]) -> Callable[..., Any]:
    return compensator.fn if isinstance(compensator, Activity) else compensator


def _ladder(name: str, levels: Sequence[Level | str | float | timedelta] | None) -> Ladder | None:
    if levels is None:
        return None
    if isinstance(levels, str | Level):
        raise DefinitionError(f"activity {name!r}: levels={levels!r} must be a list; write levels=[{levels!r}]")
    try:
        return Ladder.of(levels)
    except ValueError as error:
        raise DefinitionError(f"activity {name!r}: levels: {error}") from None


def _immediate(name: str, immediate: int | None) -> int | None:
    if immediate is not None and (
        not isinstance(immediate, int) or isinstance(immediate, bool) or not 0 <= immediate <= 100
    ):
        raise DefinitionError(f"activity {name!r}: immediate={immediate!r} must be a number from 0 to 100")
    return immediate


def _timeout(name: str, timeout: str | float | timedelta | None) -> timedelta | None:
    if timeout is None:
        return None
    try:
        found = durations.parse(timeout)
    except ValueError as error:
        raise DefinitionError(f"activity {name!r}: timeout: {error}") from None
    if not found:
        raise DefinitionError(f"activity {name!r}: timeout={timeout!r} leaves no time at all")
    return found


def _declared(name: str, option: str, given: Declared) -> Declared:
    if isinstance(given, list | set | frozenset):
        given = tuple(given)
    classes = given if isinstance(given, tuple) else (given,) if isinstance(given, type) else ()
    wrong = [cls for cls in classes if not (isinstance(cls, type) and issubclass(cls, BaseException))]
    if wrong or not (isinstance(given, tuple | type) or callable(given)):
        shown = wrong[0] if wrong else given
        raise DefinitionError(
            f"activity {name!r}: {option} holds {shown!r}; give exception classes, or one function of the exception"
        )
    return given


def _refuse_both(name: str, policy: Policy) -> None:
    if not isinstance(policy.recoverable, tuple) or not isinstance(policy.unrecoverable, tuple):
        return
    both = set(policy.recoverable) & set(policy.unrecoverable)
    if both:
        shown = ", ".join(sorted(cls.__name__ for cls in both))
        raise DefinitionError(f"activity {name!r} declares {shown} both recoverable and unrecoverable")
