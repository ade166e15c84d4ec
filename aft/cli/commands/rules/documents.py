"""The JSON of rules and exlets: one function for each kind of object. Keys are stable."""

from __future__ import annotations

from typing import Any

from aft.app.rules.past_faults import Preview
from aft.app.rules.rule_documents import in_order
from aft.app.rules.rules import Explanation, Trial
from aft.cli.show import documents
from aft.cli.show.documents import document
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.exlets.plans import Plan
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import AskedTree, RuleChoice
from aft.rules.trees.preview import Proposal
from aft.rules.trees.rows import Key, Revision
from aft.rules.trees.tree import Node, Tree


def key(one: Key) -> dict[str, Any]:
    """Return the key of a tree."""
    return {"flow": one[0], "on": one[1].value, "activity": one[2]}


def tree(one: Tree) -> dict[str, Any]:
    """Return a tree, its rules in the order in which they are asked."""
    rules = [rule(node, refines=above) for node, _, above in in_order(one)]
    return document(one, "flow on activity revision built_in root rules", built_in=one.revision == 0, rules=rules)


_RULE = """
number=id condition exlet refines refined otherwise note made_by made_at fault=fault_id cornerstone
"""


def rule(node: Node, refines: int | None = None) -> dict[str, Any]:
    """Return a rule; ``refined`` is asked next if it holds, ``otherwise`` if it does not."""
    return document(node, _RULE, refines=refines, note=node.note or None)


def revision(one: Revision, what: str = "") -> dict[str, Any]:
    """Return a revision of a tree."""
    flow, on, activity = one.key
    return {"flow": flow, "on": on, "activity": activity, **_made(one), "what": what}


def exlet(one: Exlet, history: list[Revision], chosen_by: list[tuple[Key, Node]]) -> dict[str, Any]:
    """Return an exlet, its revisions, and the rules that choose it."""
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
    """Return what would be decided differently."""
    keys = "fault=fault.id run=fault.run_id flow name=fault.name what raised_at=fault.raised_at before after"
    return {
        "examined": one.examined,
        "changes": [document(change, keys, what=str(change.fault)) for change in one.changes],
    }


def proposal(one: Proposal, seen: Preview) -> dict[str, Any]:
    """Return a rule that is not in force, and what it would change."""
    return {
        "tree": document(one.tree, "flow on activity revision"),
        "rule": rule(one.node),
        "before": one.walk.exlet,
        "conflicts": [
            {"rule": rule(found.node), "before": found.before, "after": found.after} for found in one.conflicts
        ],
        "preview": preview(seen),
    }


def trial(one: Trial) -> dict[str, Any]:
    """Return whether a condition holds for a fault; an unknown fact is blank."""
    keys = "fault=fault.id run=fault.run_id flow holds warning facts"
    return document(one, keys, facts=dict(sorted(one.facts.items())))


_EXPLANATION = """
fault=fault.id run=fault.run_id flow name=fault.name state=fault.state fault_why=fault.why told=source on=walk.on
exlet=walk.exlet rule=walk.node why=walk.why default asked facts warnings plan
"""


def explanation(one: Explanation, plan: Plan | None) -> dict[str, Any]:
    """Return how a fault was decided about. ``told`` is decided, built_in, now or never."""
    walk = one.walk
    return document(
        one,
        _EXPLANATION,
        default=one.default or None,
        asked=[] if walk is None else [_asked(one, walk, tree_) for tree_ in walk.asked],
        facts={} if walk is None else walk.facts,
        warnings=[] if walk is None else walk.warnings,
        plan=None if plan is None else documents.plan(plan),
    )


def _asked(one: Explanation, walk: RuleChoice, asked: AskedTree) -> dict[str, Any]:
    found = one.trees.get((asked.flow, RuleType(walk.on), asked.activity))
    nodes = {} if found is None else found.nodes
    rules = [
        document(nodes.get(number), "number condition exlet held warning", number=number, held=held, warning=warning)
        for number, held, warning in asked.steps
    ]
    return document(asked, "flow activity revision rules", rules=rules)


def _made(one: Revision) -> dict[str, Any]:
    return document(one, "revision=number made_by made_at note")
