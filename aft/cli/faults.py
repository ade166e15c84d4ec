"""``aft faults``: what went wrong, what was decided about it, and what was refused at the door."""

from __future__ import annotations

import click

from aft import durations
from aft.app import Aft
from aft.cli import shapes
from aft.cli.errors import Failure, printable
from aft.cli.given import Given
from aft.cli.groups import Noun
from aft.cli.opening import NoDatabase, looking
from aft.cli.output import (
    Column,
    exactly,
    json_option,
    moment,
    print_fields,
    print_json,
    print_table,
    say,
    short_id,
)
from aft.errors import UnknownRun
from aft.fault import Fault, FaultState
from aft.recovery.levels import Ladder
from aft.runs import faults as fault_rows
from aft.runs import quarantine, rows

STATES = [state.value for state in FaultState]


@click.group(cls=Noun)
def faults() -> None:
    """Look at what went wrong."""


@faults.command("list")
@click.option("--state", type=click.Choice(STATES), metavar="STATE", help=f"One of {', '.join(STATES)}.")
@click.option("--quarantined", is_flag=True, help="Messages refused at the door instead.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at the most.")
@json_option
@click.pass_obj
def list_faults(given: Given, state: str | None, quarantined: bool, limit: int, as_json: bool) -> None:
    """List faults, newest first."""
    if quarantined and state:
        raise click.UsageError("--quarantined lists messages, which have no --state")
    try:
        with looking(given) as app:
            app.check()
            if quarantined:
                _list_refused(app, limit, as_json)
            else:
                _list(app, state, limit, as_json)
    except NoDatabase as error:
        _print_none(f"No faults: {error}.", as_json)


def _list(app: Aft, state: str | None, limit: int, as_json: bool) -> None:
    found = app.faults(state=state, limit=limit)
    if as_json:
        print_json([shapes.fault(one) for one in found])
        return
    if not found:
        _print_none(f"No faults{f' that are {state}' if state else ''} in namespace {app.namespace!r}.", as_json)
        return
    print_table(
        [
            Column("FAULT"),
            Column("RUN"),
            Column("STATE"),
            Column("STEP", flexible=True),
            Column("RAISED UTC"),
            Column("WHAT", flexible=True),
        ],
        [
            [short_id(one.id), short_id(one.run_id), one.state.value, one.name, moment(one.raised_at), str(one)]
            for one in found
        ],
    )
    if len(found) == limit:
        say(f"The newest {limit}; --limit shows more.")


def _list_refused(app: Aft, limit: int, as_json: bool) -> None:
    with app.store.read() as connection:
        found = quarantine.listing(connection, app.namespace, limit)
    if as_json:
        print_json([shapes.refusal(one) for one in found])
    elif not found:
        _print_none(f"No message was refused in namespace {app.namespace!r}.", as_json)
    else:
        print_table(
            [Column("QUEUE"), Column("AT UTC"), Column("BYTES", right=True), Column("REASON", flexible=True)],
            [[one.queue, moment(one.at), str(one.size), one.reason] for one in found],
        )


def _print_none(text: str, as_json: bool) -> None:
    if as_json:
        print_json([])
    else:
        say(text)


@faults.command()
@click.argument("fault")
@json_option
@click.pass_obj
def show(given: Given, fault: str, as_json: bool) -> None:
    """Show all about one fault.

    FAULT is its id, or an unmistakable part of it; or a run's, for the run's latest fault.
    """
    with looking(given) as app:
        app.check()
        found = find(app, fault)
    if as_json:
        print_json(shapes.fault(found))
        return
    print_fields(_fields(found))
    if found.traceback:
        click.echo(f"\n{printable(found.traceback).rstrip()}")


def find(app: Aft, part: str) -> Fault:
    """Return the fault that an id, or a part of one, names; or the latest fault of the run that it names."""
    with app.store.read() as connection:
        found = fault_rows.find(connection, app.namespace, part)
        if found is not None:
            return found
        try:
            run = rows.find(connection, app.namespace, part)
        except UnknownRun:
            raise Failure(
                f"no fault, and no run, has the id {part!r} in namespace {app.namespace!r}; "
                "`aft faults list` shows what there is"
            ) from None
        of_run = fault_rows.of_run(connection, run.id)
    if not of_run:
        raise Failure(f"run {run.id} of flow {run.flow!r} has no fault; it is {run.status.value}")
    return of_run[-1]


def _fields(one: Fault) -> dict[str, str]:
    return {
        "fault": one.id,
        "run": one.run_id,
        "step": f"{one.name} ({one.kind.value}{f', path {one.path}' if one.path else ''})",
        "what": str(one),
        "type": one.type,
        "state": one.state.value,
        "verdict": one.verdict or "",
        "failures": "" if one.attempt == 0 else f"{one.attempt} of this step so far, this one included",
        "ladder": _spell(shapes.ladder(one)),
        "position": _position(one),
        "said": "" if one.said is None else f"{one.said.value}, by the exception itself",
        "declared": "" if one.declared is None else f"{one.declared.value}, by its activity",
        "status": "" if one.status is None else f"HTTP {one.status}",
        "retry after": "" if one.after is None else durations.spell(one.after),
        "raised": exactly(one.raised_at),
        "decided": exactly(one.decided_at),
        "due": exactly(one.due_at),
        "settled": exactly(one.settled_at),
    }


def _spell(ladder: Ladder) -> str:
    return ", ".join(f"{durations.spell(level.wait)}*{level.tries}" for level in ladder.levels)


def _position(one: Fault) -> str:
    if one.level is None:
        return ""
    wait = "" if one.wait is None else f", after {durations.spell(one.wait)}"
    return f"level {one.level}, try {one.try_in_level}{wait}"
