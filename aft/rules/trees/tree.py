"""Ripple-down rules: a binary tree of conditions, asked from the root, that chooses an exlet for a case.

    condition holds ───► the refinement below it is asked: an exception to the rule
        │ does not
        ▼
    the alternative is asked

The walk ends where no rule is left to ask; the last rule that held gives the answer. A new rule is attached exactly
there, where the walk for its case ended: so it is asked only for cases that got the same answer in the same way, and
nothing else changes. That makes trees teachable while they are in use.

Trees are values: changing one gives another one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict

from aft.codec.text import StoredJson
from aft.errors import RuleRefused
from aft.rules.cases.facts import Facts, fact_types
from aft.rules.cel.conditions import NO_SOURCES, Condition, Evaluation, PreparedFacts, Sources, names
from aft.rules.rule_types import RUN_LEVEL, RuleType

#: Flow or activity of a tree: all of them.
ALL = "*"
#: Stored rules are read strictly: nothing unknown, and no text for a number.
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Node:
    """One rule: if the condition holds, this exlet, unless a refinement chooses another."""

    id: int
    condition: str
    exlet: str
    refined: int | None = None  #: asked next if the condition holds
    otherwise: int | None = None  #: asked next if it does not
    note: str = ""
    made_by: str = ""
    made_at: datetime | None = None
    #: The case that it was made for; None if it came without one.
    cornerstone: Facts | None = field(repr=False, default=None, hash=False)
    fault_id: str | None = None

    __pydantic_config__: ClassVar = _STRICT

    def encode(self) -> dict[str, Any]:
        """Return the rule for JSON; what is not set is left out."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        if self.made_at is not None:
            given["made_at"] = self.made_at.isoformat()
        if self.cornerstone is not None:
            given["cornerstone"] = dict(self.cornerstone)
        return {name: value for name, value in given.items() if name in _NEEDED or value not in (None, "")}


_NEEDED = {"id", "condition", "exlet"}


class RuleStep(NamedTuple):
    """One rule that was asked, and its answer."""

    node: int
    holds: bool
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """The rules that were asked for a case, in order, and the last that held, if one did."""

    steps: tuple[RuleStep, ...] = ()
    chosen: Node | None = None

    @property
    def exlet(self) -> str | None:
        """The answer; None if this tree has none."""
        return None if self.chosen is None else self.chosen.exlet

    @property
    def end(self) -> tuple[int, bool] | None:
        """The last rule asked, and whether it held; None if none was asked. A new rule would be attached there."""
        return (self.steps[-1].node, self.steps[-1].holds) if self.steps else None


@dataclass(frozen=True, slots=True)
class Tree:
    """The rules for one rule type of one activity of one flow. Raises ValueError unless it is a tree."""

    flow: str  #: "*": all
    on: RuleType
    activity: str  #: "*": all; "" where the exception is a run's
    revision: int = 0
    nodes: Mapping[int, Node] = field(default_factory=dict, hash=False)
    root: int | None = None

    def __post_init__(self) -> None:
        if not self.flow:
            raise ValueError(f"flow={self.flow!r} of a tree must be a name, or {ALL!r}")
        if (self.activity == "") != (self.on in RUN_LEVEL):
            wanted = "'': it is about a run" if self.on in RUN_LEVEL else f"a name, or {ALL!r}"
            raise ValueError(f"activity={self.activity!r} of a tree for {self.on.value!r} must be {wanted}")
        if self.revision < 0:
            raise ValueError(f"revision={self.revision!r} of a tree must be a whole number from 0")
        _check_shape(self.nodes, self.root)

    def attach(self, walk: Walk, node: Node) -> Tree:
        """Return the tree with one more rule, attached where that walk through it ended. Raises ValueError.

        It goes on the true branch of the last rule asked if that held, else on its false branch; into an empty tree as
        its root. The revision stays: saving the tree gives it the next one.
        """
        if node.id in self.nodes:
            raise ValueError(f"rule {node.id} is there already; the next free number is {self.next_id()}")
        end = walk.end
        if end is None:
            if self.root is not None:
                raise ValueError("this walk asked nobody, but the tree has rules; walk through the tree as it is now")
            return dataclasses.replace(self, nodes={node.id: node}, root=node.id)
        last, held = end
        parent = self.nodes.get(last)
        if parent is None or (parent.refined if held else parent.otherwise) is not None:
            raise ValueError(f"the walk ended at rule {last}, where this tree goes on; walk through it as it is now")
        if held:
            parent = dataclasses.replace(parent, refined=node.id)
        else:
            parent = dataclasses.replace(parent, otherwise=node.id)
        return dataclasses.replace(self, nodes={**self.nodes, last: parent, node.id: node})

    def next_id(self) -> int:
        """Return a number that no rule of this tree has."""
        return max(self.nodes, default=0) + 1

    def encode(self) -> str:
        """Encode the tree as JSON."""
        rest = {name: getattr(self, name) for name in ("flow", "on", "activity", "revision", "root")}
        return json.dumps({**rest, "nodes": [self.nodes[number].encode() for number in sorted(self.nodes)]})

    @classmethod
    def decode(cls, text: str) -> Tree:
        """Decode what :meth:`encode` wrote; raises ValueError on anything else."""
        stored = _STORED.read(text)
        by_id = {node.id: node for node in stored.nodes}
        if len(by_id) != len(stored.nodes):
            raise ValueError("two rules of a stored tree have the same number")
        return cls(stored.flow, stored.on, stored.activity, stored.revision, by_id, stored.root)


@dataclass(frozen=True, slots=True)
class _StoredTree:
    """A tree as it is stored: its rules are a list."""

    flow: str
    on: RuleType
    activity: str
    revision: int
    nodes: list[Node]
    root: int | None

    __pydantic_config__: ClassVar = _STRICT


_STORED: StoredJson[_StoredTree] = StoredJson(_StoredTree)


def _check_shape(nodes: Mapping[int, Node], root: int | None) -> None:
    """Raise ValueError unless every rule but the root is the child of exactly one, and all are below the root."""
    if root is None:
        if nodes:
            raise ValueError("the tree has rules but no root")
        return
    parents: dict[int, int] = {}
    for number, node in nodes.items():
        if number != node.id:
            raise ValueError(f"rule {node.id} is filed as {number}")
        for child in (node.refined, node.otherwise):
            if child is None:
                continue
            if child not in nodes:
                raise ValueError(f"rule {number} leads to rule {child}, which is not there")
            if child in parents:
                raise ValueError(f"rules {parents[child]} and {number} both lead to rule {child}")
            parents[child] = number
    if root not in nodes:
        raise ValueError(f"the root, rule {root!r}, is not there")
    if root in parents:
        raise ValueError(f"rule {parents[root]} leads back to the root: the rules go round in a circle")
    # With one parent each and none for the root, a rule that has no parent or is not reached is lost or in a cycle.
    lost = sorted(nodes.keys() - set(_reached(nodes, root)))
    if lost:
        raise ValueError(f"rule {lost[0]} cannot be reached from the root")


def _reached(nodes: Mapping[int, Node], root: int) -> Iterator[int]:
    waiting = [root]
    while waiting:
        number = waiting.pop()
        yield number
        waiting.extend(child for child in (nodes[number].refined, nodes[number].otherwise) if child is not None)


class CompiledTree:
    """A tree ready to be asked: conditions are compiled when they are first asked, and kept."""

    def __init__(self, tree: Tree, sources: Sources = NO_SOURCES) -> None:
        self.tree = tree
        self.sources = dict(sources)
        self._conditions: dict[int, Condition | _Unreadable] = {}
        self._names: frozenset[str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The facts that its conditions mention: only these need to be gathered."""
        if self._names is None:
            known = fact_types(self.sources)
            found = (names(node.condition, known) for node in self.tree.nodes.values())
            self._names = frozenset().union(*found)
        return self._names

    def check(self) -> None:
        """Compile every condition; raises RuleRefused that names the rule. Call it before saving a tree."""
        for number, node in self.tree.nodes.items():
            try:
                self._conditions[number] = Condition.compile(node.condition, self.sources)
            except RuleRefused as refused:
                raise RuleRefused(f"rule {number}: {refused}") from None

    def walk(self, facts: Facts) -> Walk:
        """Walk through the tree with a case. Never raises: what cannot be evaluated does not hold, with a warning."""
        nodes, here = self.tree.nodes, self.tree.root
        if here is None:
            return Walk()
        case = PreparedFacts(facts, self.sources, self.names)
        conditions, steps, chosen = self._conditions, list[RuleStep](), None
        while here is not None:
            condition = conditions.get(here) or self._compile(here)
            holds, warning = condition.holds(case)
            steps.append(RuleStep(here, holds, warning))
            node = nodes[here]
            if holds:
                chosen, here = node, node.refined
            else:
                here = node.otherwise
        return Walk(tuple(steps), chosen)

    def _compile(self, number: int) -> Condition | _Unreadable:
        source = self.tree.nodes[number].condition
        try:
            found: Condition | _Unreadable = Condition.compile(source, self.sources)
        except RuleRefused as refused:
            # It was right when it was saved: a source that it asks is no longer registered, or this aft is older.
            found = _Unreadable(f"{source!r:.120} cannot be read here: {refused}")
        self._conditions[number] = found
        return found


class _Unreadable:
    """A condition that cannot be compiled: it does not hold, with a warning."""

    def __init__(self, warning: str) -> None:
        self._answer = Evaluation(False, warning)

    def holds(self, _: Facts | PreparedFacts) -> Evaluation:
        return self._answer
