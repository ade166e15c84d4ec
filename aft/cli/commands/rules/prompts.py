"""Shared by the commands about rules: finding the fault that was named, and asking before a change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.text import Text

from aft.app import Aft
from aft.cli.application import open_for_reading
from aft.cli.commands.faults import find_fault
from aft.cli.errors import Failure, one_line
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import Column, console, print_message, print_table, short_id, showable
from aft.fault import Fault
from aft.runs.records.quarantine import Refusal
from aft.security.redaction import HIDDEN, is_hidden, redact_all

modules_option = click.option(
    "-m", "--module", "modules", multiple=True, metavar="MODULE", help="Import it: it declares sources."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@contextmanager
def desk(given: ConnectionOptions, modules: Iterable[str] = ()) -> Iterator[Aft]:
    """Yield an application for reading or teaching rules, with the sources that modules declare."""
    with open_for_reading(given, load(list(modules))) as app:
        app.check()
        yield app


def warn_of_damaged(app: Aft) -> None:
    """Name the trees and exlets that cannot be read, and are in no list."""
    for why in app.rules.find_damaged():
        print_message(f"aft: {why}")


def fault_of(app: Aft, part: str) -> Fault:
    """Return the fault with this part of an id, or the latest of such a run; raises Failure."""
    found = find_fault(app, part)
    if isinstance(found, Refusal):
        raise Failure(f"{part!r} is a refused message, which no rule is asked about; name a fault, or its run")
    return found


def confirm(question: str, yes: bool) -> None:
    """Return only if the user agrees, or ``yes`` is set; raises Failure otherwise."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise Failure("not confirmed, so nothing was changed; --yes confirms in advance") from None
    if not agreed:
        raise Failure("nothing was changed")


def print_facts(facts: Mapping[str, Any], names: Iterable[str]) -> None:
    """Print the values of facts, by name."""
    rows = [[name, _value(facts, name)] for name in sorted(names)]
    if rows:
        print_table([Column("FACT"), Column("VALUE", flexible=True)], rows)


def print_line(text: str | Text) -> None:
    """Print a sentence: wrapped on a terminal, on one line in a pipe."""
    out = console()
    line = Text(text) if isinstance(text, str) else text
    out.print(showable(out, line), highlight=False, soft_wrap=not out.is_terminal)


def name_of(fault: Fault) -> str:
    """Format a fault on one line."""
    return one_line(f"fault {short_id(fault.id)}, {fault.name}: {fault}")


def _value(facts: Mapping[str, Any], name: str) -> str:
    if name not in facts:
        return "not known"
    value = facts[name]
    shown = HIDDEN if is_hidden(name.rpartition(".")[2], value) else redact_all(value)
    return json.dumps(shown, ensure_ascii=False, default=str)
