"""``aft rules explain``: which rules were asked about a fault, with which facts, and why they chose what they did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from rich.console import Console
from rich.text import Text

from aft.app.rules.rule_store import format_key
from aft.app.rules.rules import Explanation, ExplanationSource
from aft.app.views.exlet_reports import format_progress, format_ruling, plans_of
from aft.cli.commands.rules import documents
from aft.cli.commands.rules.draw import draw_rule, rule_text
from aft.cli.commands.rules.prompts import desk, fault_of, modules_option, print_facts, print_line
from aft.cli.errors import one_line
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import console, exactly, json_option, print_fields, print_json, print_message, print_text
from aft.rules.cases.facts import SOURCE, fact_types
from aft.rules.cel.conditions import names
from aft.rules.exlets.plans import Plan
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import AskedTree, RuleChoice
from aft.rules.trees.tree import Node

#: Of consecutive rules that did not hold, how many are shown before and after those that are left out.
MOST_BESIDE = 4

_INTRO = {
    ExplanationSource.DECIDED: "",
    ExplanationSource.BUILT_IN: "No rules were taught about it, so aft decided by itself. The built-in tree:",
    ExplanationSource.NOW: "It is not decided yet. This is what the rules choose now:",
    ExplanationSource.NEVER: "The flow's own code raised it: no rule is asked about that.",
}


@click.command()
@click.argument("fault")
@click.option("--all", "everything", is_flag=True, help="Show every rule that was asked, however many.")
@modules_option
@json_option
@click.pass_obj
def explain(given: ConnectionOptions, fault: str, everything: bool, modules: tuple[str, ...], as_json: bool) -> None:
    """Show why a fault was decided about as it was.

    FAULT is its id, or an unambiguous part of it; or a run's, for the run's latest fault.
    """
    with desk(given, modules) as app:
        of = fault_of(app, fault)
        found = app.rules.explain(of.id)
        with app.store.read() as connection:
            plan = plans_of(connection, of.run_id).get(of.id)
    if as_json:
        print_json(documents.explanation(found, plan))
        return
    _print_fault(found)
    if intro := _INTRO[found.source]:
        click.echo()
        print_line(intro)
    if found.walk is not None:
        _print_walk(found, found.walk, everything)
    _print_outcome(found, plan)


def _print_fault(found: Explanation) -> None:
    of = found.fault
    where = f"{found.flow}, {of.kind.value} {of.name}" + (f", path {of.path}" if of.path else "")
    print_fields({"fault": of.id, "run": of.run_id, "where": where, "what": str(of), "raised": exactly(of.raised_at)})


def _print_walk(found: Explanation, walk: RuleChoice, everything: bool) -> None:
    out = console()
    named: set[str] = set()
    if found.source is not ExplanationSource.BUILT_IN and found.fault.rule_type not in (None, walk.on):
        click.echo()
        print_line(f"No rule about {found.fault.rule_type} held; so the rules about {walk.on} were asked.")
    for asked in walk.asked:
        named |= _print_tree(out, found, walk, asked, everything)
    out.print()
    sure = Text.assemble(("→ ", "dim"), (walk.exlet, "bold cyan"), f", by rule {walk.node}: the last one that held")
    print_text(out, sure)
    if named:
        click.echo()
    print_facts({**found.facts, **walk.facts}, named)
    for warning in dict.fromkeys(walk.warnings):
        print_message(f"warning: {one_line(warning)}")


def _print_tree(out: Console, found: Explanation, walk: RuleChoice, asked: AskedTree, everything: bool) -> set[str]:
    """Print how one tree was asked; return the facts that its rules on the way mention."""
    key = (asked.flow, RuleType(walk.on), asked.activity)
    tree = found.trees.get(key)
    revision = f"revision {asked.revision}" if asked.revision else "built in"
    out.print()
    print_text(out, Text.assemble((format_key(key), "bold"), (f"  {revision}", "dim")))
    nodes: Mapping[int, Node] = {} if tree is None else tree.nodes
    width = len(str(max((number for number, _, _ in asked.steps), default=1)))
    for step in _shown(asked, everything):
        if isinstance(step, int):
            print_text(out, Text(f"{'…':>{width + 2}}  {step} more did not hold; --all shows them", "dim"))
        else:
            _print_step(out, nodes, step, width)
    if not asked.steps:
        print_text(out, Text("  no rules", "dim"))
    known = fact_types({name.removeprefix(SOURCE): "dyn" for name in found.facts if name.startswith(SOURCE)})
    return {name for number, _, _ in asked.steps if number in nodes for name in names(nodes[number].condition, known)}


#: Number, how it answered, why it could not be asked, and how many rules above it held.
_Step = tuple[int, bool, str | None, int]


def _shown(asked: AskedTree, everything: bool) -> Iterator[_Step | int]:
    """Yield the rules to show; a number stands for as many that are left out."""
    depth = 0
    quiet: list[_Step] = []
    for number, held, warning in asked.steps:
        step = (number, held, warning, depth)
        if held or warning:
            yield from _fold(quiet, everything)
            quiet = []
            yield step
        else:
            quiet.append(step)
        depth += held
    yield from _fold(quiet, everything)


def _fold(quiet: list[_Step], everything: bool) -> Iterator[_Step | int]:
    left = len(quiet) - 2 * MOST_BESIDE
    if everything or left <= 1:
        yield from quiet
        return
    yield from quiet[:MOST_BESIDE]
    yield left
    yield from quiet[-MOST_BESIDE:]


def _print_step(out: Console, nodes: Mapping[int, Node], step: _Step, width: int) -> None:
    number, held, warning, depth = step
    node = nodes.get(number)
    answer, style = (
        ("could not be asked", "yellow") if warning else ("held", "green") if held else ("did not hold", "dim")
    )
    margin = Text.assemble((f"{number:>{width + 2}}  ", "dim"), (f"{answer:<18}  ", style))
    line = Text("this rule cannot be read any more", "dim")
    if node is not None:
        line = rule_text("", node.condition, node.exlet if held else "")
    why = Text(one_line((warning or "").partition(" could not be evaluated: ")[2] or warning or ""), "yellow")
    draw_rule(out, margin, depth, line, why)


def _print_outcome(found: Explanation, plan: Plan | None) -> None:
    of = found.fault
    click.echo()
    print_fields(
        {
            "state": of.state.value,
            "why": of.why or "",
            "exlet": "" if plan is None else f"{plan.exlet.name}: {format_progress(plan)}",
            "step": format_ruling(of),
            "aft alone": "" if found.source is ExplanationSource.BUILT_IN else found.default,
        }
    )
