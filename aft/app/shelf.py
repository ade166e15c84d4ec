"""Trees and exlets where they are kept: read as values, and checked as a whole before they are written.

Writing is one transaction, in which ``rules.rows`` refuses what was made from a revision that is not the latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from aft.errors import RuleRefused
from aft.rules import exlets, rows
from aft.rules.asking import ANY
from aft.rules.conditions import Condition
from aft.rules.defaults import DEFAULTS
from aft.rules.exlets import BUILT_IN, Exlet
from aft.rules.kinds import RUN_LEVEL, On
from aft.rules.rows import Key, Revision
from aft.rules.tree import CompiledTree, Tree
from aft.store import Store
from aft.texts import MOST_BY, check_storable


@dataclass(frozen=True, slots=True)
class Shelf:
    """The saved rules of a namespace. Thread-safe."""

    namespace: str
    store: Store

    def trees(self, connection: Connection, *, damaged: bool = False) -> dict[Key, Tree]:
        """Every tree in force, what is built in included; raises RuleRefused if one was damaged, or leaves it out."""
        found = {key_of(tree): tree for tree in DEFAULTS.values()}
        for revision in rows.latest_trees(connection, self.namespace):
            with suppress(RuleRefused) if damaged else nullcontext():
                found[rows.decode_key(revision.key)] = read_tree(revision)
        return found

    def tree_at(self, connection: Connection, key: Key, number: int) -> Tree:
        """A tree as it was; 0: before anybody taught it anything. Raises RuleRefused if there is no such revision."""
        if number == 0:
            return original(key)
        found = rows.tree_revision(connection, self.namespace, key, number)
        if found is None:
            raise RuleRefused(f"{spell_key(key)} has no revision {number}; `aft rules history` shows what there is")
        return read_tree(found)

    def exlets(self, connection: Connection, *, damaged: bool = False) -> dict[str, Exlet]:
        """Every exlet in force, what is built in included; raises RuleRefused if one was damaged, or leaves it out."""
        found = dict(BUILT_IN)
        for revision in rows.latest_exlets(connection, self.namespace):
            with suppress(RuleRefused) if damaged else nullcontext():
                found[revision.key[0]] = read_exlet(revision)
        return found

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
        """Put trees and exlets in force, each with the revision that it was made from; returns the trees' numbers.

        Raises RuleRefused.
        """
        check_storable("by", by, RuleRefused, most=MOST_BY)
        check_storable("note", note, RuleRefused, lines=True)
        for tree, _ in trees:
            for node in tree.nodes.values():
                check_storable(f"the note of rule {node.id}", node.note, RuleRefused, lines=True)
                check_storable(f"made_by of rule {node.id}", node.made_by, RuleRefused)
        with self.store.write() as connection:
            rows.begin_edit(connection, self.namespace)
            for exlet, base in made:
                text = json.dumps(exlet.encode())
                rows.add_exlet(connection, self.namespace, exlet.name, text, by, note, base)
            return [
                rows.add_tree(connection, self.namespace, key_of(tree), json.dumps(tree.encode()), by, note, base)
                for tree, base in trees
            ]


def _check_conditions(tree: Tree, before: Tree | None, known: Mapping[str, str]) -> None:
    """What is new must be known entirely; a rule that was there may ask a source that nobody alive has just now."""
    old = {} if before is None else {node.condition for node in before.nodes.values()}
    for node in tree.nodes.values():
        if node.condition in old:
            continue
        try:
            Condition.compile(node.condition, known)
        except RuleRefused as refused:
            raise RuleRefused(f"rule {node.id} of {spell_key(key_of(tree))}: {refused}") from None


def _check_exlets(tree: Tree, there: Mapping[str, Exlet], *, all_known: bool = True) -> None:
    for node in tree.nodes.values():
        if node.exlet in there:
            try:
                exlets.check_for(there[node.exlet], tree.on)
            except RuleRefused as refused:
                raise RuleRefused(f"{refused}; rule {node.id} of {spell_key(key_of(tree))} chooses it") from None
        elif all_known:
            raise RuleRefused(
                f"rule {node.id} of {spell_key(key_of(tree))} chooses exlet {node.exlet!r}, which there is not; "
                "add it first with `aft exlets add`"
            )


def read_tree(revision: Revision) -> Tree:
    """Read a revision of a tree; raises RuleRefused if somebody has damaged it."""
    try:
        return rows.read_tree(revision)
    except (ValueError, TypeError, RecursionError) as error:
        raise RuleRefused(
            f"revision {revision.number} of {' × '.join(filter(None, revision.key))} cannot be read: {error}; "
            "put an earlier one in force with `aft rules undo`"
        ) from None


def read_exlet(revision: Revision) -> Exlet:
    """Read a revision of an exlet; raises RuleRefused if somebody has damaged it."""
    try:
        return Exlet.decode(json.loads(revision.text))
    except (RuleRefused, ValueError, TypeError, RecursionError) as error:
        raise RuleRefused(
            f"revision {revision.number} of exlet {revision.key[0]!r} cannot be read: {error}; add it anew"
        ) from None


def make_key(flow: str, on: On | str, activity: str = "") -> Key:
    """Name a tree; raises RuleRefused for a type of exception that does not exist, and for no flow at all."""
    if not flow:
        raise RuleRefused(f"the name of a flow is missing; write it, or {ANY!r} for all")
    try:
        found = On(on)
    except ValueError:
        raise RuleRefused(f"{on!r} is not a type of exception; there are {', '.join(On)}") from None
    return flow, found, "" if found in RUN_LEVEL else activity or ANY


def scoped_key(flow: str, on: On, activity: str, scope: str) -> Key:
    """The tree that a rule for a fault goes to: for its activity, its flow, or everything."""
    if scope not in ("activity", "flow", "all"):
        raise RuleRefused(f"{scope!r} is not a scope; write activity, flow or all")
    return make_key(ANY if scope == "all" else flow, on, activity if scope == "activity" else ANY)


def spell_key(key: Key) -> str:
    """A tree's name for people."""
    flow, on, activity = key
    return " × ".join(part for part in (flow, on.value, activity) if part)


def key_of(tree: Tree) -> Key:
    """What there is one tree for."""
    return tree.flow, tree.on, tree.activity


def original(key: Key) -> Tree:
    """What is built in; nothing for most."""
    return next((tree for tree in DEFAULTS.values() if key_of(tree) == key), None) or Tree(*key)


def compile_all(trees: Mapping[Key, Tree], known: Mapping[str, str]) -> dict[Key, CompiledTree]:
    """Make trees ready to be asked."""
    return {key: CompiledTree(tree, known) for key, tree in trees.items()}
