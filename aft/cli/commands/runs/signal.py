"""``aft runs signal``: sends a signal to a run, and prints whether the run waits for it."""

from __future__ import annotations

import difflib
from typing import Any

import click

from aft.app import Aft, Run
from aft.cli.application import open_for_reading
from aft.cli.arguments import read_value
from aft.cli.errors import print_to_stderr
from aft.cli.groups import NumericArguments
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.advice import warn_if_nobody_works
from aft.cli.show.output import print_message, short_id
from aft.codec import value_codec
from aft.flows.declare.flow import declared_signal
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import WaitKind, awaits_signal
from aft.runs.wakes import child_runs

#: States in which a run may take a signal, now or later; in the others it is being undone.
_FORWARD = (Status.RUNNING, Status.WAITING, Status.RECOVERING)


@click.command(cls=NumericArguments)
@click.argument("run")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--key", metavar="TEXT", help="A second signal with the same key is dropped.")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE", help="Check it as the flow declares it.")
@click.pass_obj
def signal(
    given: ConnectionOptions, run: str, name: str, value: str | None, key: str | None, modules: tuple[str, ...]
) -> None:
    """Send a run the signal NAME.

    VALUE is a JSON value, or a plain text if it is not JSON; null if there is none. A run that does not wait for it yet
    finds it when it does.

    \b
      aft runs signal 1a2b3c sysadmin_verdict approve --key ticket-7
      aft runs signal 1a2b3c refilled
    """
    loaded = load(modules)
    with open_for_reading(given, loaded) as app:
        found = app.run(run)
        before = found.row
        sent = found.signal(name, _read(app, before, name, value, check=bool(modules)), key=key)
        if not sent:
            print_message(f"Run {found.id} was sent signal {name!r} with key {key!r} before; nothing was sent now.")
        elif before.status in _FORWARD and awaits_signal(before.waits, name):
            unchecked = "" if modules else ", if its flow takes that value (-m MODULE looks before it is sent)"
            print_message(
                f"Run {found.id} was sent signal {name!r}, and goes on as soon as a worker takes it{unchecked}."
            )
            warn_if_nobody_works(app, before)
        else:
            print_message(f"Run {found.id} was sent signal {name!r}; it is kept until the run waits for it.")
            _print_what_it_awaits(app, found, before, name)


def _read(app: Aft, row: RunRow, name: str, word: str | None, *, check: bool) -> Any:
    """Parse the value as the flow declares it, if its module was named; else by its form."""
    declared = app.registry.flow(row.flow, row.version).signals if check else {}
    if word is None:
        return None
    return read_value(declared_signal(row.flow, declared, name) if declared else value_codec(Any), word)


def _print_what_it_awaits(app: Aft, run: Run, row: RunRow, name: str) -> None:
    """Print what the run waits for instead; most often the name is misspelt, or another run of its family was meant."""
    with app.store.read() as connection:
        family = child_runs.all_of(connection, row.root_id)
    awaiting = [other for other in family if other.id != run.id and awaits_signal(other.waits, name)]
    if awaiting:
        other = awaiting[0]
        short = short_id(other.id)
        print_to_stderr(
            f"note: its relative {short} of flow {other.flow!r} waits for that: `aft runs signal {short} {name} …`"
        )
    elif row.status not in _FORWARD:
        print_to_stderr(f"note: it is {row.status.value} now{_hint(row)}")
    elif row.waits:
        waited = ", ".join(f"{wait}" for wait in row.waits)
        names = [wait.name for wait in row.waits if wait.kind in (WaitKind.SIGNAL, WaitKind.FAULT)]
        near = difflib.get_close_matches(name, names, n=1)
        print_to_stderr(f"note: now it waits for {waited}{f'; did you mean {near[0]!r}?' if near else ''}")


def _hint(row: RunRow) -> str:
    short = short_id(row.id)
    hints = {
        Status.SUSPENDED: f"; `aft runs resume {short}` continues it",
        Status.PARKED: f", and waits for a person: see `aft runs show {short}`",
        Status.COMPENSATING: ": it is being undone, and takes no more signals",
    }
    return hints.get(row.status, "")
