"""The rules that are in force in a scenario, and those that are taught while its run waits.

``rules`` names a folder of the example, with files as ``aft rules apply`` takes them: when the scenario begins, exactly
these rules are in force for the example's flow. Its ``[[teach]]`` tables add to them, each from a real fault:

==========  ========================================================================================================
``before``  the signal that the run waits for meanwhile: the rule is in force when that is sent
``from``    the scenario, played before this one, whose run had the fault
``fault``   the activity that the fault is of
``if``      the condition
``then``    the exlet
``steps``   what that exlet does, if it is a new one
``note``    why
==========  ========================================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aft.app import Aft
from aft.app.rules.rules import format_key
from aft.errors import RuleRefused
from aft.ids import RunId
from aft.rules.exlets import exlet as exlets
from aft.rules.exlets.exlet import Exlet
from aft.rules.toml import read
from aft.rules.toml.read import RuleDocument, TreeText
from aft.rules.trees.rule_cache import FRESH
from aft.rules.trees.tree import Node, Tree
from aft.runs.records import faults
from aft.scenarios.example import ExampleError, hint

#: The author of these rules.
ME = "aft replay"
#: Seconds after which every process uses what was saved, however busy the machine is.
IN_FORCE_AFTER = 2 * FRESH

_KEYS = ("before", "from", "fault", "if", "then", "steps", "note")


@dataclass(frozen=True, slots=True)
class RuleToTeach:
    """A rule that is taught while a run waits; ``made`` is its exlet, if that is new."""

    before: str
    scenario: str
    activity: str
    condition: str
    exlet: str
    made: Exlet | None
    note: str | None


def read_rules(directory: Path, name: str | None) -> RuleDocument:
    """Read the folder of rules that a scenario names. Raises ValueError."""
    try:
        return RuleDocument() if name is None else read.read_document(directory / name)
    except RuleRefused as refused:
        raise ValueError(str(refused)) from None


def read_rule_to_teach(table: Mapping[str, Any]) -> RuleToTeach:
    """Read one ``[[teach]]`` table. Raises KeyError, ValueError."""
    for key in table:
        if key not in _KEYS:
            raise ValueError(f"a rule to teach has no {key!r}; {hint(key, _KEYS)}")
    made = None
    if "steps" in table:
        try:
            made = exlets.check(exlets.read_exlet(table["then"], {"steps": table["steps"]}))
        except RuleRefused as refused:
            raise ValueError(str(refused)) from None
    return RuleToTeach(
        before=table["before"],
        scenario=table["from"],
        activity=table["fault"],
        condition=table["if"],
        exlet=table["then"],
        made=made,
        note=table.get("note"),
    )


class RuleTeacher:
    """Sets and teaches rules in the namespace of a replay. One thread at a time."""

    def __init__(self, app: Aft, flow: str) -> None:
        self._app = app
        self._desk = app.rules
        self._flow = flow

    def put_in_force(self, sheet: RuleDocument) -> None:
        """Put exactly these rules in force for the flow; return when they are. Raises RuleRefused."""
        there = {(tree.flow, tree.on, tree.activity): tree for tree in self._desk.trees() if tree.flow == self._flow}
        wanted = {key: Tree(*key) for key in there} | {
            (tree.flow, tree.on, tree.activity): _make_tree(tree) for tree in sheet.trees
        }
        trees = [
            Tree(*key, there[key].revision if key in there else 0, tree.nodes, tree.root)
            for key, tree in wanted.items()
            if key not in there or _unsigned(there[key]) != _unsigned(tree)
        ]
        known = self._desk.exlets()
        made = [exlet for exlet in sheet.exlets if exlet not in known]
        if trees or made:
            self._desk.save_all(trees, made, by=ME)
            time.sleep(IN_FORCE_AFTER)

    def teach(self, rule: RuleToTeach, run_id: RunId) -> str:
        """Add a rule, made from a fault of that run; return what it would have changed. Raises RuleRefused."""
        with self._app.store.read() as connection:
            found = [fault for fault in faults.of_run(connection, run_id) if fault.name == rule.activity]
        if not found:
            raise ExampleError(f"scenario {rule.scenario!r} had no fault of {rule.activity!r} to learn from")
        if rule.made is not None and rule.made not in self._desk.exlets():
            self._desk.add_exlet(rule.made, by=ME)
        proposal = self._desk.propose(found[-1].id, rule.condition, rule.exlet, note=rule.note, by=ME)
        preview = self._desk.preview(proposal.tree)
        self._desk.add(proposal)
        time.sleep(IN_FORCE_AFTER)
        tree, node = proposal.tree, proposal.node
        return (
            f"rule {node.id} of {format_key((tree.flow, tree.on, tree.activity))}: if {node.condition} then "
            f"{node.exlet}; it would have changed {len(preview.changes)} of {preview.examined} decisions"
        )


def _make_tree(text: TreeText) -> Tree:
    """Return the tree of a file, its rules numbered in their order there."""

    def number(position: int | None) -> int | None:
        return None if position is None else position + 1

    nodes = [
        Node(
            position + 1,
            rule.condition,
            rule.exlet,
            number(rule.refined),
            number(rule.otherwise),
            rule.note,
            ME,
            cornerstone=rule.cornerstone,
        )
        for position, rule in enumerate(text.rules)
    ]
    return Tree(text.flow, text.on, text.activity, 0, {node.id: node for node in nodes}, 1 if nodes else None)


def _unsigned(tree: Tree) -> Tree:
    """Return a tree without its authors and revision."""
    nodes = {number: replace(node, made_by="") for number, node in tree.nodes.items()}
    return replace(tree, revision=0, nodes=nodes)
