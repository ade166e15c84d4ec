"""Compensators: checks a compensator's parameters against its activity, and selects its arguments.

A compensator takes by name what it needs: any argument of its activity, and ``result``, ``fault``, ``key``. An unknown
name is an error when the module is imported, not when the frame is unwound.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from aft.errors import DefinitionError, is_interrupt
from aft.telemetry import logger
from aft.texts import format_value

When = Literal["completed", "started"]

#: The names that a compensator may take besides its activity's arguments.
EXTRAS = ("result", "fault", "key")


class Unknown(StrEnum):
    """The result of an activity whose outcome is unknown: it was started, and its end was not recorded."""

    UNKNOWN = "aft.UNKNOWN"

    def __repr__(self) -> str:
        return "aft.UNKNOWN"

    def __bool__(self) -> bool:
        return False


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Compensator:
    """A function that undoes an activity, and the names of the parameters that it takes."""

    name: str
    fn: Callable[..., Any]
    wants: tuple[str, ...]
    when: When
    #: The condition, with parameters of the same names, that the undo is owed; None: always.
    only_if: Callable[..., bool] | None = None
    only_if_wants: tuple[str, ...] = ()

    @property
    def does_without_result(self) -> bool:
        """Whether its signature declares that it can undo an activity whose result is unknown."""
        if "result" not in self.wants:
            return True
        parameter = inspect.signature(self.fn).parameters.get("result")
        return parameter is not None and "Unknown" in str(parameter.annotation)

    def is_owed(self, offered: dict[str, Any]) -> bool:
        """Return whether a completed activity has to be undone; True, to be safe, if the condition raises."""
        if self.only_if is None:
            return True
        try:
            return bool(self.only_if(**{name: offered[name] for name in self.only_if_wants if name in offered}))
        except BaseException as raised:
            if is_interrupt(raised):
                raise
            logger.exception("condition of compensator %s raised; its undo is owed", self.name)
            return True

    def arguments(self, offered: dict[str, Any]) -> dict[str, Any]:
        """Select the arguments that this compensator takes from those offered."""
        return {name: offered[name] for name in self.wants if name in offered}


def make_compensator(
    activity: str,
    parameters: Sequence[str],
    name: str,
    fn: Callable[..., Any],
    when: When,
    only_if: Callable[..., bool] | None = None,
) -> Compensator:
    """Check a compensator against its activity; raises DefinitionError that says which name does not fit."""
    if not isinstance(when, str) or when not in ("completed", "started"):
        raise DefinitionError(
            f"activity {activity!r}: when={format_value(when)} is not known; say 'completed' or 'started'"
        )
    wants = wanted("compensator", EXTRAS, activity, parameters, name, fn)
    asks: tuple[str, ...] = ()
    if only_if is not None:
        if when != "completed":
            raise DefinitionError(
                f"activity {activity!r}: only_if needs to know what came of it, and when='started' is owed before "
                "that; leave one of them out, or let the compensator itself find out"
            )
        asks = wanted("condition", ("result",), activity, parameters, getattr(only_if, "__name__", "only_if"), only_if)
    made = Compensator(name, fn, wants, when, only_if, asks)
    if when == "started":
        check_takes_unknown(activity, made, "when='started'")
    return made


def wanted(
    role: str, extras: Sequence[str], activity: str, parameters: Sequence[str], name: str, fn: Callable[..., Any]
) -> tuple[str, ...]:
    """Return the names that a function in this role takes; raises DefinitionError for an unknown one."""
    return tuple(_wanted(role, extras, activity, parameters, name, fn))


def _wanted(
    role: str, extras: Sequence[str], activity: str, parameters: Sequence[str], name: str, fn: Callable[..., Any]
) -> Iterable[str]:
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from (*parameters, *extras)
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise DefinitionError(
                f"activity {activity!r} names {role} {name!r}, which takes {parameter.name!r} by position; "
                f"a {role} takes what it needs by name"
            )
        elif parameter.name in extras and parameter.name in parameters:
            raise DefinitionError(
                f"activity {activity!r} has an argument {parameter.name!r}, and its {role} {name!r} asks for "
                f"{parameter.name!r}, which also means aft's own; rename the argument"
            )
        elif parameter.name in parameters or parameter.name in extras:
            yield parameter.name
        elif parameter.default is inspect.Parameter.empty:
            asked = f"activity {activity!r} names {role} {name!r}, which takes {parameter.name!r}"
            has = _has(role, extras, parameters, parameter.name)
            raise DefinitionError(f"{asked}, but {activity} has no argument of that name; {has}")


def _has(role: str, extras: Sequence[str], parameters: Sequence[str], asked: str) -> str:
    near = difflib.get_close_matches(asked, [*parameters, *extras], n=1)
    has = ", ".join(map(repr, parameters)) or "none"
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"it has {has}, and every {role} may take {', '.join(map(repr, extras))}{hint}"


def check_takes_unknown(activity: str, compensator: Compensator, because: str) -> None:
    """Raise DefinitionError if a compensator declares that it cannot take ``result=aft.UNKNOWN``."""
    parameter = inspect.signature(compensator.fn).parameters.get("result")
    if parameter is None:
        return
    annotation = parameter.annotation
    accepts = (
        annotation in (inspect.Parameter.empty, Any, object)
        or "Unknown" in str(annotation)
        or (annotation in ("Any", "object", "typing.Any"))
    )
    if not accepts:
        name = compensator.name
        raise DefinitionError(
            f"activity {activity!r} names compensator {name!r} with {because}, so its result may be aft.UNKNOWN, "
            f"but {name} takes result as {annotation!r}; annotate it '… | aft.Unknown', or leave the annotation out"
        )
