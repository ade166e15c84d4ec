"""``aft rules``: shows the rule trees, their facts, and their history."""

from __future__ import annotations

from contextlib import suppress

import click
from rich.text import Text

from aft.app import Aft
from aft.app.rules.rule_documents import to_text
from aft.app.rules.rule_store import format_key, make_key, read_tree
from aft.cli.application import NoDatabase
from aft.cli.commands.rules import documents
from aft.cli.commands.rules.apply import apply
from aft.cli.commands.rules.diff import print_diff, summary
from aft.cli.commands.rules.draw import draw_tree
from aft.cli.commands.rules.explain import explain
from aft.cli.commands.rules.meanings import MEANINGS, SOURCE
from aft.cli.commands.rules.prompts import desk, modules_option, warn_of_damaged
from aft.cli.commands.rules.teach import add, preview, test
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import Column, console, json_option, moment, print_json, print_message, print_table
from aft.errors import RuleRefused
from aft.rules.cases import sources
from aft.rules.cases.facts import FACT_TYPES
from aft.rules.exlets.exlet import BUILT_IN, Exlet
from aft.rules.rule_types import RUN_LEVEL, RuleType
from aft.rules.toml.documents import RuleDocument
from aft.rules.toml.write import write
from aft.rules.trees.choose import ANY
from aft.rules.trees.defaults import DEFAULTS
from aft.rules.trees.rows import Key, Revision
from aft.rules.trees.tree import Tree

TYPES = [on.value for on in RuleType]
on_argument = click.argument("on", type=click.Choice(TYPES), metavar="ON")


@click.group(cls=Noun)
def rules() -> None:
    """Show and teach the rules that decide about faults.

    A tree of rules is for a FLOW, a rule type ON, and an ACTIVITY; '*' stands for all of them.

    \b
    ON is fault, abort, timeout or unavailable; or a constraint's:
    activity_pre, activity_post, violated, run_pre, run_post;
    or run_trigger, activity_trigger.
    """


# Looking --------------------------------------------------------------------------------------------------------


@rules.command()
@click.argument("flow", required=False)
@click.argument("on", type=click.Choice(TYPES), metavar="[ON]", required=False)
@click.argument("activity", required=False)
@click.option("--toml", "as_toml", is_flag=True, help="Write a file that `aft rules apply` reads, with their exlets.")
@click.option("--cornerstones", is_flag=True, help="With --toml: also the facts of the cases they were made for.")
@json_option
@click.pass_obj
def tree(
    given: ConnectionOptions,
    flow: str | None,
    on: str | None,
    activity: str | None,
    as_toml: bool,
    cornerstones: bool,
    as_json: bool,
) -> None:
    """Draw trees of rules: all, those of a flow, or one.

    Rules are asked from the top. What refines one that held is asked next, as "but if"; "else if" is asked if the one
    before did not hold. The last one that held says what is done.
    """
    if as_toml and as_json:
        raise click.UsageError("--toml and --json do not go together")
    if cornerstones and not as_toml:
        raise click.UsageError("--cornerstones goes with --toml; --json has them anyway")
    exlets: list[Exlet] = list(BUILT_IN.values())
    try:
        with desk(given) as app:
            found, exlets = app.rules.trees(damaged=not as_toml), app.rules.exlets(damaged=not as_toml)
            if not as_toml:
                warn_of_damaged(app)
    except NoDatabase:
        found = list(DEFAULTS.values())
    chosen = [one for one in sorted(found, key=_place) if _is_asked_for(one, flow, on, activity)]
    if as_json:
        print_json([documents.tree(one) for one in chosen])
    elif as_toml:
        taught = chosen if flow else [one for one in chosen if one.revision]
        click.echo(_file(taught, exlets, cornerstones).encode(), nl=False)  # TOML is UTF-8, whatever the terminal is
    else:
        _draw(chosen, found, " ".join(part for part in (flow, on, activity) if part))


def _place(one: Tree) -> tuple[object, ...]:
    """Return the sort key of a tree in the listing: specific trees before general ones."""
    return one.flow == ANY, one.flow, TYPES.index(one.on.value), one.activity == ANY, one.activity


def _is_asked_for(one: Tree, flow: str | None, on: str | None, activity: str | None) -> bool:
    return flow in (None, one.flow) and on in (None, one.on.value) and activity in (None, one.activity)


def _file(trees: list[Tree], exlets: list[Exlet], cornerstones: bool) -> str:
    chosen = {node.exlet for one in trees for node in one.nodes.values()} - BUILT_IN.keys()
    texts = tuple(to_text(one, cornerstones=cornerstones) for one in trees)
    return write(RuleDocument(tuple(one for one in exlets if one.name in chosen), texts))


def _draw(chosen: list[Tree], found: list[Tree], asked: str) -> None:
    out = console()
    for number, one in enumerate(chosen):
        if number:
            out.print()
        draw_tree(out, one)
    if not chosen:
        known = ", ".join(sorted({one.flow for one in found}))
        print_message(f"No rules are taught for {asked}; there are trees for {known}.")
    if not any(one.revision for one in found):
        print_message("\nNo rules are taught yet: these are aft's own decisions.")
        print_message("Teach from a fault: `aft rules add FAULT --if CONDITION --then EXLET`.")


@rules.command()
@modules_option
@json_option
@click.pass_obj
def facts(given: ConnectionOptions, modules: tuple[str, ...], as_json: bool) -> None:
    """List the facts that conditions may use: names, types, meanings.

    Conditions are CEL expressions that are true or false.

    \b
      activity.attempts > 3 && fault.name == 'Busy'
      fault.text.contains('locked') || 'gold' in run.tags
    """
    try:
        with desk(given, modules) as app:
            outside = app.rules.sources()
    except NoDatabase:
        outside = {name: one.type for name, one in sources.declared.items()}
    rows = [[name, FACT_TYPES[name].value, meaning] for name, meaning in MEANINGS.items()]
    rows += [[f"source.{name}", type_, SOURCE] for name, type_ in sorted(outside.items())]
    if as_json:
        print_json([{"name": name, "type": type_, "meaning": meaning} for name, type_, meaning in rows])
        return
    shown = [[name, type_.partition("(")[0], meaning] for name, type_, meaning in rows]
    print_table([Column("FACT"), Column("TYPE"), Column("MEANING", flexible=True)], shown)
    print_message("\ndyn is a number, a text, a list or a map, depending on the case.")
    print_message("`aft rules test FAULT --if CONDITION` tries a condition.")
    if not outside:
        print_message("Outside sources are listed while a worker that declares them is alive, or with -m.")


# Changes --------------------------------------------------------------------------------------------------------


def _key(flow: str, on: str, activity: str | None) -> Key:
    """Return the key of the named tree; an activity must be given, since a missing one may be an oversight."""
    if RuleType(on) in RUN_LEVEL:
        if activity:
            raise click.UsageError(f"{on} is about a run as a whole; leave {activity!r} out")
    elif not activity:
        raise click.UsageError("which activity? Write its name, or '*' for the tree of all")
    return make_key(flow, on, activity or "")


@rules.command()
@click.argument("flow", required=False)
@click.argument("on", type=click.Choice(TYPES), metavar="[ON]", required=False)
@click.argument("activity", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many to list.")
@json_option
@click.pass_obj
def history(
    given: ConnectionOptions, flow: str | None, on: str | None, activity: str | None, limit: int, as_json: bool
) -> None:
    """List who changed which tree, newest first."""
    if flow and not on:
        raise click.UsageError("which tree? Write FLOW ON ACTIVITY, or nothing for all")
    key = _key(flow, on, activity) if flow and on else None
    try:
        with desk(given) as app:
            found = app.rules.history(key, limit)
            changes = [(one, _what(app, one)) for one in found]
            none = f"Nobody has changed {format_key(key) if key else 'any rules'} in namespace {app.namespace!r}."
    except NoDatabase as error:
        changes, none = [], f"No changes: {error}."
    if as_json:
        print_json([documents.revision(one, what) for one, what in changes])
    elif not changes:
        print_message(none)
    else:
        _print_history(changes)
        if len(changes) == limit:
            print_message(f"The newest {limit}; --limit shows more.")


def _what(app: Aft, one: Revision) -> str:
    """Return what a revision has changed."""
    flow, on, activity = one.key
    try:
        return summary(app.rules.tree_at((flow, RuleType(on), activity), one.number - 1), read_tree(one))
    except (RuleRefused, ValueError, TypeError):
        return "it cannot be read"


def _print_history(changes: list[tuple[Revision, str]]) -> None:
    columns = [
        Column("TREE", flexible=True),
        Column("REV", right=True),
        Column("AT UTC"),
        Column("BY", flexible=True),
        Column("WHAT", flexible=True),
    ]
    rows: list[list[str | Text]] = [
        [
            " × ".join(part for part in one.key if part),
            str(one.number),
            moment(one.made_at),
            one.made_by,
            f"{what}: {one.note}" if one.note else what,
        ]
        for one, what in changes
    ]
    print_table(columns, rows)


@rules.command()
@click.argument("flow")
@on_argument
@click.argument("activity", required=False)
@click.option(
    "--to", type=click.IntRange(min=0), metavar="REVISION", help="The revision; 0: the built-in tree, or an empty one."
)
@click.pass_obj
def undo(given: ConnectionOptions, flow: str, on: str, activity: str | None, to: int | None) -> None:
    """Put an earlier revision of a tree in force again.

    The one before the last, or the one that --to names. That is a revision of its own, so it can be undone as well.
    """
    key = _key(flow, on, activity)
    with desk(given) as app:
        number = app.rules.undo(key, to)
        after = app.rules.tree_at(key, number)
        with suppress(RuleRefused):  # one that was damaged is told by its number at least
            print_diff(app.rules.tree_at(key, number - 1), after)
        back = number - 2 if to is None else to
        print_message(f"{format_key(key)} is as it was at revision {back}; that is revision {number}.")


# In the order in which people come to need them.
for _verb in (tree, explain, facts, test, preview, add, apply, history, undo):
    rules.commands.pop(_verb.name or "", None)
    rules.add_command(_verb)
