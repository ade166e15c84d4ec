"""``aft exlets``: shows and adds exlets, which rules choose by name."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from aft.app.rules.rule_store import format_key, key_of
from aft.cli.application import NoDatabase, opened
from aft.cli.commands.rules import documents
from aft.cli.commands.rules.apply import compare_exlets, put, show_exlets
from aft.cli.commands.rules.draw import draw_rule
from aft.cli.commands.rules.prompts import desk, modules_option, warn_of_damaged, yes_option
from aft.cli.errors import Failure, one_line
from aft.cli.groups import Noun
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import console, exactly, json_option, print_json, print_message, print_text
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.toml import read
from aft.rules.toml.documents import RuleDocument
from aft.rules.toml.write import write
from aft.rules.trees.rows import Key, Revision
from aft.rules.trees.tree import Node, Tree

#: Most columns for a name.
MOST_NAME = 24


@click.group(cls=Noun)
def exlets() -> None:
    """Show and add exlets, which rules choose: named lists of primitives."""


@exlets.command("list")
@json_option
@click.pass_obj
def list_exlets(given: ConnectionOptions, as_json: bool) -> None:
    """List exlets: what they do, and what for."""
    trees: list[Tree] = []
    histories: dict[str, list[Revision]] = {}
    try:
        with desk(given) as app:
            found, trees = app.rules.exlets(damaged=True), app.rules.trees(damaged=True)
            warn_of_damaged(app)
            if as_json:
                histories = {one.name: app.rules.exlet_history(one.name) for one in found}
    except NoDatabase:
        found = list(BUILT_IN.values())
    if as_json:
        print_json([documents.exlet(one, histories.get(one.name, []), _chosen_by(one, trees)) for one in found])
        return
    out, width = console(), min(MOST_NAME, max(len(one.name) for one in found))
    for one in sorted(found, key=lambda one: (one.name in BUILT_IN, one.name)):
        margin = Text(f"{one.name:<{width}}  ", "bold")
        draw_rule(out, margin, 0, Text(format_steps(one)), Text(_about(one, trees), "dim"))
    if all(one.name in BUILT_IN for one in found):
        print_message("\nThese are built in. `aft exlets add FILE` adds others.")


def format_steps(one: Exlet) -> str:
    """Format what an exlet does, on one line."""
    return one_line("; ".join(map(str, one.steps)))


def _about(one: Exlet, trees: list[Tree]) -> str:
    count = len(_chosen_by(one, trees))
    chosen = f"chosen by {count} rule{'s' if count > 1 else ''}" if count else "chosen by no rule"
    return " · ".join(part for part in (one_line(one.about), "built in" * (one.name in BUILT_IN), chosen) if part)


def _chosen_by(one: Exlet, trees: list[Tree]) -> list[tuple[Key, Node]]:
    return [(key_of(tree), node) for tree in trees for node in tree.nodes.values() if node.exlet == one.name]


@exlets.command()
@click.argument("name")
@json_option
@click.pass_obj
def show(given: ConnectionOptions, name: str, as_json: bool) -> None:
    """Show an exlet as TOML, who changed it, and which rules choose it.

    What is printed is a file that `aft exlets add` reads.
    """
    history: list[Revision] = []
    try:
        with desk(given) as app:
            one, trees, history = app.rules.exlet(name), app.rules.trees(), app.rules.exlet_history(name)
    except NoDatabase as error:
        if name not in BUILT_IN:
            raise Failure(f"there is no exlet {name!r}: {error}") from None
        one, trees = BUILT_IN[name], []
    chosen = _chosen_by(one, trees)
    if as_json:
        print_json(documents.exlet(one, history, chosen))
        return
    out = console()
    for line in write(RuleDocument(exlets=(one,))).splitlines():
        print_text(out, Text(line))
    for line in _comments(one, history, chosen):
        print_text(out, Text(f"# {line}" if line else "", "dim"))


def _comments(one: Exlet, history: list[Revision], chosen: list[tuple[Key, Node]]) -> list[str]:
    made = [
        f"revision {rev.number} by {rev.made_by}, {exactly(rev.made_at)}{f': {rev.note}' if rev.note else ''}"
        for rev in history
    ]
    by = [f"chosen by rule {node.id} of {format_key(key)}: {node.condition}" for key, node in chosen]
    origin = ["built in"] if one.name in BUILT_IN else made
    return [one_line(line) for line in ("", *origin, "", *(by or ["chosen by no rule"]))]


@exlets.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--note", metavar="TEXT", help="Why; kept in the history.")
@modules_option
@yes_option
@click.pass_obj
def add(given: ConnectionOptions, path: Path, note: str | None, modules: tuple[str, ...], yes: bool) -> None:
    """Add exlets from a TOML file: one, or many.

    Asks before an existing exlet is changed; the change applies to every rule that chooses it.

    \b
      [exlet.give_up]
      about = "Undo everything, and notify."
      steps = [{do = "notify", url = "https://example.com/hook"}, {do = "unwind"}]
    """
    with opened(given, load(modules)) as app:
        sheet = read.read_document(path, app.rules.sources())
        if sheet.trees:
            raise Failure(f"{path} holds trees of rules as well; put all of it in force with `aft rules apply {path}`")
        if not sheet.exlets:
            raise Failure(f"{path} holds no exlet; one begins with [exlet.NAME]")
        found = compare_exlets(app, sheet)
        show_exlets(found)
        put(app, found, [], note, yes or all(one.before is None or one.is_same for one in found))
