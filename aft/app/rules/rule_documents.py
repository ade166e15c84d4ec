"""Converts trees to the text of rule files and back.

A file holds conditions, exlets and notes; the author of a rule, its time and its cornerstone stay with the rule in the
database. So what is read is matched with what is in force: a rule with the same condition and exlet is the same rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from aft.rules.toml.documents import RuleText, TreeText
from aft.rules.trees.tree import Node, Tree

#: Most digits of a rule's name in a file for which the name becomes the rule's number.
_DIGITS = 6


def to_text(tree: Tree, *, cornerstones: bool = False) -> TreeText:
    """Return a tree as a file holds it; with the facts of its cornerstones only if wanted: they may be private."""
    rules = {
        node.id: RuleText(
            node.condition,
            node.exlet,
            node.note,
            # As JSON has it: there, every key is a text.
            json.loads(json.dumps(node.cornerstone)) if cornerstones and node.cornerstone is not None else None,
            node.refined,
            node.otherwise,
            str(node.id),
        )
        for node in tree.nodes.values()
    }
    return TreeText.of(tree.flow, tree.on, tree.activity, rules, tree.root)


def of_text(text: TreeText, before: Tree, made_by: str, made_at: datetime) -> Tree:
    """Return the tree of a file, made from the one in force; known rules keep number, author and cornerstone."""
    same = _match(text, before)
    numbers = _number(text, before, same)
    nodes = {}
    for place, rule in enumerate(text.rules):
        made = same.get(place) or Node(numbers[place], rule.condition, rule.exlet, made_by=made_by, made_at=made_at)
        cornerstone, fault_id = made.cornerstone, made.fault_id
        if rule.cornerstone is not None and (read := dict(rule.cornerstone)) != cornerstone:
            cornerstone, fault_id = read, read.get("fault.id")
        nodes[numbers[place]] = Node(
            numbers[place],
            rule.condition,
            rule.exlet,
            None if rule.refined is None else numbers[rule.refined],
            None if rule.otherwise is None else numbers[rule.otherwise],
            rule.note,
            made.made_by,
            made.made_at,
            cornerstone,
            fault_id,
        )
    return Tree(before.flow, before.on, before.activity, before.revision, nodes, numbers[0] if text.rules else None)


def in_order(tree: Tree) -> Iterator[tuple[Node, int, int | None]]:
    """Yield the rules in the order they are asked, each with its depth and the rule that it refines."""
    left: list[tuple[int, int, int | None]] = [] if tree.root is None else [(tree.root, 0, None)]
    while left:
        number, depth, above = left.pop()
        node = tree.nodes[number]
        yield node, depth, above
        if node.otherwise is not None:
            left.append((node.otherwise, depth, above))
        if node.refined is not None:
            left.append((node.refined, depth + 1, node.id))


def _match(text: TreeText, before: Tree) -> dict[int, Node]:
    """Match rules with the same condition and exlet: by their name in the file, else in the order they are asked."""
    free = {node.id: node for node, _, _ in in_order(before)}
    found: dict[int, Node] = {}
    alike: dict[tuple[str, str], list[Node]] = {}
    for place, rule in enumerate(text.rules):
        named = free.get(int(rule.id)) if _is_number(rule.id) else None
        if named is not None and _says(named) == (rule.condition, rule.exlet):
            found[place] = free.pop(named.id)
    for node in free.values():
        alike.setdefault(_says(node), []).append(node)
    for place, rule in enumerate(text.rules):
        if place not in found and (like := alike.get((rule.condition, rule.exlet))):
            found[place] = like.pop(0)
    return found


def _number(text: TreeText, before: Tree, same: dict[int, Node]) -> dict[int, int]:
    """Number the rules: known ones as they were, others by their name in the file if possible, else new numbers."""
    numbers = {place: node.id for place, node in same.items()}
    taken = set(numbers.values())
    for place, rule in enumerate(text.rules):
        if place not in numbers and _is_number(rule.id) and int(rule.id) not in taken:
            numbers[place] = int(rule.id)
            taken.add(int(rule.id))
    free = max(taken | before.nodes.keys(), default=0) + 1
    for place in range(len(text.rules)):
        if place not in numbers:
            numbers[place], free = free, free + 1
    return numbers


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name[:_DIGITS]) > 0 and len(name) <= _DIGITS


def _says(node: Node) -> tuple[str, str]:
    return node.condition, node.exlet
