"""The rule store: reads trees and exlets as values, and checks them as a whole before they are written.

Writing is one transaction, in which ``rules.trees.rows`` refuses what was made from a revision that is not the latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from aft.errors import RuleRefused
from aft.flows.declare import options as checks
from aft.rules.cel.conditions import Condition
from aft.rules.exlets import exlet as exlets
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.rule_types import RUN_LEVEL, RuleType
from aft.rules.trees import rows
from aft.rules.trees.choose import ANY
from aft.rules.trees.defaults import DEFAULTS
from aft.rules.trees.rows import Key, Revision
from aft.rules.trees.tree import CompiledTree, Tree
from aft.runs.records import audit
from aft.store import Store
from aft.texts import MOST_BY, MOST_NOTE, check_storable, find_choice, format_value, require_text


@dataclass(frozen=True, slots=True)
class RuleStore:
    """The saved rules of a namespace. Thread-safe."""

    namespace: str
    store: Store

    def trees(self, connection: Connection, *, damaged: bool = False) -> dict[Key, Tree]:
        """Return every tree in force, built-in ones too. Raises RuleRefused for a damaged one, unless ``damaged``."""
        found = {key_of(tree): tree for tree in DEFAULTS.values()}
        for revision in rows.latest_trees(connection, self.namespace):
            with suppress(RuleRefused, ValueError) if damaged else nullcontext():
                found[rows.decode_key(revision.key)] = read_tree(revision)
        return found

    def tree_at(self, connection: Connection, key: Key, number: int) -> Tree:
        """Return a revision of a tree; 0: the built-in one. Raises RuleRefused if there is no such revision."""
        if number == 0:
            return original(key)
        found = rows.tree_revision(connection, self.namespace, key, number)
        if found is None:
            raise RuleRefused(f"{format_key(key)} has no revision {number}; `aft rules history` shows what there is")
        return read_tree(found)

    def exlets(self, connection: Connection, *, damaged: bool = False) -> dict[str, Exlet]:
        """Return every exlet in force, built-in ones too. Raises RuleRefused for a damaged one, unless ``damaged``."""
        found = dict(BUILT_IN)
        for revision in rows.latest_exlets(connection, self.namespace):
            with suppress(RuleRefused) if damaged else nullcontext():
                found[revision.key[0]] = read_exlet(revision)
        return found

    def find_damaged(self, connection: Connection) -> list[str]:
        """Return why trees and exlets in force cannot be read."""
        problems = []
        for revision in rows.latest_trees(connection, self.namespace):
            try:
                rows.decode_key(revision.key)
                read_tree(revision)
            except (RuleRefused, ValueError) as error:
                problems.append(str(error))
        for revision in rows.latest_exlets(connection, self.namespace):
            try:
                read_exlet(revision)
            except RuleRefused as error:
                problems.append(str(error))
        return problems

    def check(self, trees: Iterable[Tree], made: Sequence[Exlet], known: Mapping[str, str]) -> None:
        """Raise RuleRefused unless trees and exlets can be in force together, and with all that is."""
        with self.store.read() as connection:
            # What is damaged can be put right by what is saved now.
            before, there = self.trees(connection, damaged=True), self.exlets(connection, damaged=True)
        there |= {one.name: exlets.check(one, known) for one in made}
        after = {key_of(tree): tree for tree in trees}
        for key, tree in after.items():
            _check_conditions(tree, before.get(key), known)
            _check_exlets(tree, there)
        for key in before.keys() - after.keys():
            _check_exlets(before[key], {one.name: one for one in made}, all_known=False)

    def write(
        self,
        trees: Sequence[tuple[Tree, int]],
        made: Sequence[tuple[Exlet, int | None]],
        by: str,
        note: str | None,
    ) -> list[int]:
        """Put trees and exlets in force, each with the revision that it was made from; return the trees' new revisions.

        Raises RuleRefused.
        """
        check_storable("by", by, RuleRefused, most=MOST_BY)
        check_storable("note", note, RuleRefused, lines=True, most=MOST_NOTE)
        for exlet, base in made:
            if base is not None:
                checks.check_count(f"exlet {exlet.name!r}: base", base, least=0)
        for tree, _ in trees:
            for node in tree.nodes.values():
                check_storable(f"the note of rule {node.id}", node.note, RuleRefused, lines=True)
                check_storable(f"made_by of rule {node.id}", node.made_by, RuleRefused)
        with self.store.write() as connection:
            rows.begin_edit(connection, self.namespace)
            for exlet, base in made:
                text = json.dumps(exlet.encode())
                rows.add_exlet(connection, self.namespace, exlet.name, text, by, note, base)
                audit.write_about(connection, by, "exlet change", exlet.name)
            for tree, _ in trees:
                audit.write_about(connection, by, "rule change", format_key(key_of(tree)))
            return [
                rows.add_tree(connection, self.namespace, key_of(tree), tree.encode(), by, note, base)
                for tree, base in trees
            ]


def _check_conditions(tree: Tree, before: Tree | None, known: Mapping[str, str]) -> None:
    """Raise RuleRefused unless new conditions compile; an old one may use a source that no live process has."""
    old = {} if before is None else {node.condition for node in before.nodes.values()}
    for node in tree.nodes.values():
        if node.condition in old:
            continue
        try:
            Condition.compile(node.condition, known)
        except RuleRefused as refused:
            raise RuleRefused(f"rule {node.id} of {format_key(key_of(tree))}: {refused}") from None


def _check_exlets(tree: Tree, there: Mapping[str, Exlet], *, all_known: bool = True) -> None:
    for node in tree.nodes.values():
        if node.exlet in there:
            try:
                exlets.check_for(there[node.exlet], tree.on)
            except RuleRefused as refused:
                raise RuleRefused(f"{refused}; rule {node.id} of {format_key(key_of(tree))} chooses it") from None
        elif all_known:
            raise RuleRefused(
                f"rule {node.id} of {format_key(key_of(tree))} chooses exlet {node.exlet!r}, which there is not; "
                "add it first with `aft exlets add`"
            )


def read_tree(revision: Revision) -> Tree:
    """Decode a revision of a tree; raises RuleRefused if it is damaged."""
    try:
        return rows.read_tree(revision)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RuleRefused(
            f"revision {revision.number} of {' × '.join(filter(None, revision.key))} cannot be read: {error}; "
            "put an earlier one in force with `aft rules undo`"
        ) from None


def read_exlet(revision: Revision) -> Exlet:
    """Decode a revision of an exlet; raises RuleRefused if it is damaged."""
    try:
        return Exlet.decode(json.loads(revision.text))
    except (RuleRefused, ValueError, TypeError, RecursionError) as error:
        raise RuleRefused(
            f"revision {revision.number} of exlet {revision.key[0]!r} cannot be read: {error}; add it again"
        ) from None


def make_key(flow: str, on: RuleType | str, activity: str = "") -> Key:
    """Return the key of a tree; raises RuleRefused for an unknown rule type, or without a flow."""
    require_text("flow", flow, RuleRefused)
    require_text("activity", activity, RuleRefused)
    if not flow:
        raise RuleRefused(f"the name of a flow is missing; write it, or {ANY!r} for all")
    found = find_choice(on, RuleType)
    if found is None:
        raise RuleRefused(f"{format_value(on)} is not a rule type; there are {', '.join(RuleType)}")
    return flow, found, "" if found in RUN_LEVEL else activity or ANY


def scoped_key(flow: str, on: RuleType, activity: str, scope: str) -> Key:
    """Return the key of the tree that a rule for a fault goes to: for its activity, its flow, or everything."""
    if not isinstance(scope, str) or scope not in ("activity", "flow", "all"):
        raise RuleRefused(f"{format_value(scope)} is not a scope; write activity, flow or all")
    return make_key(ANY if scope == "all" else flow, on, activity if scope == "activity" else ANY)


def format_key(key: Key) -> str:
    """Format a tree's key for people."""
    flow, on, activity = key
    return " × ".join(part for part in (flow, on.value, activity) if part)


def key_of(tree: Tree) -> Key:
    """Return the key of a tree: there is one tree for each."""
    return tree.flow, tree.on, tree.activity


def original(key: Key) -> Tree:
    """Return the built-in tree of a key; an empty one for most."""
    return next((tree for tree in DEFAULTS.values() if key_of(tree) == key), None) or Tree(*key)


def compile_all(trees: Mapping[Key, Tree], known: Mapping[str, str]) -> dict[Key, CompiledTree]:
    """Compile trees, to be asked."""
    return {key: CompiledTree(tree, known) for key, tree in trees.items()}
