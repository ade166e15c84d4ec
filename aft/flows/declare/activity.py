"""Activities are steps with effects: ``@aft.activity`` declares how one is tried, ``@aft.compensate_with`` its undo."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, overload

from aft.codec import result_codec
from aft.compensation.registry import Compensator, When, check_takes_unknown, make_compensator
from aft.errors import DefinitionError
from aft.flows.declare import options
from aft.flows.declare.calls import DurableFunction
from aft.flows.declare.checks import MOST_NAME, check_function, check_name
from aft.flows.declare.options import Duration
from aft.flows.declare.policy import Declared, Policy
from aft.flows.declare.probe import ProbeCall, make_probe
from aft.flows.declare.registry import declared as registry
from aft.flows.runtime.forks import ForkGuard
from aft.recovery.levels import Level
from aft.texts import format_value

P = ParamSpec("P")
R = TypeVar("R")
#: Covariant: of an ``async def`` type checkers know a subclass of Coroutine.
R_co = TypeVar("R_co", covariant=True)


class Activity(DurableFunction[P, R_co]):
    """A function with effects. Outside a run it is that function; inside a run it is durable."""

    def __init__(
        self,
        fn: Callable[P, R_co],
        *,
        name: str | None = None,
        policy: Policy | None = None,
        compensator: Compensator | None = None,
    ) -> None:
        super().__init__(fn, check_name("an activity", fn.__name__ if name is None else name))
        self.policy = policy or Policy()
        self.compensator = compensator
        if self.policy.transactional:
            self._check_transactional()
        if self.policy.probe is not None and compensator is not None:
            check_takes_unknown(self.name, compensator, f"probe={self.policy.probe.name}")

    def _check_transactional(self) -> None:
        if self.is_async:
            raise DefinitionError(
                f"activity {self.name!r} is async and transactional: aft's transaction is not async; use def"
            )
        if self.policy.timeout is not None:
            raise DefinitionError(
                f"activity {self.name!r} is transactional and has a timeout: one that is given up could still commit; "
                "set a statement timeout in the database instead"
            )
        if self.policy.probe is not None:
            raise DefinitionError(
                f"activity {self.name!r} is transactional and has a probe: its outcome is never unknown, effect and "
                "record commit together; leave the probe out"
            )

    @property
    def arms(self) -> bool:
        """Whether its frame is pushed before it is called, because its undo is owed even if its end was not seen."""
        return self.compensator is not None and (self.compensator.when == "started" or self.policy.probe is not None)

    @property
    def is_traced(self) -> bool:
        """Whether the database shows if it was begun: by its frame, or because its effect commits with its outcome."""
        return self.arms or self.policy.transactional

    @property
    def does_without_result(self) -> bool:
        """Whether its compensator can undo it without its result; if it arms, that was checked."""
        return self.arms or self.compensator is None or self.compensator.does_without_result

    def owes(self, args: str, value: str) -> bool:
        """Whether its compensator is owed for a completed call with these stored arguments and result."""
        if self.compensator is None or self.compensator.only_if is None:
            return self.compensator is not None
        with ForkGuard():
            return self.compensator.is_owed({**self.arguments.decode(args), "result": self.result.decode(value)})

    @property
    def parameters(self) -> list[str]:
        """The names of its arguments."""
        return list(inspect.signature(self.fn).parameters)

    def make_probe_call(self, args: str, key: str) -> ProbeCall | None:
        """Return the probe call for a call with these stored arguments; None if it has no probe."""
        probe = self.policy.probe
        if probe is None:
            return None
        positional, named = self.arguments.call_arguments(self.arguments.decode(args))
        bound = self.arguments.bind(positional, named)
        return probe.make_probe_call(bound.arguments, key, self.policy.timeout, self.result)

    def __repr__(self) -> str:
        return f"<activity {self.name!r}>"


@overload
def activity(fn: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def activity(
    *,
    name: str | None = None,
    levels: Sequence[Level | Duration] | str | None = None,
    immediate: int | None = None,
    timeout: Duration | None = None,
    recoverable: Declared = (),
    unrecoverable: Declared = (),
    transactional: bool = False,
    probe: Callable[..., Any] | None = None,
    resource: str | None = None,
    expected: Duration | None = None,
) -> Callable[[Callable[P, R]], Activity[P, R]]: ...
def activity(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    levels: Sequence[Level | Duration] | str | None = None,
    immediate: int | None = None,
    timeout: Duration | None = None,
    recoverable: Declared = (),
    unrecoverable: Declared = (),
    transactional: bool = False,
    probe: Callable[..., Any] | None = None,
    resource: str | None = None,
    expected: Duration | None = None,
) -> Any:
    """Make a function an activity.

    ``levels`` is its ladder: ``["5s*3", "10m"]``, a wait and a number of tries each (a bare "10m": one try).
    ``immediate`` are retries in the process, before anything becomes a fault. Executions = (immediate + 1) × (1 +
    Σ tries). ``timeout`` stops waiting for it. ``recoverable`` and ``unrecoverable`` are exception classes, or
    functions of the exception. ``transactional`` lets it work in aft's own transaction (``aft.session()``): effect and
    record commit together.

    ``probe`` resolves an unknown outcome before the activity is executed again: a function that takes by name any
    argument of the activity, and ``key``. What it returns is the activity's result; None or ``aft.UNKNOWN`` means that
    nothing was found. ``resource`` names what the activity needs; its faults have the name. ``expected`` is how long it
    should take: an event is emitted when it takes longer.
    """

    given = _ActivityOptions(
        name, levels, immediate, timeout, recoverable, unrecoverable, transactional, probe, resource, expected
    )
    return given.declare if fn is None else given.declare(fn)


@dataclass(frozen=True, slots=True)
class _ActivityOptions:
    """The options of one ``@aft.activity``, as they were written; checked when they are applied to a function."""

    name: str | None
    levels: Sequence[Level | Duration] | str | None
    immediate: int | None
    timeout: Duration | None
    recoverable: Declared
    unrecoverable: Declared
    transactional: bool
    probe: Callable[..., Any] | None
    resource: str | None
    expected: Duration | None

    def declare(self, target: Callable[..., Any]) -> Activity[Any, Any]:
        """Make a function, or an activity that has only a compensator yet, an activity with these options."""
        policy = self._make_policy(target)
        if isinstance(target, Activity):
            if target.policy != Policy():
                raise DefinitionError(f"activity {target.name!r} is declared twice with @aft.activity")
            made: Activity[Any, Any] = target
        else:
            made = Activity(check_function("activity", target))
        name = made.name if self.name is None else check_name("an activity", self.name)
        if self.probe is not None:
            policy = replace(policy, probe=make_probe(name, made.parameters, self.probe))
        made = Activity(made.fn, name=name, policy=policy, compensator=made.compensator)
        registry.add_activity(made)
        return made

    def _make_policy(self, target: Callable[..., Any]) -> Policy:
        """Return the policy without the probe; raises DefinitionError."""
        own = getattr(target, "name", None) or getattr(target, "__name__", "?")
        of = f"activity {format_value(own if self.name is None else self.name, MOST_NAME)}"
        policy = Policy(
            ladder=options.check_levels(of, self.levels),
            immediate=options.check_immediate(of, self.immediate),
            timeout=options.check_duration(of, "timeout", self.timeout),
            recoverable=options.check_declared(of, "recoverable", self.recoverable),
            unrecoverable=options.check_declared(of, "unrecoverable", self.unrecoverable),
            transactional=options.check_bool(f"{of}: transactional", self.transactional),
            resource=options.check_text(of, "resource", self.resource),
            expected=options.check_duration(of, "expected", self.expected),
        )
        options.refuse_both(of, policy.recoverable, policy.unrecoverable)
        return policy


def compensate_with(
    compensator: Callable[..., Any], *, when: When = "completed", only_if: Callable[..., bool] | None = None
) -> Callable[[Callable[P, R]], Activity[P, R]]:
    """Declare how an activity is undone; enough on its own to make a function an activity.

    The compensator takes by name what it needs: any argument of the activity, ``result``, ``fault``, ``key``. With
    ``when="started"`` it is owed even if it is unknown whether the activity had its effect; its ``result`` may then be
    ``aft.UNKNOWN``. It may itself be an activity, with levels of its own; otherwise its activity's apply. ``only_if``
    is called when the activity has completed, by name with its arguments and ``result``: False means that there is
    nothing to undo. It must depend on these only.
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
            made.name, made.parameters, _name_of(made.name, compensator), _function_of(compensator), when, only_if
        )
        made = Activity[P, R](made.fn, name=made.name, policy=made.policy, compensator=undo)
        if isinstance(compensator, Activity):
            # A renamed or re-declared compensator keeps its own levels: they are looked up by name at unwind.
            registry.add_activity(compensator)
        registry.add_activity(made)
        return made

    return declare


def compensator_policy(activity_: Activity[Any, Any], compensator: Compensator) -> Policy:
    """Return a compensator's policy: its own if it is an activity, else that of its activity."""
    own = registry.activity(compensator.name)
    if own is not None and own.fn is compensator.fn:
        return own.policy
    return replace(activity_.policy, transactional=False, probe=None, expected=None)


def make_compensator_probe_call(
    compensator: Compensator, policy: Policy, given: dict[str, Any], key: str
) -> ProbeCall | None:
    """Return the call of a compensator's own probe; None unless it is an activity that declares one."""
    if policy.probe is None:
        return None
    bound = inspect.signature(compensator.fn).bind(**given)
    bound.apply_defaults()
    return policy.probe.make_probe_call(bound.arguments, key, policy.timeout, result_codec(compensator.fn))


def _name_of(activity_: str, compensator: Callable[..., Any]) -> str:
    name = getattr(compensator, "name", None) or getattr(compensator, "__name__", None)
    if not callable(compensator) or not isinstance(name, str) or name == "<lambda>":
        raise DefinitionError(
            f"activity {activity_!r} names {format_value(compensator, 100)} as its compensator; "
            "it must be a named function"
        )
    return name


def _function_of(compensator: Callable[..., Any]) -> Callable[..., Any]:
    return compensator.fn if isinstance(compensator, Activity) else compensator
