"""The JSON of rules and exlets: one function for each kind of object. Keys are stable."""

from __future__ import annotations

from typing import Any

from aft.app.hindsight import Preview
from aft.app.rules import Explanation, Trial
from aft.app.sheets import in_order
from aft.cli import shapes
from aft.cli.output import iso
from aft.rules.asking import Asked, RuleChoice
from aft.rules.exlets import BUILT_IN, Exlet
from aft.rules.kinds import On
from aft.rules.plans import Plan
from aft.rules.rows import Key, Revision
from aft.rules.teaching import Proposal
from aft.rules.tree import Node, Tree


def key(one: Key) -> dict[str, Any]:
    """What there is one tree for."""
    return {"flow": one[0], "on": one[1].value, "activity": one[2]}


def tree(one: Tree) -> dict[str, Any]:
    """A tree, its rules in the order in which they are asked."""
    return {
        "flow": one.flow,
        "on": one.on.value,
        "activity": one.activity,
        "revision": one.revision,
        "built_in": one.revision == 0,
        "root": one.root,
        "rules": [rule(node, refines=above) for node, _, above in in_order(one)],
    }


def rule(node: Node, refines: int | None = None) -> dict[str, Any]:
    """A rule; ``refined`` is asked next if it holds, ``otherwise`` if it does not."""
    return {
        "number": node.id,
        "condition": node.condition,
        "exlet": node.exlet,
        "refines": refines,
        "refined": node.refined,
        "otherwise": node.otherwise,
        "note": node.note or None,
        "made_by": node.made_by,
        "made_at": iso(node.made_at),
        "fault": node.fault_id,
        "cornerstone": node.cornerstone,
    }


def revision(one: Revision, what: str = "") -> dict[str, Any]:
    """A revision of a tree."""
    flow, on, activity = one.key
    return {"flow": flow, "on": on, "activity": activity, **_made(one), "what": what}


def exlet(one: Exlet, history: list[Revision], chosen_by: list[tuple[Key, Node]]) -> dict[str, Any]:
    """An exlet, who changed it, and the rules that choose it."""
    return {
        "name": one.name,
        "about": one.about,
        "steps": [step.encode() for step in one.steps],
        "does": [str(step) for step in one.steps],
        "built_in": one.name in BUILT_IN,
        "revision": history[0].number if history else 0,
        "history": [_made(made) for made in history],
        "chosen_by": [{**key(of), "rule": node.id} for of, node in chosen_by],
    }


def preview(one: Preview) -> dict[str, Any]:
    """What would be decided otherwise."""
    return {
        "looked_at": one.looked_at,
        "changes": [
            {
                "fault": change.fault.id,
                "run": change.fault.run_id,
                "flow": change.flow,
                "name": change.fault.name,
                "what": str(change.fault),
                "raised_at": iso(change.fault.raised_at),
                "before": change.before,
                "after": change.after,
            }
            for change in one.changes
        ],
    }


def proposal(one: Proposal, seen: Preview) -> dict[str, Any]:
    """A rule that is not in force, and what it would change."""
    made = one.tree
    return {
        "tree": {"flow": made.flow, "on": made.on.value, "activity": made.activity, "revision": made.revision},
        "rule": rule(one.node),
        "before": one.walk.exlet,
        "conflicts": [
            {"rule": rule(found.node), "before": found.before, "after": found.after} for found in one.conflicts
        ],
        "preview": preview(seen),
    }


def trial(one: Trial) -> dict[str, Any]:
    """Whether a condition holds for a fault; a fact that is not known is blank."""
    return {
        "fault": one.fault.id,
        "run": one.fault.run_id,
        "flow": one.flow,
        "holds": one.holds,
        "warning": one.warning,
        "facts": dict(sorted(one.facts.items())),
    }


def explanation(one: Explanation, plan: Plan | None) -> dict[str, Any]:
    """How a fault was decided about. ``told`` is decided, built_in, now or never."""
    walk = one.walk
    return {
        "fault": one.fault.id,
        "run": one.fault.run_id,
        "flow": one.flow,
        "name": one.fault.name,
        "state": one.fault.state.value,
        "verdict": one.fault.verdict,
        "told": one.told.value,
        "on": None if walk is None else walk.on,
        "exlet": None if walk is None else walk.exlet,
        "rule": None if walk is None else walk.node,
        "why": None if walk is None else walk.why,
        "own_verdict": one.default or None,
        "asked": [] if walk is None else [_asked(one, walk, tree_) for tree_ in walk.asked],
        "facts": {} if walk is None else walk.facts,
        "warnings": [] if walk is None else walk.warnings,
        "plan": None if plan is None else shapes.plan(plan),
    }


def _asked(one: Explanation, walk: RuleChoice, asked: Asked) -> dict[str, Any]:
    found = one.trees.get((asked.flow, On(walk.on), asked.activity))
    nodes = {} if found is None else found.nodes
    return {
        "flow": asked.flow,
        "activity": asked.activity,
        "revision": asked.revision,
        "rules": [
            {
                "number": number,
                "condition": nodes[number].condition if number in nodes else None,
                "exlet": nodes[number].exlet if number in nodes else None,
                "held": held,
                "warning": warning,
            }
            for number, held, warning in asked.steps
        ],
    }


def _made(one: Revision) -> dict[str, Any]:
    return {"revision": one.number, "made_by": one.made_by, "made_at": iso(one.made_at), "note": one.note}
