"""Rulings: an exlet's decision about a step, written to its fault by the exlet's executor, applied by the run's owner.

A ruling is a value in the fault's row. ``set`` primitives put changed arguments or a changed result into it while the
exlet is under way; the action is set once, by the primitive that decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from aft.codec.text import StoredJson


class RulingAction(StrEnum):
    """What the owner does with the step."""

    GO = "go"  #: go on with it: execute it, or take the result that it had
    COMPLETE = "complete"  #: take this as its result, whatever it would have done
    FAIL = "fail"  #: it has failed for good; the failure is raised in the flow
    PROCEED = "proceed"  #: it has failed for good; the flow goes on with ``aft.FAILED``
    AGAIN = "again"  #: undo what it did, and try it again
    RESTART = "restart"  #: undo what it did, and begin it as if it had never failed
    REMOVE = "remove"  #: its branch ends here
    PARK = "park"  #: a person has to look


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision about a step so far; ``do`` is None until the exlet has decided."""

    do: RulingAction | None = None
    #: Arguments that take the place of the step's own, by name.
    args: dict[str, Any] | None = field(default=None, repr=False)
    #: The result, if one was given: a list of that one value.
    result: tuple[Any, ...] = field(default=(), repr=False)
    #: The reason, for the flow or a person.
    why: str = ""

    def with_args(self, args: dict[str, Any]) -> Ruling:
        """Return a copy with more arguments changed."""
        return replace(self, args={**(self.args or {}), **args})

    def encode(self) -> str:
        """Encode it as JSON."""
        return json.dumps({"do": self.do, "args": self.args, "result": self.result, "why": self.why})

    @classmethod
    def decode(cls, text: str | None) -> Ruling:
        """Decode what :meth:`encode` wrote; None decodes to an empty ruling. Raises ValueError for malformed text."""
        return cls() if text is None else _STORED.read(text)


_STORED: StoredJson[Ruling] = StoredJson(Ruling)
