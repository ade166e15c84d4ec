"""Chooses an exlet for a case: which trees are asked, in which order, and why the choice. Pure.

The most specific tree is asked first: flow and activity, the flow, the activity in every flow, everything. The first
that chooses an exlet wins; inside a tree it is the last rule that held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aft.codec.text import StoredJson
from aft.rules.cases.case import Case
from aft.rules.rule_types import RUN_LEVEL, RuleType
from aft.rules.trees.tree import CompiledTree

#: Stands for every flow, or every activity.
ANY = "*"


def keys(on: RuleType, flow: str, activity: str) -> Iterator[tuple[str, RuleType, str]]:
    """Yield the keys of trees that may answer, the most specific first."""
    activities = [""] if on in RUN_LEVEL else [activity, ANY] if activity else [ANY]
    for of_flow in (flow, ANY):
        for of_activity in activities:
            yield of_flow, on, of_activity


@dataclass(frozen=True, slots=True)
class AskedTree:
    """One tree that was asked, and the answers of its rules on the way: number, held, warning."""

    flow: str
    activity: str
    revision: int
    steps: list[tuple[int, bool, str | None]]


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """What the rules chose for a case, and why; stored with the fault."""

    on: str
    exlet: str
    node: int
    condition: str
    asked: list[AskedTree]
    #: The facts that the rules on the way mention.
    facts: dict[str, Any] = field(repr=False)
    warnings: list[str]

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RuleChoice:
        """Decode what :meth:`encode` wrote; raises ValueError on anything else."""
        return _STORED.read(text)

    @property
    def why(self) -> str:
        """The choice in one sentence."""
        last = self.asked[-1]
        where = f"{last.flow} × {self.on}" + (f" × {last.activity}" if last.activity else "")
        return f"rule {self.node} of {where} (revision {last.revision}): {self.condition} → {self.exlet}"


_STORED: StoredJson[RuleChoice] = StoredJson(RuleChoice)


def choose_rule(trees: Sequence[CompiledTree], on: RuleType, case: Case) -> RuleChoice | None:
    """Ask trees in this order; return None if nothing was chosen. Warnings are added to the case."""
    asked: list[AskedTree] = []
    names: set[str] = set()
    for tree in trees:
        names |= tree.names
        walk = tree.walk(case.gather(tree.names))
        of = tree.tree
        asked.append(AskedTree(of.flow, of.activity, of.revision, list(walk.steps)))
        case.warnings += [warning for _, _, warning in walk.steps if warning]
        if walk.chosen is not None:
            facts = {name: value for name, value in case.facts.items() if name in names}
            chosen = walk.chosen
            return RuleChoice(on.value, chosen.exlet, chosen.id, chosen.condition, asked, facts, list(case.warnings))
    return None
