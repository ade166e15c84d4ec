"""Calls that are not executed yet, and the other things that a flow may call: waits and pivots."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from aft.codec import ValueCodec
from aft.flows.declare import context

R = TypeVar("R")


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
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

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
