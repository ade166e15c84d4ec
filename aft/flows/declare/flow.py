"""Flows: plain Python functions whose activities are recorded, so that they can be replayed and go on.

Called inside another flow's run, a flow is a run of its own: a child.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, overload

from aft.codec import ValueCodec, value_codec
from aft.errors import DefinitionError
from aft.flows.declare import options as checks
from aft.flows.declare.calls import DurableFunction
from aft.flows.declare.checks import check_function, check_name
from aft.flows.declare.options import Duration
from aft.flows.declare.registry import declared as registry
from aft.run_options import RunOptions
from aft.texts import format_value

P = ParamSpec("P")
R = TypeVar("R")
#: Covariant: of an ``async def`` type checkers know a subclass of Coroutine.
R_co = TypeVar("R_co", covariant=True)


class Flow(DurableFunction[P, R_co]):
    """A flow at one version. Called directly, outside a run, it is its plain function; inside one, a child."""

    def __init__(
        self,
        fn: Callable[P, R_co],
        *,
        name: str | None = None,
        version: int = 1,
        options: RunOptions | None = None,
        signals: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(fn, check_name("a flow", fn.__name__ if name is None else name))
        if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 2**31:
            raise DefinitionError(
                f"flow {self.name!r}: version={format_value(version)} must be a whole number from 1 on"
            )
        self.version = version
        self.run_options = options or RunOptions()
        #: The signals that it waits for, with the types of their values; empty: not declared.
        self.signals = dict(signals or {})

    def check(self) -> None:
        """Raise DefinitionError if its annotations, or those of its signals, cannot be stored."""
        super().check()
        for annotation in self.signals.values():
            value_codec(annotation)

    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        owner: str | None = None,
        expected: Duration | None = None,
        resources: Iterable[str] = (),
        tags: Mapping[str, Any] | None = None,
        deadline: Duration | None = None,
        after: Duration | None = None,
        at: datetime | None = None,
    ) -> Flow[P, R_co]:
        """Set options of the run to be started; the same key means the same run.

        ``owner`` is whose it is, ``resources`` are names of what it needs: runs can be listed by both. ``expected`` is
        how long it should take until its end: an event is emitted when it takes longer. ``deadline`` is how long it may
        take: then ``aft.DeadlineExceeded`` is raised, once, at its current step; uncaught, everything is undone.
        ``tags`` are names with values, for rules and people; rules may change them. ``after`` is how long a submitted
        run waits before it begins, ``at`` is when; a time that is past means at once.
        """
        of = f"flow {self.name!r}"
        run_options = RunOptions(
            key=checks.check_key(of, key),
            priority=checks.check_priority(of, priority),
            owner=checks.check_text(of, "owner", owner),
            expected=checks.check_duration(of, "expected", expected),
            resources=checks.check_resources(of, resources),
            tags=checks.check_tags(of, tags),
            deadline=checks.check_duration(of, "deadline", deadline),
            after=checks.check_duration(of, "after", after),
            at=checks.check_at(of, at),
        )
        checks.refuse_two_start_times(of, run_options.after, run_options.at)
        return Flow(self.fn, name=self.name, version=self.version, options=run_options, signals=self.signals)

    def __repr__(self) -> str:
        return f"<flow {self.name!r} version {self.version}>"


@overload
def flow(fn: Callable[P, R], /) -> Flow[P, R]: ...
@overload
def flow(
    *, name: str | None = None, version: int = 1, signals: Mapping[str, Any] | None = None
) -> Callable[[Callable[P, R]], Flow[P, R]]: ...
def flow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    signals: Mapping[str, Any] | None = None,
) -> Any:
    """Make a function a flow. Its activities are durable, however plain Python code combines them.

    ``signals`` are the names of the signals that it waits for, with the types of their values: then a signal with
    another name, or a value of another type, is refused when it is sent.
    """

    def declare(target: Callable[..., Any]) -> Flow[Any, Any]:
        made: Flow[Any, Any] = Flow(check_function("flow", target), name=name, version=version, signals=signals)
        registry.add_flow(made)
        return made

    return declare if fn is None else declare(fn)


def declared_signal(flow_name: str, declared: Mapping[str, Any], name: str) -> ValueCodec:
    """Return the codec of a signal that a flow declares; raises DefinitionError if it declares no such signal."""
    if name not in declared:
        near = difflib.get_close_matches(name, declared, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it declares {', '.join(map(repr, declared))}"
        raise DefinitionError(f"flow {flow_name!r} waits for no signal {name!r}; {hint}")
    return value_codec(declared[name])
