"""``aft runs start``: starts a run from a flow's name and arguments, and prints its result."""

from __future__ import annotations

import json
import warnings
from typing import Any

import click

from aft.app import Aft, Run
from aft.cli.application import opened
from aft.cli.arguments import find_flow, read_arguments, read_time
from aft.cli.errors import Failure
from aft.cli.groups import NumericArguments
from aft.cli.options import ConnectionOptions
from aft.cli.run_options import run_options
from aft.cli.show.advice import begins_later, warn_if_nobody_works
from aft.cli.show.output import exactly, print_message
from aft.codec import stored_to_text
from aft.runs.run_rows import RunRow
from aft.runs.states import Status

#: Seconds that ``--wait`` without a number stands for.
FOR_EVER = 10.0**9
#: Seconds between two checks whether a run that is waited for was parked.
LOOK = 1.0


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse how long to wait; detects a flow's name that ``--wait`` has swallowed."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= FOR_EVER:
        raise click.BadParameter(
            f"{value!r} is not a number of seconds; write --wait=30, or --wait as the last word", context, parameter
        )
    return seconds


@click.command(cls=NumericArguments)
@click.argument("target", metavar="MODULE:FLOW")
@click.argument("words", nargs=-1, metavar="[ARGUMENT]...")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE", help="The module of FLOW.")
@click.option("--key", metavar="TEXT", help="The same key means the same run: nothing is started twice.")
@click.option("--after", metavar="DURATION", help="Begin later: in 1h, 30m.")
@click.option("--at", metavar="TIME", help="Begin then: 2027-01-31T08:00+01:00.")
@run_options
@click.option("--here/--submit", "here", default=False, help="Execute it here, or let a dispatcher do it.")
@click.option(
    "--wait",
    callback=_seconds,
    is_flag=False,
    flag_value=str(FOR_EVER),
    metavar="[SECONDS]",
    help="Wait for the end, print the result.",
)
@click.pass_obj
def start(
    given: ConnectionOptions,
    target: str,
    words: tuple[str, ...],
    modules: tuple[str, ...],
    key: str | None,
    after: str | None,
    at: str | None,
    here: bool,
    wait: float | None,
    run_options: dict[str, Any],
) -> None:
    """Start a run and print its id.

    An ARGUMENT is a JSON value, or a plain text if it is not JSON, or NAME=VALUE.

    \b
      aft runs start shop:order ord-7 3 express=true --key ord-7
      aft runs start order -m shop -- -5
    """
    if ":" not in target and not modules:
        raise click.UsageError(
            f"which module holds flow {target!r}? Write MODULE:{target}, or add -m MODULE; "
            f"if {target!r} is the module, name its flow: {target}:FLOW"
        )
    if here and (after or at):
        raise click.UsageError("--here executes it now; a run that begins later is a dispatcher's: leave out --here")
    flow, loaded = find_flow(target, modules)
    args, kwargs = read_arguments(flow, words)
    flow = flow.options(key=key, after=after, at=None if at is None else read_time(at), **run_options)
    with opened(given, loaded) as app:
        begin = app.start if here else app.submit
        run = begin(flow, *args, **kwargs)
        if wait is None:
            click.echo(run.id)
            _print_status(app, run)
        else:
            print_message(f"run {run.id}")
            found = _await(app, run, wait)
            click.echo(found if found.isprintable() else json.dumps(json.loads(found)))


def _print_status(app: Aft, run: Run) -> None:
    row = run.row
    if row.status is Status.COMPLETED:
        print_message(f"completed: {stored_to_text(row.result)}")
    elif row.status.ended or row.status is Status.PARKED:
        fault = run.fault
        print_message(f"{row.status.value}: {row.reason or fault or ''}")
    else:
        if begins_later(row):
            print_message(f"It begins at {exactly(row.due_at)}.")
        warn_if_nobody_works(app, row)


def _await(app: Aft, run: Run, seconds: float) -> str:
    """Wait for a run's end and return its result as JSON text; raises what it ended with, or that it is parked."""
    if not run.status.ended:
        warn_if_nobody_works(app, run.row)
    until = app.clock.ticks() + seconds
    while True:
        left = max(0.0, until - app.clock.ticks())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # reported here instead
                run.result(min(left, LOOK))
            return stored_to_text(run.row.result) or "null"
        except TimeoutError:
            row = run.row
        if row.status is Status.PARKED:
            raise Failure(f"run {row.id} is parked and waits for a person: {row.reason}; see `aft runs show {row.id}`")
        if left <= LOOK:
            raise Failure(f"run {row.id} has not ended within {seconds:g} s; it {_how(row)}")


def _how(row: RunRow) -> str:
    if begins_later(row):
        return f"begins at {exactly(row.due_at)}"
    return "still waits for a worker" if row.started_at is None else f"is {row.status.value} and goes on"
