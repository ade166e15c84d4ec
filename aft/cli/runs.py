"""``aft runs``: start runs, look at them, and steer those that wait for a person."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text
from sqlalchemy import Connection

from aft import durations
from aft.app import Aft, Run, health, timeline
from aft.cli import shapes
from aft.cli.arguments import find_flow, read_arguments, read_time
from aft.cli.drawing import draw_timeline, status_style
from aft.cli.errors import Failure, tell
from aft.cli.following import follow
from aft.cli.given import Given
from aft.cli.groups import Noun
from aft.cli.opening import NoDatabase, looking, opened
from aft.cli.output import (
    Column,
    console,
    exactly,
    json_option,
    moment,
    print_json,
    print_table,
    say,
    short_id,
    shorten,
)
from aft.cli.words import Words
from aft.runs import faults, rows
from aft.runs.rows import RunRow
from aft.runs.states import Status

STATUSES = [status.value for status in Status]
#: Characters of a value in a table.
MOST_VALUE = 200


@click.group(cls=Noun)
def runs() -> None:
    """Start runs, look at them, steer parked ones.

    RUN is an id, or as much of its beginning or end as is unmistakable.
    """


# Looking --------------------------------------------------------------------------------------------------------


@runs.command("list")
@click.option("--status", type=click.Choice(STATUSES), metavar="STATUS", help=f"One of {', '.join(STATUSES)}.")
@click.option("--flow", metavar="NAME", help="Runs of this flow only.")
@click.option("--owner", metavar="NAME", help="Runs of this owner only.")
@click.option("--resource", metavar="NAME", help="Runs that need this only.")
@click.option("--overdue", is_flag=True, help="Runs only that should have ended by now.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at the most.")
@json_option
@click.pass_obj
def list_runs(
    given: Given,
    status: str | None,
    flow: str | None,
    owner: str | None,
    resource: str | None,
    overdue: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    found: list[tuple[RunRow, str]] = []
    hint = "Start one with `aft runs start MODULE:FLOW`, or app.start(flow, …) in code."
    try:
        with looking(given) as app:
            app.check()
            with app.store.read() as connection:
                listed = rows.listing(
                    connection,
                    app.namespace,
                    status=None if status is None else Status(status),
                    flow=flow,
                    owner=owner,
                    resource=resource,
                    overdue=overdue,
                    limit=limit,
                )
                found = [(row, _about(connection, row)) for row in listed]
            which = f" in namespace {app.namespace!r} of {app.store.url!r}"
    except NoDatabase as error:
        which, hint = f": {error}", ""
    if as_json:
        print_json([shapes.run(row) for row, _ in found])
    elif not found:
        filtered = _filtered(status, flow, owner, resource, overdue)
        say(f"No runs{filtered}{which}. {hint if not filtered else ''}".strip())
    else:
        _print_runs(found)
        if len(found) == limit:
            say(f"The newest {limit}; --limit shows more.")


def _filtered(status: str | None, flow: str | None, owner: str | None, resource: str | None, overdue: bool) -> str:
    """Say which runs were asked for."""
    parts = {
        f" that are {status}": status,
        f" of flow {flow!r}": flow,
        f" of owner {owner!r}": owner,
        f" that need {resource!r}": resource,
        " that are overdue": overdue,
    }
    return "".join(part for part, asked in parts.items() if asked)


def _print_runs(found: list[tuple[RunRow, str]]) -> None:
    """Print a table; whose each run is, and how long it should take, only where somebody has said so."""
    owned = any(row.owner for row, _ in found)
    expected = any(row.expected for row, _ in found)
    columns = [
        Column("RUN"),
        Column("STATUS"),
        Column("FLOW", flexible=True),
        *([Column("OWNER", flexible=True)] if owned else []),
        Column("CREATED UTC"),
        *([Column("EXPECTED", right=True)] if expected else []),
        Column("DETAIL", flexible=True),
    ]
    print_table(
        columns,
        [
            [
                short_id(row.id),
                Text(row.status.value, status_style(row.status)),
                f"{row.flow}@{row.version}",
                *([row.owner or ""] if owned else []),
                moment(row.created_at),
                *([durations.spell(row.expected) if row.expected else ""] if expected else []),
                about,
            ]
            for row, about in found
        ],
    )


def _about(connection: Connection, row: RunRow) -> str:
    """Say the one thing about a run that a person wants to know first."""
    if row.reason:
        return shorten(row.reason, MOST_VALUE)
    if row.status is Status.COMPLETED:
        return shorten(f"→ {row.result}", MOST_VALUE)
    if row.fault_id is not None:
        fault = faults.get(connection, row.namespace, row.fault_id)
        return "" if fault is None else shorten(f"{fault.name}: {fault}", MOST_VALUE)
    if row.worker_id is not None:
        return "executing"
    if _begins_later(row):
        return f"begins at {moment(row.due_at)}"
    return (
        f"goes on at {moment(row.due_at)}" if row.due_at and row.status is not Status.RUNNING else "waits for a worker"
    )


@runs.command()
@click.argument("run")
@click.option("--follow", "following", is_flag=True, help="Go on until the run has ended or is parked.")
@json_option
@click.pass_obj
def show(given: Given, run: str, following: bool, as_json: bool) -> None:
    """Tell a run's story: activities, faults, waits, undoing."""
    if following and as_json:
        raise click.UsageError("--follow and --json do not go together; --json shows how it stands")
    with looking(given) as app:
        found = app.run(run)
        if following:
            follow(app, found.id)
        else:
            with app.store.read() as connection:
                row, story = timeline.read(connection, app.namespace, found.id)
            if as_json:
                print_json({**shapes.run(row), "timeline": [shapes.happening(one) for one in story]})
                return
            draw_timeline(console(), row, story)
        _advise(found.row)


def _advise(row: RunRow) -> None:
    if _begins_later(row):
        say(f"It begins at {exactly(row.due_at)}.")
    if row.status is Status.PARKED:
        short = short_id(row.id)
        say(f"It waits for a person. See `aft faults show {short}` and `aft stack {short}`; after the fix:")
        say(f"`aft runs retry {short}`, or skip-frame or frame-done for a compensator that cannot succeed.")


# Starting -------------------------------------------------------------------------------------------------------


#: Seconds that ``--wait`` without a number stands for.
FOR_EVER = 10.0**9
#: Seconds between two looks whether a run that is waited for was parked.
LOOK = 1.0


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Read how long to wait; a flow's name that ``--wait`` has swallowed is told apart."""
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


@runs.command(cls=Words)
@click.argument("target", metavar="MODULE:FLOW")
@click.argument("words", nargs=-1, metavar="[ARGUMENT]...")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE", help="Where FLOW is, if named alone.")
@click.option("--key", metavar="TEXT", help="The same key means the same run: nothing is started twice.")
@click.option("--after", metavar="DURATION", help="Begin later: in 1h, 30m.")
@click.option("--at", metavar="TIME", help="Begin then: 2027-01-31T08:00+01:00.")
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
    given: Given,
    target: str,
    words: tuple[str, ...],
    modules: tuple[str, ...],
    key: str | None,
    after: str | None,
    at: str | None,
    here: bool,
    wait: float | None,
) -> None:
    """Start a run and print its id.

    An ARGUMENT is a JSON value, or a plain text if it is not JSON, or NAME=VALUE.

    \b
      aft runs start shop:order ord-7 3 express=true --key ord-7
      aft runs start order -m shop -- -5
    """
    if ":" not in target and not modules:
        raise click.UsageError(f"which module holds flow {target!r}? Write MODULE:{target}, or add -m MODULE")
    if here and (after or at):
        raise click.UsageError("--here executes it now; a run that begins later is a dispatcher's: leave out --here")
    flow, loaded = find_flow(target, modules)
    args, kwargs = read_arguments(flow, words)
    flow = flow.options(key=key, after=after, at=None if at is None else read_time(at))
    with opened(given, loaded) as app:
        begin = app.start if here else app.submit
        run = begin(flow, *args, **kwargs)
        if wait is None:
            click.echo(run.id)
            _tell_stand(app, run)
        else:
            say(f"run {run.id}")
            click.echo(_await(app, run, wait))


def _tell_stand(app: Aft, run: Run) -> None:
    row = run.row
    if row.status is Status.COMPLETED:
        say(f"completed: {row.result}")
    elif row.status.ended or row.status is Status.PARKED:
        fault = run.fault
        say(f"{row.status.value}: {row.reason or fault or ''}")
    else:
        if _begins_later(row):
            say(f"It begins at {exactly(row.due_at)}.")
        _tell_if_nobody_works(app, row)


def _begins_later(row: RunRow) -> bool:
    """Tell whether a run waits for its beginning."""
    waits = row.status is Status.RUNNING and row.started_at is None and row.worker_id is None
    return waits and row.due_at is not None and row.due_at > datetime.now(UTC)


def _await(app: Aft, run: Run, seconds: float) -> str:
    """Wait for a run's end and return its stored result; raises what it ended with, or that it is parked."""
    if not run.status.ended:
        _tell_if_nobody_works(app, run.row)
    until = app.clock.ticks() + seconds
    while True:
        left = max(0.0, until - app.clock.ticks())
        try:
            run.result(min(left, LOOK))
            return run.row.result or "null"
        except TimeoutError:
            row = run.row
        if row.status is Status.PARKED:
            raise Failure(f"run {row.id} is parked and waits for a person: {row.reason}; see `aft runs show {row.id}`")
        if left <= LOOK:
            raise Failure(f"run {row.id} has not ended within {seconds:g} s; it is {row.status.value} and goes on")


# By hand --------------------------------------------------------------------------------------------------------


def _note(required: bool) -> Callable[[Any], Any]:
    return click.option("--note", required=required, metavar="TEXT", help="Why; kept in the run's story.")


@runs.command()
@click.argument("run")
@_note(required=False)
@click.pass_obj
def retry(given: Given, run: str, note: str | None) -> None:
    """Let a parked run try again what it was parked for."""
    _order(given, run, lambda found: found.retry(note=note), "tries again")


@runs.command("skip-frame")
@click.argument("run")
@_note(required=True)
@click.pass_obj
def skip_frame(given: Given, run: str, note: str) -> None:
    """Let the frame go that a run is parked for.

    The unwinding goes on below it, and the run ends `failed`: it was not undone entirely.
    """
    _order(given, run, lambda found: found.skip_frame(note=note), "goes on without that frame")


@runs.command("frame-done")
@click.argument("run")
@_note(required=True)
@click.pass_obj
def frame_done(given: Given, run: str, note: str) -> None:
    """Say that the frame a run is parked for was undone by hand.

    The unwinding goes on below it.
    """
    _order(given, run, lambda found: found.frame_done(note=note), "goes on below that frame")


@runs.command()
@click.argument("run")
@_note(required=True)
@click.pass_obj
def release(given: Given, run: str, note: str) -> None:
    """Take a run away from the worker that has it.

    Another one goes on. What the worker is doing may be done a second time, under the same key, as after its death.
    """
    _order(given, run, lambda found: found.release(note=note), "goes on elsewhere,")


def _order(given: Given, run: str, order: Callable[[Run], None], what: str) -> None:
    with looking(given) as app:
        found = app.run(run)
        order(found)
        say(f"Run {found.id} {what} as soon as a worker takes it.")
        _tell_if_nobody_works(app, found.row)


def _tell_if_nobody_works(app: Aft, row: RunRow) -> None:
    flow = f"{row.flow}@{row.version}"
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("work" in worker.roles and flow in worker.flows for worker in workers):
        tell(f"note: no live worker has flow {flow}; start one with `aft dispatcher MODULE`")
