"""``aft rules apply``: compares files of rules and exlets with those in force, and puts them in force together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from aft.app import Aft
from aft.app.actors import current_user
from aft.app.rules.rule_documents import of_text
from aft.app.rules.rule_store import format_key, key_of, read_exlet
from aft.app.rules.rules import MOST_LOOKED_AT
from aft.cli.application import opened
from aft.cli.commands.rules.diff import print_diff, print_exlet_diff
from aft.cli.commands.rules.draw import draw_tree
from aft.cli.commands.rules.prompts import confirm, modules_option, yes_option
from aft.cli.commands.rules.teach import format_preview
from aft.cli.errors import print_to_stderr
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import console, print_message, print_text
from aft.errors import RuleRefused
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.toml import read
from aft.rules.toml.documents import RuleDocument, TreeText
from aft.rules.trees.tree import Tree


@dataclass(frozen=True, slots=True)
class ExletChange:
    """An exlet in a file and in force; ``base`` is the revision in force when it was compared."""

    before: Exlet | None
    after: Exlet
    base: int

    @property
    def is_same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A tree in a file and in force."""

    before: Tree
    after: Tree
    #: Whether the file has cornerstones.
    cornerstones: bool

    @property
    def is_same(self) -> bool:
        return (self.before.nodes, self.before.root) == (self.after.nodes, self.after.root)

    @property
    def is_new(self) -> bool:
        return not self.before.nodes


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR_OR_FILE")
@click.option("--note", metavar="TEXT", help="Why; kept in the history.")
@modules_option
@yes_option
@click.pass_obj
def apply(given: ConnectionOptions, path: Path, note: str | None, modules: tuple[str, ...], yes: bool) -> None:
    """Put files of rules and exlets in force.

    One file, or all *.toml of a directory. Shows first what is different. Everything is put in force together, or
    nothing. Trees and exlets that the files do not mention stay as they are.

    `aft rules tree --toml` writes such a file.
    """
    with opened(given, load(modules)) as app:
        sheet = read.read_document(path, app.rules.sources())
        made = compare_exlets(app, sheet)
        trees = _compare_trees(app, sheet)
        show_exlets(made)
        for tree in sorted(trees, key=lambda tree: not tree.is_same):
            _show_tree(app, tree)
        put(app, made, trees, note or f"applied {path.name}", yes)


def compare_exlets(app: Aft, sheet: RuleDocument) -> list[ExletChange]:
    """Compare the exlets of a file with those in force."""
    found = []
    for one in sheet.exlets:
        history = app.rules.exlet_history(one.name)
        before = BUILT_IN.get(one.name)
        with suppress(RuleRefused):  # a damaged one is repaired by this
            before = read_exlet(history[0]) if history else before
        found.append(ExletChange(before, one, history[0].number if history else 0))
    return found


def _compare_trees(app: Aft, sheet: RuleDocument) -> list[TreeChange]:
    return [_compare_tree(app, text) for text in sheet.trees]


def _compare_tree(app: Aft, text: TreeText) -> TreeChange:
    before = app.rules.tree(text.flow, text.on, text.activity)
    has_cornerstones = any(rule.cornerstone is not None for rule in text.rules)
    return TreeChange(before, of_text(text, before, current_user(), app.clock.now()), has_cornerstones)


def put(app: Aft, made: list[ExletChange], trees: list[TreeChange], note: str | None, yes: bool) -> None:
    """Ask, and put what is different in force."""
    exlets = [one for one in made if not one.is_same]
    rules = [one for one in trees if not one.is_same]
    if not exlets and not rules:
        print_message("Everything is in force already.")
        return
    what = " and ".join(
        f"{count} {word}{'s' if count > 1 else ''}"
        for count, word in ((len(rules), "tree"), (len(exlets), "exlet"))
        if count
    )
    confirm(f"Put {what} in force?", yes)
    bases = {one.after.name: one.base for one in exlets}
    app.rules.save_all([one.after for one in rules], [one.after for one in exlets], note=note, bases=bases)
    print_message(f"In force: {what}; within a second everywhere.")


# Showing --------------------------------------------------------------------------------------------------------


def show_exlets(made: list[ExletChange]) -> None:
    """Print what is new and what is different; what is the same only by name."""
    for one in sorted(made, key=lambda one: not one.is_same):
        word = "the same" if one.is_same else "new" if one.before is None else f"changed, revision {one.base + 1}"
        _head(f"exlet {one.after.name}", word)
        if one.before is None:
            print_actions(one.after)
        elif not one.is_same:
            print_exlet_diff(one.before, one.after)


def print_actions(exlet: Exlet) -> None:
    """Print what an exlet does, one primitive per line."""
    out = console()
    for number, step in enumerate(exlet.steps, start=1):
        print_text(out, Text(f"  {number}  {step}"))


def _show_tree(app: Aft, one: TreeChange) -> None:
    name, out = format_key(key_of(one.after)), console()
    if one.is_same:
        _head(name, "the same")
        return
    if one.is_new:
        draw_tree(out, one.after, "new")
    else:
        _head(name, f"changed, revision {one.before.revision + 1}")
        print_diff(one.before, one.after, cornerstones=one.cornerstones)
    print_text(out, Text(f"\n  {format_preview(app.rules.preview(one.after, MOST_LOOKED_AT))}\n"))
    conflicts = app.rules.conflicts(one.before, one.after)
    if conflicts:
        numbers = ", ".join(str(node.id) for node in conflicts)
        print_to_stderr(f"note: cases that rule {numbers} of {name} was made for get another answer")


def _head(name: str, word: str) -> None:
    style = "dim" if word == "the same" else "green" if word == "new" else "yellow"
    print_text(console(), Text.assemble((name, "dim" if word == "the same" else "bold"), "  ", (word, style)))
