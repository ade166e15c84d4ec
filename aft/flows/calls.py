"""Calls that are not executed yet: of an activity, a flow, or for something that is awaited."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from aft.flows import context

R = TypeVar("R")


class CallTarget(Protocol):
    """What can be called in a run."""

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
