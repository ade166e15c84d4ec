"""Previews a new rule: tries it on the cornerstones of other rules before it is saved.

A rule is taught with a case: the one that got the wrong answer. Its place follows from that case, so it can only affect
cases that ended their walk at the same place. Of these, the cornerstones of other rules are known: if one of them would
get another exlet now, the new condition is too wide, or its author wants exactly that and has to accept it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from aft.errors import RuleRefused
from aft.rules.cases.facts import Facts
from aft.rules.cel.conditions import Condition, PreparedFacts
from aft.rules.trees.tree import CompiledTree, Node, Tree, Walk


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rule whose own cornerstone would get another exlet than before."""

    node: Node
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree with one more rule, not saved yet."""

    tree: Tree
    node: Node
    walk: Walk  #: how its case went through the tree as it is
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedCase:
    """A case that would get another exlet; None: this tree has none for it."""

    case: Facts = field(repr=False, hash=False)
    before: str | None
    after: str | None


def propose(
    compiled: CompiledTree,
    facts: Facts,
    condition: str,
    exlet: str,
    *,
    note: str = "",
    made_by: str = "",
    made_at: datetime | None = None,
    fault_id: str | None = None,
) -> Proposal:
    """Make a rule from a case: find its place, and the rules whose cornerstones it would take over.

    Raises RuleRefused if the condition cannot be compiled, or does not hold for the very case that it is made for.
    """
    rule = Condition.compile(condition, compiled.sources)
    answer = rule.holds(facts)
    if not answer.holds:
        why = answer.warning or f"{condition!r:.120} is false there"
        raise RuleRefused(f"the rule does not hold for the case that it is made for: {why}")
    walk = compiled.walk(facts)
    node = Node(
        compiled.tree.next_id(),
        condition,
        exlet,
        note=note,
        made_by=made_by,
        made_at=made_at,
        cornerstone=dict(facts),
        fault_id=fault_id,
    )
    return Proposal(compiled.tree.attach(walk, node), node, walk, _conflicts(compiled, walk, rule, exlet, fault_id))


def _conflicts(
    compiled: CompiledTree, walk: Walk, rule: Condition, exlet: str, fault_id: str | None
) -> tuple[Conflict, ...]:
    found = []
    for node in compiled.tree.nodes.values():
        # A person who refines a rule from the case that it was made for knows that this case gets another answer.
        if node.cornerstone is None or (fault_id is not None and node.fault_id == fault_id):
            continue
        theirs = compiled.walk(node.cornerstone)
        # A case that ends elsewhere never meets the new rule.
        if theirs.end != walk.end or theirs.exlet == exlet:
            continue
        if rule.holds(PreparedFacts(node.cornerstone, compiled.sources)).holds:
            found.append(Conflict(node, theirs.exlet, exlet))
    return tuple(found)


def compare(before: CompiledTree, after: CompiledTree, cases: Iterable[Facts]) -> list[ChangedCase]:
    """Return the cases that the two trees answer differently, in order."""
    found = []
    for case in cases:
        old, new = before.walk(case).exlet, after.walk(case).exlet
        if old != new:
            found.append(ChangedCase(case, old, new))
    return found
