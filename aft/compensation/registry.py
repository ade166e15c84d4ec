"""The compensation library: from an activity to the function that undoes it.

A compensator takes by name what it needs: any argument of its activity, and ``result``, ``fault``, ``key``. A name
that fits nothing is an error when the module is imported, not when the undo is owed.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from aft.errors import DefinitionError

When = Literal["completed", "started"]

#: What a compensator may ask for besides its activity's arguments.
EXTRAS = ("result", "fault", "key")


class Unknown(StrEnum):
    """The result of an activity whose outcome is not known: it was started, and nobody saw it end."""

    UNKNOWN = "aft.UNKNOWN"

    def __repr__(self) -> str:
        return "aft.UNKNOWN"

    def __bool__(self) -> bool:
        return False


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Compensator:
    """A function that undoes an activity, and the names it asks for."""

    name: str
    fn: Callable[..., Any]
    wants: tuple[str, ...]
    when: When

    def arguments(self, offered: dict[str, Any]) -> dict[str, Any]:
        """Pick from what there is what this compensator asks for."""
        return {name: offered[name] for name in self.wants if name in offered}


def make_compensator(
    activity: str, parameters: Sequence[str], name: str, fn: Callable[..., Any], when: When
) -> Compensator:
    """Check a compensator against its activity, or raise DefinitionError that says which name does not fit."""
    if when not in ("completed", "started"):
        raise DefinitionError(f"activity {activity!r}: when={when!r} is not known; say 'completed' or 'started'")
    wants = tuple(_wanted(activity, parameters, name, fn))
    if when == "started":
        _check_takes_unknown(activity, name, fn)
    return Compensator(name, fn, wants, when)


def _wanted(activity: str, parameters: Sequence[str], name: str, fn: Callable[..., Any]) -> Iterable[str]:
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from (*parameters, *EXTRAS)
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise DefinitionError(
                f"activity {activity!r} names compensator {name!r}, which takes {parameter.name!r} by position; "
                "a compensator takes what it needs by name"
            )
        elif parameter.name in EXTRAS and parameter.name in parameters:
            raise DefinitionError(
                f"activity {activity!r} has an argument {parameter.name!r}, and its compensator {name!r} asks for "
                f"{parameter.name!r}, which also means aft's own; rename the argument"
            )
        elif parameter.name in parameters or parameter.name in EXTRAS:
            yield parameter.name
        elif parameter.default is inspect.Parameter.empty:
            raise DefinitionError(_no_such_name(activity, parameters, name, parameter.name))


def _no_such_name(activity: str, parameters: Sequence[str], name: str, asked: str) -> str:
    near = difflib.get_close_matches(asked, [*parameters, *EXTRAS], n=1)
    has = ", ".join(repr(parameter) for parameter in parameters) or "none"
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"activity {activity!r} names compensator {name!r}, which takes {asked!r}, but {activity} has no argument "
        f"of that name; it has {has}, and every compensator may take 'result', 'fault', 'key'{hint}"
    )


def _check_takes_unknown(activity: str, name: str, fn: Callable[..., Any]) -> None:
    parameter = inspect.signature(fn).parameters.get("result")
    if parameter is None:
        return
    annotation = parameter.annotation
    accepts = (
        annotation in (inspect.Parameter.empty, Any, object)
        or "Unknown" in str(annotation)
        or (annotation in ("Any", "object", "typing.Any"))
    )
    if not accepts:
        raise DefinitionError(
            f"activity {activity!r} names compensator {name!r} with when='started', so its result may be aft.UNKNOWN, "
            f"but {name} takes result as {annotation!r}; annotate it '… | aft.Unknown', or leave the annotation out"
        )
