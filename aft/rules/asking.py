"""Asking the rules about a case: which trees, in which order, and what was chosen for which reason. Pure.

The most special tree is asked first: flow and activity, the flow, the activity in every flow, everything. The first
that chooses an exlet wins; inside a tree it is the last rule that held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aft.rules.case import Case
from aft.rules.kinds import RUN_LEVEL, On
from aft.rules.tree import CompiledTree

#: Stands for every flow, or every activity.
ANY = "*"


def keys(on: On, flow: str, activity: str) -> Iterator[tuple[str, On, str]]:
    """The trees that may answer, the most special first."""
    activities = [""] if on in RUN_LEVEL else [activity, ANY] if activity else [ANY]
    for of_flow in (flow, ANY):
        for of_activity in activities:
            yield of_flow, on, of_activity


@dataclass(frozen=True, slots=True)
class Asked:
    """One tree that was asked, and how each of its rules on the way answered: number, held, warning."""

    flow: str
    activity: str
    revision: int
    steps: list[tuple[int, bool, str | None]]


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """What the rules chose for a case, and why; kept with the fault."""

    on: str
    exlet: str
    node: int
    condition: str
    asked: list[Asked]
    #: The facts that the rules on the way mention.
    facts: dict[str, Any]
    warnings: list[str]

    def encode(self) -> str:
        """Spell it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RuleChoice:
        """Read what :meth:`encode` wrote; raises ValueError on anything else."""
        try:
            found = json.loads(text)
            asked = [
                Asked(one["flow"], one["activity"], one["revision"], [(int(n), bool(h), w) for n, h, w in one["steps"]])
                for one in found.pop("asked")
            ]
            return cls(asked=asked, **found)
        except (KeyError, TypeError) as error:
            raise ValueError(f"a stored decision cannot be read: {error!r}") from None

    @property
    def why(self) -> str:
        """The choice in one sentence."""
        last = self.asked[-1]
        where = f"{last.flow} × {self.on}" + (f" × {last.activity}" if last.activity else "")
        return f"rule {self.node} of {where} (revision {last.revision}): {self.condition} → {self.exlet}"


def ask(trees: Sequence[CompiledTree], on: On, case: Case) -> RuleChoice | None:
    """Ask trees in this order; None: nothing was chosen, or there is nothing to ask. The case keeps the warnings."""
    asked: list[Asked] = []
    names: set[str] = set()
    for tree in trees:
        names |= tree.names
        walk = tree.ask(case.learn(tree.names))
        of = tree.tree
        asked.append(Asked(of.flow, of.activity, of.revision, list(walk.steps)))
        case.warnings += [warning for _, _, warning in walk.steps if warning]
        if walk.chosen is not None:
            facts = {name: value for name, value in case.facts.items() if name in names}
            chosen = walk.chosen
            return RuleChoice(on.value, chosen.exlet, chosen.id, chosen.condition, asked, facts, list(case.warnings))
    return None
