"""Probes resolve the unknown outcome of an activity before it is executed again.

A worker died, an answer was lost, a call timed out: the effect may have happened. The probe queries the other side, and
what it finds is the activity's outcome. It takes by name what it needs: any argument of its activity, and ``key``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from aft.codec import ValueCodec
from aft.compensation.registry import UNKNOWN, wanted
from aft.errors import DefinitionError
from aft.texts import format_value

#: Names that a probe may take besides its activity's arguments.
EXTRAS = ("key",)


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """A probe with its arguments and time limit; ``read`` converts its answer to a result, or UNKNOWN."""

    what: str
    fn: Callable[..., Any]
    kwargs: dict[str, Any] = field(repr=False)
    key: str
    timeout: timedelta | None
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that checks whether an activity had its effect, and the argument names that it takes."""

    name: str
    fn: Callable[..., Any]
    wants: tuple[str, ...]

    def make_probe_call(
        self, arguments: Mapping[str, Any], key: str, timeout: timedelta | None, result: ValueCodec
    ) -> ProbeCall:
        """Make the probe call for one call of the activity; ``key`` is that call's own."""
        offered = {**arguments, "key": key}
        return ProbeCall(
            what=f"probe {self.name!r}",
            fn=self.fn,
            kwargs={name: offered[name] for name in self.wants if name in offered},
            key=key,
            timeout=timeout,
            read=lambda answer: self._read(answer, result),
        )

    def _read(self, answer: Any, result: ValueCodec) -> Any:
        """Convert an answer to what the activity would have returned; raises CodecError if it could not have."""
        if answer is None or answer is UNKNOWN:
            return UNKNOWN
        if result.annotation is type(None):
            return None if answer else UNKNOWN  # there is no result to find, only whether it happened
        return result.decode(result.encode(answer, f"what probe {self.name!r} found"))


def make_probe(activity: str, parameters: Sequence[str], given: Callable[..., Any]) -> Probe:
    """Check a probe against its activity, or raise DefinitionError that says what does not fit."""
    name = getattr(given, "name", None) or getattr(given, "__name__", None)
    if not callable(given) or not isinstance(name, str) or name == "<lambda>":
        raise DefinitionError(
            f"activity {activity!r} names {format_value(given, 100)} as its probe; it must be a named function"
        )
    if getattr(getattr(given, "policy", None), "transactional", False):
        raise DefinitionError(
            f"activity {activity!r} names probe {name!r}, which is transactional: a probe only looks, and has no "
            "transaction of aft's; make it a plain function"
        )
    fn: Callable[..., Any] = getattr(given, "fn", given)  # one that is an activity itself is asked as a function
    return Probe(name, fn, wanted("probe", EXTRAS, activity, parameters, name, fn))
