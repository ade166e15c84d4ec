"""An exlet: a named list of primitives, carried out in order in response to an exception.

An exlet is a value. :func:`check` verifies that it can be carried out to its end, whatever the case; it is called when
an exlet is saved, so that no run fails on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aft.errors import RuleRefused
from aft.rules.exlets import primitives, validate
from aft.rules.exlets.primitives import Continue, Notify, Park, Primitive, Remove, Retry, Set, Suspend, Target, Unwind
from aft.rules.rule_types import RUN_LEVEL, RuleType
from aft.texts import format_value

#: Primitives of one exlet.
MOST_STEPS = 50
#: Bytes that an exlet takes as JSON.
MOST_BYTES = 65_536


@dataclass(frozen=True, init=False)
class Exlet:
    """A named response: ``Exlet("give_up", [do.notify("https://…"), do.unwind()], about="…")``."""

    name: str
    steps: tuple[Primitive, ...]
    about: str = ""

    def __init__(self, name: str, steps: Iterable[Primitive], about: str = "") -> None:
        if isinstance(steps, str | Mapping) or not isinstance(steps, Iterable):
            raise RuleRefused(
                f"exlet {format_value(name)}: steps must be a list of primitives: [aft.do.retry()], for example"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "steps", tuple(steps))
        object.__setattr__(self, "about", about)

    @property
    def decides(self) -> Primitive | None:
        """The primitive that decides about the activity, or the run; None if none does."""
        return next(filter(primitives.is_deciding, self.steps), None)

    @property
    def only_decides(self) -> bool:
        """Whether it decides and does nothing else: no plan is needed to carry it out."""
        return len(self.steps) == 1 and self.decides is not None

    def encode(self) -> dict[str, Any]:
        """Return it for JSON."""
        about = {"about": self.about} if self.about else {}
        return {"name": self.name, **about, "steps": [one.encode() for one in self.steps]}

    @classmethod
    def decode(cls, value: Any) -> Exlet:
        """Decode what :meth:`encode` wrote; raises RuleRefused. Does not run :func:`check` again."""
        found = dict(validate.table(value, "an exlet"))
        return read_exlet(found.pop("name", None), found)


def read_exlet(name: Any, value: Mapping[str, Any]) -> Exlet:
    """Read an exlet from a file's table, ``about`` and ``steps`` under its name; raises RuleRefused."""
    validate.name(name, "an exlet")
    for key in value:
        if key not in ("about", "steps"):
            raise RuleRefused(
                f"exlet {name!r}: {key!r} is not a key of an exlet; {validate.hint(key, ['about', 'steps'])}"
            )
    steps = value.get("steps")
    if not isinstance(steps, list):
        problem = "is missing" if steps is None else f"is {format_value(steps)}"
        raise RuleRefused(f'exlet {name!r}: steps {problem}; it must be a list: [{{do = "retry"}}], for example')
    found: list[Primitive] = []
    for number, step in enumerate(steps[: MOST_STEPS + 1], start=1):
        try:
            found.append(primitives.decode(step))
        except RuleRefused as refused:
            raise RuleRefused(f"exlet {name!r}, primitive {number}: {refused}") from None
    about = validate.text(value.get("about", ""), f"exlet {name!r}: about", most=MOST_BYTES, empty=True)
    return Exlet(name, found, about)


#: Exlets that are always there and cannot be changed.
BUILT_IN: Mapping[str, Exlet] = MappingProxyType(
    {
        one.name: one
        for one in (
            Exlet("ladder", [Retry()], "Try again later, where its ladder says."),
            Exlet("unwind", [Unwind()], "Undo everything that was done, in reverse order."),
            Exlet("park", [Park("no rule knows a way on; a person must look at it")], "Wait for a person."),
        )
    }
)


def check(exlet: Exlet, sources: Mapping[str, str] = MappingProxyType({})) -> Exlet:
    """Return the exlet if it can be saved; raises RuleRefused that says which primitive is wrong, and what to do.

    ``sources`` are the types of the sources that users have registered, for the expressions in it.
    """
    validate.name(exlet.name, "an exlet")
    if exlet.name in BUILT_IN and exlet != BUILT_IN[exlet.name]:
        raise RuleRefused(f"exlet {exlet.name!r} is built in and stays as it is; choose another name")
    validate.text(exlet.about, f"exlet {exlet.name!r}: about", most=MOST_BYTES, empty=True)
    if not exlet.steps:
        raise RuleRefused(f"exlet {exlet.name!r} does nothing; give it steps, [aft.do.retry()] for example")
    if len(exlet.steps) > MOST_STEPS:
        raise RuleRefused(f"exlet {exlet.name!r} has more than {MOST_STEPS} primitives; make two of it")
    for number, one in enumerate(exlet.steps, start=1):
        if not isinstance(one, Primitive):
            raise RuleRefused(
                f"exlet {exlet.name!r}, primitive {number}: {format_value(one)} is none; make it with aft.do"
            )
    _check_size(exlet)
    _Walk(exlet).check()
    for number, one in enumerate(exlet.steps, start=1):
        _check_expressions(exlet, number, one, sources)
    return exlet


def check_for(exlet: Exlet, on: RuleType) -> Exlet:
    """Return the exlet if it can answer that rule type; raises RuleRefused."""
    if on in RUN_LEVEL:
        for number, one in enumerate(exlet.steps, start=1):
            if primitives.needs_activity(one):
                raise _refusal(
                    exlet, number, f"{on.value!r} is about a run as a whole, and there is no activity to do this to"
                )
    return exlet


def _refusal(exlet: Exlet, number: int, problem: str) -> RuleRefused:
    return RuleRefused(f"exlet {exlet.name!r}, primitive {number}: {exlet.steps[number - 1]}: {problem}")


def _check_size(exlet: Exlet) -> None:
    try:
        size = len(json.dumps(exlet.encode(), ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise RuleRefused(f"exlet {exlet.name!r} holds a lone surrogate, which is no character") from None
    if size > MOST_BYTES:
        raise RuleRefused(
            f"exlet {exlet.name!r} has {size} bytes as JSON; {MOST_BYTES} are the most; "
            "store data elsewhere and pass a reference"
        )


def _check_expressions(exlet: Exlet, number: int, one: Primitive, sources: Mapping[str, str]) -> None:
    found = primitives.expressions(one)
    if not found:
        return
    from aft.rules.cel.conditions import Expression  # only here: most exlets compute nothing

    for where, source in found.items():
        try:
            Expression.compile(source, sources)
        except RuleRefused as refused:
            raise _refusal(exlet, number, f"{where}: {refused}") from None


#: What is suspended no longer once a target was removed.
_REMOVES = {
    Target.ACTIVITY: {Target.ACTIVITY},
    Target.RUN: {Target.ACTIVITY, Target.RUN},
    Target.FLOW: {Target.ACTIVITY, Target.RUN, Target.FLOW},
    Target.ANCESTORS: {Target.ANCESTORS},
}


class _Walk:
    """Walks through an exlet as if to carry it out, and tracks what is suspended and decided."""

    def __init__(self, exlet: Exlet) -> None:
        self._exlet = exlet
        self._suspended: dict[Target, int] = {}
        self._decided = 0  #: the number of the primitive that decided; 0: none yet
        self._final = 0

    def check(self) -> None:
        """Raise RuleRefused at the first primitive that is not allowed in its place."""
        for number, one in enumerate(self._exlet.steps, start=1):
            if problem := self._late(one) or self._misplaced(one):
                raise _refusal(self._exlet, number, problem)
            self._take(number, one)
        for target, number in self._suspended.items():
            raise _refusal(self._exlet, number, _left(target))

    def _late(self, one: Primitive) -> str | None:
        """Return what is wrong with a primitive, given what was decided before; None if nothing."""
        if self._decided and primitives.is_deciding(one):
            return f"{self._told(self._decided)} has decided already what becomes of it; keep one of the two"
        if self._final and not isinstance(one, Notify | Continue):
            return (
                f"nothing but notify and continue may follow {self._told(self._final)}, which is final; put it before"
            )
        suspends = isinstance(one, Suspend) and one.target is Target.ACTIVITY
        if self._decided and (suspends or (isinstance(one, Set) and one.of_activity)):
            return f"it comes too late: {self._told(self._decided)} has decided about the activity; put it before"
        return None

    def _misplaced(self, one: Primitive) -> str | None:
        """Return what is wrong with a primitive, given what was suspended before; None if nothing."""
        if isinstance(one, Continue) and one.target not in self._suspended:
            return f"nothing before it suspends the {one.target}; only what an exlet has suspended can it continue"
        if isinstance(one, Suspend) and one.target in self._suspended:
            return f"{self._told(self._suspended[one.target])} has done so already; leave one of the two out"
        return None

    def _take(self, number: int, one: Primitive) -> None:
        if primitives.is_deciding(one):
            self._decided = number
            self._suspended.pop(Target.ACTIVITY, None)
        if primitives.is_final(one):
            self._final = self._final or number
        match one:
            case Suspend(target=target):
                self._suspended[target] = number
            case Continue(target=target):
                self._suspended.pop(target, None)
            case Remove(target=target):
                for gone in _REMOVES[target]:
                    self._suspended.pop(gone, None)

    def _told(self, number: int) -> str:
        return f"primitive {number} ({self._exlet.steps[number - 1]})"


def _left(target: Target) -> str:
    if target is Target.ACTIVITY:
        return "the activity would stay suspended; add continue activity, or what else shall become of it, after it"
    return f"the {target} would stay suspended; add continue {target}, or remove {target}, after it"
