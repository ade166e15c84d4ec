"""Flows: plain Python functions whose activities are recorded, so that they can be replayed and go on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

from aft.codec import ArgumentsCodec, ValueCodec, arguments_codec, result_codec
from aft.errors import DefinitionError
from aft.flows import context
from aft.flows import options as checks
from aft.flows.declaring import check_function, check_name
from aft.flows.options import Duration
from aft.flows.registry import declared as registry

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller says about one run."""

    key: str | None = None
    priority: int = 0
    owner: str | None = None
    #: How long it should take, from when it is made to its end; longer is told, and nothing else happens.
    expected: timedelta | None = None
    #: Names of what it needs.
    resources: tuple[str, ...] = ()


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

    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        owner: str | None = None,
        expected: Duration | None = None,
        resources: Iterable[str] = (),
    ) -> Flow[P, R]:
        """Say something about the run to come; the same key means the same run.

        ``owner`` is whose it is, ``resources`` are names of what it needs: runs can be listed by both. ``expected`` is
        how long it should take until its end: an event tells when it takes longer.
        """
        of = f"flow {self.name!r}"
        said = Options(
            key=checks.check_key(of, key),
            priority=checks.check_priority(of, priority),
            owner=checks.check_text(of, "owner", owner),
            expected=checks.check_duration(of, "expected", expected),
            resources=checks.check_resources(of, resources),
        )
        return Flow(self.fn, name=self.name, version=self.version, options=said)

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
