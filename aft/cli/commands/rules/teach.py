"""``aft rules add``, ``preview`` and ``test``: make a rule from a real fault, and show what it would change."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from aft.app import Aft
from aft.app.rules.past_faults import ChangedDecision, Preview
from aft.app.rules.rule_store import key_of
from aft.app.rules.rules import MOST_LOOKED_AT
from aft.app.views.exlet_reports import format_rule
from aft.cli.commands.rules import documents
from aft.cli.commands.rules.draw import draw_rule, rule_text, title
from aft.cli.commands.rules.prompts import (
    confirm,
    desk,
    fault_of,
    modules_option,
    name_of,
    print_facts,
    print_line,
    yes_option,
)
from aft.cli.errors import Failure, print_to_stderr
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import (
    Column,
    console,
    json_option,
    moment,
    print_json,
    print_message,
    print_table,
    print_text,
    short_id,
)
from aft.fault import Fault
from aft.rules.trees.preview import Proposal
from aft.rules.trees.tree import Node, Tree

#: Changes that are listed before the user is asked.
MOST_LISTED = 10
#: Rules on the way to a new one that are shown.
MOST_ABOVE = 5

if_option = click.option("--if", "condition", required=True, metavar="CONDITION", help="When it holds, in CEL.")
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=MOST_LOOKED_AT,
    show_default=True,
    help="How many past faults are asked again.",
)


def _rule_options(command: Any) -> Any:
    for option in (
        modules_option,
        limit_option,
        click.option(
            "--scope",
            type=click.Choice(["activity", "flow", "all"]),
            default="activity",
            show_default=True,
            help="Its scope: that activity of that flow, that flow, or everything.",
        ),
        click.option("--then", "exlet", required=True, metavar="EXLET", help="What is done then."),
        if_option,
        click.argument("fault"),
    ):
        command = option(command)
    return command


@click.command()
@_rule_options
@click.option("--note", metavar="TEXT", help="Why; kept with the rule.")
@click.option("--accept", is_flag=True, help="Even if it changes the answer for cornerstones of other rules.")
@yes_option
@click.pass_obj
def add(
    given: ConnectionOptions,
    fault: str,
    condition: str,
    exlet: str,
    scope: str,
    limit: int,
    modules: tuple[str, ...],
    note: str | None,
    accept: bool,
    yes: bool,
) -> None:
    """Teach a rule, from a fault that it is for.

    FAULT is its id, or an unambiguous part of it; or a run's, for the run's latest fault. Shows first where the rule
    goes and what it would have changed.

    \b
      aft rules add 5f0d7bc1 --if "activity.attempts > 3" --then park
    """
    with desk(given, modules) as app:
        of = fault_of(app, fault)
        proposal = app.rules.propose(of.id, condition, exlet, scope=scope, note=note)
        _show(app, of, proposal)
        seen = app.rules.preview(proposal.tree, limit)
        _print_preview(seen, MOST_LISTED)
        if proposal.conflicts and not accept:
            raise Failure("nothing was changed, because of those cases; make the condition narrower, or add --accept")
        confirm(f"Put rule {proposal.node.id} in force?", yes)
        revision = app.rules.add(proposal, accept=accept)
        print_message(f"Rule {proposal.node.id} is in force, as revision {revision}; within a second everywhere.")


@click.command()
@_rule_options
@json_option
@click.pass_obj
def preview(
    given: ConnectionOptions,
    fault: str,
    condition: str,
    exlet: str,
    scope: str,
    limit: int,
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what a rule would change; nothing is saved.

    FAULT is its id, or an unambiguous part of it; or a run's, for the run's latest fault.
    """
    with desk(given, modules) as app:
        of = fault_of(app, fault)
        proposal = app.rules.propose(of.id, condition, exlet, scope=scope)
        seen = app.rules.preview(proposal.tree, limit)
        if as_json:
            print_json(documents.proposal(proposal, seen))
            return
        _show(app, of, proposal)
        _print_preview(seen, limit)


@click.command()
@click.argument("fault")
@if_option
@modules_option
@json_option
@click.pass_obj
def test(given: ConnectionOptions, fault: str, condition: str, modules: tuple[str, ...], as_json: bool) -> None:
    """Test whether a condition holds for a fault.

    FAULT is its id, or an unambiguous part of it; or a run's, for the run's latest fault.
    """
    with desk(given, modules) as app:
        tried = app.rules.test(fault_of(app, fault).id, condition)
    if as_json:
        print_json(documents.trial(tried))
        return
    answer = ("holds", "green") if tried.holds else ("does not hold", "yellow")
    print_line(Text.assemble("It ", answer, f" for {name_of(tried.fault)}"))
    if tried.warning:
        print_message(
            f"It could not be asked: {tried.warning.partition(' could not be evaluated: ')[2] or tried.warning}"
        )
    if tried.facts:
        click.echo()
    print_facts(tried.facts, tried.facts)


# Where it goes --------------------------------------------------------------------------------------------------


def _show(app: Aft, fault: Fault, proposal: Proposal) -> None:
    """Print the way to a new rule, and whose answers it changes."""
    out, node, tree = console(), proposal.node, proposal.tree
    from_ = f"revision {tree.revision}" if tree.revision else "built in" if len(tree.nodes) > 1 else "new"
    print_text(out, title(tree, from_))
    out.print()
    way = _way(tree, node.id)
    width = len(str(max(tree.nodes)))
    hidden = len(way) - 1 - MOST_ABOVE
    depth = sum(word == "but if" for word, _ in way[: max(0, hidden)])
    if hidden > 0:
        print_text(out, Text(f"{'…':>{width + 2}}  {hidden} rules before", "dim"))
    first = depth
    for word, one in way[max(0, hidden) :]:
        depth += word == "but if"
        new = one.id == node.id
        margin = Text(f"{'+' if new else ' '}{one.id:>{width + 1}}  ", "bold green" if new else "dim")
        line = rule_text(word, one.condition, one.exlet, "bold green" if new else "cyan")
        draw_rule(out, margin, depth - first, line)
    before = proposal.walk.exlet or "nothing from this tree"
    out.print()
    print_line(f"It is made for {name_of(fault)}")
    print_line(f"That fault gets {node.exlet} then, instead of {before}.")
    _print_conflicts(proposal)
    _warn_if_shadowed(app, fault, proposal)


def _way(tree: Tree, number: int) -> list[tuple[str, Node]]:
    """Return the rules that lead to one, the first at the top, each with how it is asked."""
    above = {
        child: (word, node)
        for node in tree.nodes.values()
        for word, child in (("but if", node.refined), ("else if", node.otherwise))
        if child is not None
    }
    way: list[tuple[str, Node]] = []
    here = tree.nodes[number]
    while here.id in above:
        word, parent = above[here.id]
        way.append((word, here))
        here = parent
    return [("if", here), *reversed(way)]


def _print_conflicts(proposal: Proposal) -> None:
    if not proposal.conflicts:
        return
    click.echo()
    print_line("It would also change the answer for cases that other rules were made for:")
    for conflict in proposal.conflicts:
        node = conflict.node
        same = node.fault_id == proposal.node.fault_id
        case = f", made for {'this very ' if same else ''}fault {short_id(node.fault_id)}" if node.fault_id else ""
        draw_rule(console(), f"{node.id:>4}  ", 0, rule_text("", node.condition, node.exlet).append(case, "dim"))


def _warn_if_shadowed(app: Aft, fault: Fault, proposal: Proposal) -> None:
    """Print a note if a more specific tree answers before this one is asked."""
    decision = app.rules.decide(fault.id, proposal.tree)
    key = key_of(proposal.tree)
    if decision is None or (decision.asked[-1].flow, decision.on, decision.asked[-1].activity) == key:
        return
    print_to_stderr(f"note: another rule answers first for this fault: {format_rule(decision)}")


# What it would change -------------------------------------------------------------------------------------------


def format_preview(seen: Preview) -> str:
    """Format how many decisions would change."""
    if not seen.examined:
        return "There are no past faults to try it on."
    return f"Would change {len(seen.changes)} of {seen.examined} decision{'s' if seen.examined != 1 else ''}."


def _print_preview(seen: Preview, most: int) -> None:
    click.echo(f"\n{format_preview(seen)}")
    if seen.changes:
        click.echo()
        print_changes(seen.changes[:most])
    if len(seen.changes) > most:
        print_message(f"… and {len(seen.changes) - most} more; `aft rules preview` lists them all.")
    click.echo()


def print_changes(changes: list[ChangedDecision]) -> None:
    """Print which faults would be decided differently."""
    flows = len({change.flow for change in changes}) > 1
    columns = [
        Column("FAULT"),
        *([Column("FLOW", flexible=True)] if flows else []),
        Column("STEP", flexible=True),
        Column("RAISED UTC"),
        Column("WHAT", flexible=True),
        Column("NOW", flexible=True),
        Column("THEN", flexible=True),
    ]
    rows: list[list[str | Text]] = [
        [
            short_id(change.fault.id),
            *([change.flow] if flows else []),
            change.fault.name,
            moment(change.fault.raised_at),
            str(change.fault),
            change.before,
            Text(change.after, "green"),
        ]
        for change in changes
    ]
    print_table(columns, rows)
