"""The content of rule files: exlets, and trees as they are written, with uncompiled conditions.

The rules of a tree are a flat tuple that refer to one another by position: a chain of a thousand is nothing special.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aft.rules.exlets.exlet import Exlet
from aft.rules.rule_types import RuleType


@dataclass(frozen=True)
class RuleText:
    """One rule. ``refined`` and ``otherwise`` are positions in the tree's rules."""

    condition: str
    exlet: str
    note: str = ""
    cornerstone: Mapping[str, Any] | None = field(default=None, repr=False)  #: facts of the case that it was made for
    refined: int | None = None  #: asked if this one holds
    otherwise: int | None = None  #: asked if it does not
    id: str = field(default="", compare=False)  #: its name in the file: not compared


@dataclass(frozen=True)
class TreeText:
    """A tree of rules. The first is the root; each is followed by its refinement, then by its alternative.

    So equal trees have equal rules, whichever order they were written or numbered in: :meth:`of` sees to it.
    """

    flow: str
    on: RuleType
    activity: str
    rules: tuple[RuleText, ...] = ()

    @classmethod
    def of(cls, flow: str, on: RuleType, activity: str, rules: Mapping[int, RuleText], root: int | None) -> TreeText:
        """Make a tree of rules that refer to one another by any numbers; raises ValueError if they form none."""
        order: dict[int, int] = {}
        left = [root]
        while left:
            number = left.pop()
            if number is None:
                continue
            if number not in rules or number in order:
                raise ValueError(f"rule {number} is {'led to twice' if number in order else 'missing'}")
            order[number] = len(order)
            left += [rules[number].otherwise, rules[number].refined]
        if len(order) < len(rules):
            raise ValueError(f"no rule leads to {min(rules.keys() - order.keys())}")
        return cls(flow, on, activity, tuple(_renumbered(rules[number], order) for number in order))

    @property
    def key(self) -> tuple[str, str, str]:
        """(flow, rule type, activity): there is one tree for each."""
        return self.flow, self.on.value, self.activity

    def __str__(self) -> str:
        return " ".join(part for part in self.key if part)


def _renumbered(rule: RuleText, order: Mapping[int, int]) -> RuleText:
    return replace(
        rule,
        refined=None if rule.refined is None else order[rule.refined],
        otherwise=None if rule.otherwise is None else order[rule.otherwise],
    )


@dataclass(frozen=True)
class RuleDocument:
    """The content of one or several files, sorted: documents with the same content are equal."""

    exlets: tuple[Exlet, ...] = ()
    trees: tuple[TreeText, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "exlets", tuple(sorted(self.exlets, key=lambda one: one.name)))
        object.__setattr__(self, "trees", tuple(sorted(self.trees, key=lambda one: one.key)))
