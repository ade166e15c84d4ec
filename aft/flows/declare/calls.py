"""What a flow may call: durable functions, waits and pivots; and calls that are not executed yet."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from aft.codec import ArgumentsCodec, ValueCodec, arguments_codec, result_codec
from aft.flows.declare import context

P = ParamSpec("P")
R = TypeVar("R")
#: Covariant: of an ``async def`` type checkers know a subclass of Coroutine.
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class CallTarget(Protocol):
    """Anything that can be called in a run."""

    @property
    def name(self) -> str: ...
    @property
    def is_async(self) -> bool: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(slots=True, eq=False)
class Call(Generic[R]):
    """An activity or a flow and its arguments, not yet executed; awaited in an async flow, or given to ``parallel``."""

    target: CallTarget
    args: tuple[Any, ...] = field(default=(), repr=False)
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def is_async(self) -> bool:
        return self.target.is_async

    def __await__(self) -> Generator[Any, Any, R]:
        flow = context.flow_context()
        if flow is not None:
            return flow.awaited(self)
        plain: Generator[Any, Any, R] = self.target(*self.args, **self.kwargs).__await__()
        return plain

    def __str__(self) -> str:
        return f"{self.target!r}"


class DurableFunction(Generic[P, R_co]):
    """A function that a run calls durably: an activity or a flow. Outside a run it is that function."""

    def __init__(self, fn: Callable[P, R_co], name: str) -> None:
        self.fn = fn
        self.name = name
        self.is_async = inspect.iscoroutinefunction(fn)
        functools.update_wrapper(self, fn)

    @functools.cached_property
    def arguments(self) -> ArgumentsCodec:
        """The codec of its arguments."""
        return arguments_codec(self.fn)

    @functools.cached_property
    def result(self) -> ValueCodec:
        """The codec of its result."""
        return result_codec(self.fn)

    def check(self) -> None:
        """Raise DefinitionError if its annotations cannot be stored."""
        _ = self.arguments, self.result

    # Any: awaited in an async flow, a plain value in a plain one; ``call`` tells what it is.
    @overload
    def __call__(self: DurableFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self: DurableFunction[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flow = context.flow_context()
        if flow is None:
            return self.fn(*args, **kwargs)
        return flow.call(Call(self, args, kwargs))

    @overload
    def call(self: DurableFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]: ...
    @overload
    def call(self: DurableFunction[P, R_co], *args: P.args, **kwargs: P.kwargs) -> Call[R_co]: ...
    def call(self, *args: Any, **kwargs: Any) -> Call[Any]:
        """Make a call that is not executed yet; give it to ``aft.parallel``, or await it in an async flow."""
        return Call(self, args, kwargs)


#: The default of a wait that has none: it raises.
RAISE = object()


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal to wait for."""

    name: str
    codec: ValueCodec
    timeout: timedelta | None = None
    default: Any = RAISE
    is_async: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # refused where it is made, outside a run

    def __repr__(self) -> str:
        return f"aft.wait_for({self.name!r})"


@dataclass(frozen=True, slots=True)
class Sleep:
    """A duration to wait for."""

    timeout: timedelta
    name: str = "sleep"
    is_async: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "aft.sleep(…)"


@dataclass(frozen=True, slots=True)
class Pivot:
    """The point after which a run only goes forward."""

    name: str = "pivot"
    is_async: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "aft.pivot()"
