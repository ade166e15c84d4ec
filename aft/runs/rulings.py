"""What an exlet has made of a step: written into its fault by whoever carries the exlet out, obeyed by the run's owner.

A ruling is a value that lies in the fault's row. ``set`` primitives put changed arguments or a changed result into it
while the exlet is under way; what becomes of the step is said once, by the primitive that decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Do(StrEnum):
    """What the owner shall make of the step."""

    GO = "go"  #: go on with it: execute it, or take the result that it had
    COMPLETE = "complete"  #: take this as its result, whatever it would have done
    FAIL = "fail"  #: it has failed for good; the flow hears of it
    PROCEED = "proceed"  #: it has failed for good; the flow goes on with ``aft.FAILED``
    AGAIN = "again"  #: try it again; what it did is undone before
    RESTART = "restart"  #: begin it anew, as if it had never failed; what it did is undone before
    REMOVE = "remove"  #: its branch ends here
    PARK = "park"  #: a person has to look


@dataclass(frozen=True, slots=True)
class Ruling:
    """What was decided about a step, so far; ``do`` None: nothing yet."""

    do: Do | None = None
    #: Arguments that take the place of the step's own, by name.
    args: dict[str, Any] | None = None
    #: The result, if one was given: a list of that one value.
    result: tuple[Any, ...] = ()
    #: What the flow, or a person, is told.
    why: str = ""

    def with_args(self, args: dict[str, Any]) -> Ruling:
        """The same with more arguments changed."""
        return replace(self, args={**(self.args or {}), **args})

    def encode(self) -> str:
        """Spell it as JSON."""
        return json.dumps({"do": self.do, "args": self.args, "result": list(self.result), "why": self.why})

    @classmethod
    def decode(cls, text: str | None) -> Ruling:
        """Read what :meth:`encode` wrote; nothing reads as nothing decided. Raises ValueError on anything else."""
        if text is None:
            return cls()
        found = json.loads(text)
        do = None if found.get("do") is None else Do(found["do"])
        return cls(do, found.get("args"), tuple(found.get("result") or ()), str(found.get("why") or ""))
