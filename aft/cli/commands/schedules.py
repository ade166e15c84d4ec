"""``aft schedules``: flows that are run at certain times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeAlias

import click
from rich.text import Text
from sqlalchemy import Connection

from aft.app import Aft, Schedule
from aft.app.actors import current_user
from aft.app.schedule import new_schedule
from aft.app.views import health
from aft.cli.application import open_for_reading, opened
from aft.cli.arguments import find_flow, read_arguments
from aft.cli.errors import print_to_stderr
from aft.cli.groups import Noun, NumericArguments
from aft.cli.options import ConnectionOptions
from aft.cli.run_options import run_options
from aft.cli.show import documents
from aft.cli.show.lists import print_listing
from aft.cli.show.output import Column, exactly, json_option, moment, print_message, print_table, short_id
from aft.cli.show.styles import status_style
from aft.errors import DefinitionError, UnknownRun
from aft.runs import run_rows
from aft.runs.schedules import schedule_rows as table
from aft.runs.schedules.calendar import CatchUp
from aft.runs.schedules.schedule_rows import ScheduleRow
from aft.runs.states import Status

POLICIES = [policy.value for policy in CatchUp]

#: A schedule, and the status of its last run, if that is still there.
_Listed: TypeAlias = tuple[ScheduleRow, Status | None]


@click.group(cls=Noun)
def schedules() -> None:
    """List and steer schedules: flows that are run at certain times."""


# Looking --------------------------------------------------------------------------------------------------------


@schedules.command("list")
@json_option
@click.pass_obj
def list_schedules(given: ConnectionOptions, as_json: bool) -> None:
    """List schedules by name, with their next and last occurrence."""

    def read(app: Aft) -> tuple[list[_Listed], str]:
        with app.store.read() as connection:
            found = [(row, _status(connection, row)) for row in table.listing(connection, app.namespace)]
        return found, (
            f"No schedules in namespace {app.namespace!r} of {app.store.url!r}. "
            "Make one with `aft schedules add NAME MODULE:FLOW --cron '0 3 * * *'`, or app.schedule(…) in code."
        )

    print_listing(
        given,
        read,
        as_json=as_json,
        document=lambda one: documents.schedule(*one),
        table=_print,
        nothing="No schedules",
    )


def _status(connection: Connection, row: ScheduleRow) -> Status | None:
    try:
        return None if row.last_run_id is None else run_rows.get_run(connection, row.namespace, row.last_run_id).status
    except UnknownRun:
        return None  # long ended, and pruned


def _print(found: list[_Listed]) -> None:
    columns = [
        Column("SCHEDULE"),
        Column("FLOW", flexible=True),
        Column("WHEN"),
        Column("NEXT UTC"),
        Column("NEXT IN ITS ZONE"),
        Column("LAST UTC"),
        Column("LAST IN ITS ZONE"),
        Column("LAST RUN"),
        Column("STATUS"),
        Column("DETAIL", flexible=True),
    ]
    print_table(columns, [_cells(row, status) for row, status in found])
    _warn_of_broken([row for row, _ in found])


def _cells(row: ScheduleRow, status: Status | None) -> list[str | Text]:
    stopped = "broken" if row.broken is not None else "paused" if row.paused else ""
    return [
        row.name,
        row.flow if row.version is None else f"{row.flow}@{row.version}",
        _when(row),
        stopped or moment(row.next_at) or "never",
        "" if stopped else _local(row, row.next_at),
        moment(row.last_at),
        _local(row, row.last_at),
        "" if row.last_run_id is None else short_id(row.last_run_id),
        "" if status is None else Text(status.value, status_style(status)),
        _detail(row),
    ]


def _when(row: ScheduleRow) -> str:
    try:
        return str(row.timing)
    except DefinitionError:
        return "?"


def _local(row: ScheduleRow, at: datetime | None) -> str:
    """Format a time in the schedule's zone; empty if its row cannot be read."""
    try:
        return "" if at is None else f"{row.calendar().local(at):%Y-%m-%d %H:%M:%S %Z}"
    except DefinitionError:
        return ""


def _detail(row: ScheduleRow) -> str:
    """Return the most important fact about a schedule, for a listing."""
    if row.broken is not None:
        return row.broken
    if row.skipped_at is not None and (row.last_at is None or row.skipped_at > row.last_at):
        return f"skipped {exactly(row.skipped_at)}: {row.skipped_why}"
    return ""


def _warn_of_broken(found: list[ScheduleRow]) -> None:
    for row in found:
        if row.broken is not None:
            print_message(
                f"Schedule {row.name!r} is broken; declare it again to continue it: `aft schedules add --replace …`."
            )


# Declaring ------------------------------------------------------------------------------------------------------


_TIMING = (
    click.option("--cron", metavar="LINE", help="Five fields, quoted: '0 3 * * *'."),
    click.option("--every", metavar="DURATION", help="An interval instead: 15m, 6h."),
    click.option("--zone", default="UTC", show_default=True, metavar="ZONE", help="The time zone of the cron line."),
    click.option(
        "--catch-up",
        type=click.Choice(POLICIES),
        default="skip",
        show_default=True,
        help="What to do about occurrences for which no dispatcher was alive.",
    ),
    click.option("--overlap", is_flag=True, help="Make a run though the last one has not ended."),
)


def timing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a schedule's times to a command; it gets them as ``timing``, for ``new_schedule``."""

    @functools.wraps(command)
    def collected(*args: Any, **given: Any) -> Any:
        timing = {name: given.pop(name) for name in ("cron", "every", "zone", "catch_up", "overlap")}
        return command(*args, timing=timing, **given)

    made: Callable[..., Any] = collected
    for option in reversed(_TIMING):
        made = option(made)
    return made


@schedules.command(cls=NumericArguments)
@click.argument("name")
@click.argument("target", metavar="MODULE:FLOW")
@click.argument("words", nargs=-1, metavar="[ARGUMENT]...")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE", help="The module of FLOW.")
@timing_options
@run_options
@click.option("--replace", is_flag=True, help="Replace the schedule of that name.")
@click.pass_obj
def add(
    given: ConnectionOptions,
    name: str,
    target: str,
    words: tuple[str, ...],
    modules: tuple[str, ...],
    replace: bool,
    timing: dict[str, Any],
    run_options: dict[str, Any],
) -> None:
    """Run a flow at certain times.

    An ARGUMENT is a JSON value, or a plain text if it is not JSON, or NAME=VALUE. FLOW is run in its newest version, or
    in the one that FLOW@VERSION names. The options of a run apply to each of the schedule's.

    \b
      aft schedules add nightly shop:close_day vienna --cron '0 3 * * *' --zone Europe/Vienna
      aft schedules add poll shop:poll --every 15m --catch-up one
    """
    if (timing["cron"] is None) == (timing["every"] is None):
        raise click.UsageError("say when: either --cron '0 3 * * *' or --every 15m")
    if ":" not in target and not modules:
        raise click.UsageError(f"which module holds flow {target!r}? Write MODULE:{target}, or add -m MODULE")
    flow, loaded = find_flow(target, modules)
    args, kwargs = read_arguments(flow, words)
    with opened(given, loaded) as app:
        call, pinned = flow.options(**run_options).call(*args, **kwargs), "@" in target.rpartition(":")[2]
        new = new_schedule(app.namespace, name, call, **timing, pinned=pinned)
        app.check()
        with app.store.write() as connection:
            changed = table.declare(connection, new, current_user(), replace=replace)
        row = app.schedule(name).row
        print_message(
            f"Schedule {name!r} {'is' if changed else 'was there already, just like this; it is'} {_standing(row)}."
        )
        _warn_if_nobody_fires(app)


def _standing(row: ScheduleRow) -> str:
    if row.paused:
        return "paused"
    local = _local(row, row.next_at)
    return f"due next at {exactly(row.next_at)}" + ("" if row.zone == "UTC" else f", {local} in {row.zone}")


def _warn_if_nobody_fires(app: Aft) -> None:
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("sweep" in worker.roles for worker in workers):
        print_to_stderr("note: no live dispatcher fires schedules; start one with `aft dispatcher MODULE`")


# By hand --------------------------------------------------------------------------------------------------------


@contextmanager
def _named(given: ConnectionOptions, name: str) -> Iterator[tuple[Aft, Schedule]]:
    with open_for_reading(given) as app:
        yield app, app.schedule(name)


@schedules.command()
@click.argument("name")
@click.pass_obj
def pause(given: ConnectionOptions, name: str) -> None:
    """Stop firing a schedule until it is resumed."""
    with _named(given, name) as (_, schedule):
        schedule.pause()
        print_message(f"Schedule {name!r} is paused; `aft schedules resume {name}` continues it.")


@schedules.command()
@click.argument("name")
@click.pass_obj
def resume(given: ConnectionOptions, name: str) -> None:
    """Fire a schedule again, from its next occurrence on.

    Occurrences during the pause are not made up for.
    """
    with _named(given, name) as (app, schedule):
        schedule.resume()
        print_message(f"Schedule {name!r} is {_standing(schedule.row)}.")
        _warn_if_nobody_fires(app)


@schedules.command()
@click.argument("name")
@click.pass_obj
def remove(given: ConnectionOptions, name: str) -> None:
    """Remove a schedule; its runs stay, and go on."""
    with _named(given, name) as (_, schedule):
        schedule.remove()
        print_message(f"Schedule {name!r} was removed; code that declares it makes it again when it starts.")


@schedules.command()
@click.argument("name")
@click.pass_obj
def now(given: ConnectionOptions, name: str) -> None:
    """Make a run of a schedule at once, and print its id.

    Its occurrences are not changed.
    """
    with _named(given, name) as (_, schedule):
        run = schedule.run_now()
        click.echo(run.id)
        print_message(f"`aft runs show {short_id(run.id)}` shows its state.")
