"""Flows: plain Python functions whose activities are recorded, so that they can be replayed and go on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from aft.codec import ArgumentsCodec, ValueCodec, arguments_codec, result_codec
from aft.errors import DefinitionError
from aft.flows import context
from aft.flows.declaring import check_function, check_name
from aft.flows.registry import declared as registry

P = ParamSpec("P")
R = TypeVar("R")

#: Characters of a run's key.
MOST_KEY = 400


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller says about one run."""

    key: str | None = None
    priority: int = 0
    owner: str | None = None


class Flow(Generic[P, R]):
    """A flow at one version. Called directly, outside a run, it is its plain function."""

    def __init__(
        self, fn: Callable[P, R], *, name: str | None = None, version: int = 1, options: Options | None = None
    ) -> None:
        self.fn = fn
        self.name = check_name("a flow", name or fn.__name__)
        if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 2**31:
            raise DefinitionError(f"flow {self.name!r}: version={version!r} must be a whole number from 1 on")
        self.version = version
        self.run_options = options or Options()
        self.is_async = inspect.iscoroutinefunction(fn)
        functools.update_wrapper(self, fn)

    @functools.cached_property
    def arguments(self) -> ArgumentsCodec:
        """How its arguments are stored."""
        return arguments_codec(self.fn)

    @functools.cached_property
    def result(self) -> ValueCodec:
        """How its result is stored."""
        return result_codec(self.fn)

    def check(self) -> None:
        """Raise DefinitionError if its annotations cannot be stored."""
        _ = self.arguments, self.result

    def options(self, *, key: str | None = None, priority: int = 0, owner: str | None = None) -> Flow[P, R]:
        """Say something about the run to come; the same key means the same run."""
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MOST_KEY or "\x00" in key):
            raise DefinitionError(f"flow {self.name!r}: key={key!r} must be a text of 1 to {MOST_KEY} characters")
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 1_000_000:
            raise DefinitionError(f"flow {self.name!r}: priority={priority!r} must be a whole number")
        if owner is not None and (not isinstance(owner, str) or not 0 < len(owner) <= 200):
            raise DefinitionError(f"flow {self.name!r}: owner={owner!r} must be a text of 1 to 200 characters")
        return Flow(
            self.fn,
            name=self.name,
            version=self.version,
            options=Options(key=key, priority=priority, owner=owner),
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if context.flow_context() is not None:
            raise DefinitionError(
                f"flow {self.name!r} was called inside a run; child flows are not supported yet. "
                "Make what both share a plain function, or start it as a run of its own from an activity"
            )
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<flow {self.name!r} version {self.version}>"


@overload
def flow(fn: Callable[P, R], /) -> Flow[P, R]: ...
@overload
def flow(*, name: str | None = None, version: int = 1) -> Callable[[Callable[P, R]], Flow[P, R]]: ...
def flow(fn: Callable[..., Any] | None = None, /, *, name: str | None = None, version: int = 1) -> Any:
    """Make a function a flow. Its activities are durable, in whatever way plain Python strings them together."""

    def declare(target: Callable[..., Any]) -> Flow[Any, Any]:
        made: Flow[Any, Any] = Flow(check_function("flow", target), name=name, version=version)
        registry.add_flow(made)
        return made

    return declare if fn is None else declare(fn)
