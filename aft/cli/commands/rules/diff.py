"""Shows the differences between two trees, or two exlets, as lines of their TOML files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rich.text import Text

from aft.app.rules.rule_documents import to_text
from aft.cli.errors import printable
from aft.cli.show.output import console, print_text
from aft.rules.exlets.exlet import Exlet
from aft.rules.toml.documents import RuleDocument
from aft.rules.toml.write import write
from aft.rules.trees.tree import Node, Tree

#: Lines around a change that are shown, too.
AROUND = 3
#: Numbers of rules that are named one by one.
MOST_NAMED = 4

_STYLES = {"+": "green", "-": "red"}


def print_diff(before: Tree, after: Tree, *, cornerstones: bool = False) -> None:
    """Print which lines differ in the files of two trees."""
    texts = [write(RuleDocument(trees=(to_text(one, cornerstones=cornerstones),))) for one in (before, after)]
    _print(*texts)


def print_exlet_diff(before: Exlet, after: Exlet) -> None:
    """Print which lines differ in the files of two exlets."""
    _print(*(write(RuleDocument(exlets=(one,))) for one in (before, after)))


def _print(before: str, after: str) -> None:
    out = console()
    for line in _lines(before, after):
        print_text(out, Text(f"  {printable(line)}".rstrip(), _STYLES.get(line[:1], "dim")))


def _lines(before: str, after: str) -> Iterator[str]:
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), n=AROUND, lineterm="")
    for number, line in enumerate(found):
        if number < 3:
            continue  # headers of the diff, which have no names and times here
        yield "  …" if line.startswith("@@") else f"{line[:1]} {line[1:]}".rstrip()


def summary(before: Tree, after: Tree) -> str:
    """Summarize in a few words how the rules of a tree have changed."""
    added = sorted(after.nodes.keys() - before.nodes.keys())
    gone = sorted(before.nodes.keys() - after.nodes.keys())
    changed = [number for number in after.nodes.keys() & before.nodes.keys() if _differ(before, after, number)]
    parts = {"added": added, "removed": gone, "changed": sorted(changed)}
    texts = [f"{_named(numbers)} {verb}" for verb, numbers in parts.items() if numbers]
    return ", ".join(texts) or ("the same" if _shape(before) == _shape(after) else "asked in another order")


def _differ(before: Tree, after: Tree, number: int) -> bool:
    return _says(before.nodes[number]) != _says(after.nodes[number])


def _says(node: Node) -> tuple[object, ...]:
    return node.condition, node.exlet, node.note, node.cornerstone


def _shape(tree: Tree) -> tuple[object, ...]:
    return tree.root, {number: (node.refined, node.otherwise) for number, node in tree.nodes.items()}


def _named(numbers: list[int]) -> str:
    if len(numbers) > MOST_NAMED:
        return f"{len(numbers)} rules"
    return f"rule{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
