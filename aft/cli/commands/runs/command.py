"""``aft runs``: lists runs and shows the story of one. Verbs that start and steer runs have modules of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import click
from rich.text import Text
from sqlalchemy import Connection

from aft import durations
from aft.app import Aft
from aft.app.run_filter import Wanted, run_filter
from aft.app.views import story
from aft.app.views.exlet_reports import format_progress, plans_of
from aft.cli.application import NoDatabase, open_for_reading
from aft.cli.commands.runs.compensate import compensate
from aft.cli.commands.runs.failed_steps import force_complete, force_fail, retry
from aft.cli.commands.runs.follow import follow
from aft.cli.commands.runs.forget import forget
from aft.cli.commands.runs.signal import signal
from aft.cli.commands.runs.start import start
from aft.cli.commands.runs.steer import cancel, frame_done, release, resume, skip_frame, suspend
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show import documents
from aft.cli.show.advice import advise, begins_later
from aft.cli.show.draw import draw_story
from aft.cli.show.lists import print_listing
from aft.cli.show.output import (
    Column,
    console,
    json_option,
    moment,
    print_json,
    print_message,
    print_table,
    short_id,
    shorten,
)
from aft.cli.show.styles import status_style
from aft.cli.show.waits import format_waits
from aft.codec import stored_to_text
from aft.rules.exlets.plans import PlanState
from aft.runs import run_rows
from aft.runs.find import find_runs
from aft.runs.records import faults, inbox
from aft.runs.run_rows import RunRow
from aft.runs.states import Status

STATUSES = [status.value for status in Status]
#: Characters of a value in a table.
MOST_VALUE = 200


@click.group(cls=Noun)
def runs() -> None:
    """Start, list, show and steer runs.

    RUN is an id, or an unambiguous beginning or end of one.
    """


# Looking --------------------------------------------------------------------------------------------------------


@runs.command("list")
@click.option("--status", type=click.Choice(STATUSES), metavar="STATUS", help=f"One of {', '.join(STATUSES)}.")
@click.option("--flow", metavar="NAME", help="Runs of this flow only.")
@click.option("--owner", metavar="NAME", help="Runs of this owner only.")
@click.option("--resource", metavar="NAME", help="Runs that need this only.")
@click.option("--priority", type=int, metavar="N", help="Runs of this priority and above only.")
@click.option("--overdue", is_flag=True, help="Only runs that should have ended by now.")
@click.option("--where", metavar="WORDS", help="Runs of which all words are true: 'status:parked tag:region=eu'.")
@click.option("--count", "counted", is_flag=True, help="Print only how many there are.")
@click.option("--before", metavar="RUN", help="The next page: runs that are older than this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many to list.")
@json_option
@click.pass_obj
def list_runs(
    given: ConnectionOptions, /, counted: bool, before: str | None, limit: int, as_json: bool, **wanted: Any
) -> None:
    """List runs, newest first.

    \b
    The words of --where, all of which have to be true of a run:
      status:parked,failed      key:order-7  key:order-*     since:2d  until:2026-11-19T08:00
      flow:buy  flow:buy@2      tag:region=eu                reason:'a part of why it is parked'
      owner:ads                 resource:payments            activity:charge  fault:TimeoutError
      priority:5 (and above)    overdue:yes                  group:5f0c9a31d2b7  text:'a part of the message'
    """
    where, described = wanted.pop("where"), str(run_filter(None, cast(Wanted, wanted), datetime.now(UTC)))
    if counted:
        _count(given, as_json, where, cast(Wanted, wanted))
        return

    def read(app: Aft) -> tuple[list[tuple[RunRow, str]], str]:
        asked = run_filter(where, cast(Wanted, wanted), app.clock.now())
        with app.store.read() as connection:
            older = None if before is None else run_rows.find_run(connection, app.namespace, before).id
            found = find_runs.find(connection, app.namespace, asked, limit=limit, before=older)
            rows = [(row, _about(connection, row)) for row in found]
        hint = " Start one with `aft runs start MODULE:FLOW`, or app.start(flow, …) in code."
        which = f"{asked}{' before that one' if older else ''}"
        none = f"No runs{which} in namespace {app.namespace!r} of {app.store.url!r}.{'' if which else hint}"
        return rows, none

    print_listing(
        given,
        read,
        as_json=as_json,
        document=lambda one: documents.run(one[0]),
        table=_print_runs,
        nothing=f"No runs{described}",
        limit=limit,
    )


def _count(given: ConnectionOptions, as_json: bool, where: str | None, wanted: Wanted) -> None:
    try:
        with open_for_reading(given) as app:
            found = app.count_runs(where, **wanted)
    except NoDatabase:
        found = 0
    more = " or more" if found == find_runs.MOST_COUNTED else ""
    if as_json:
        print_json({"count": found, "exact": not more})
    else:
        print_message(f"{found:,}{more}")


def _print_runs(found: list[tuple[RunRow, str]]) -> None:
    """Print a table; with owner, priority and expected time only if any run has them."""
    owned = any(row.owner for row, _ in found)
    urgent = any(row.priority for row, _ in found)
    expected = any(row.expected for row, _ in found)
    columns = [
        Column("RUN"),
        Column("STATUS"),
        Column("FLOW", flexible=True),
        *([Column("OWNER", flexible=True)] if owned else []),
        *([Column("PRIORITY", right=True)] if urgent else []),
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
                *([str(row.priority)] if urgent else []),
                moment(row.created_at),
                *([durations.format(row.expected) if row.expected else ""] if expected else []),
                about,
            ]
            for row, about in found
        ],
    )


def _about(connection: Connection, row: RunRow) -> str:
    """Return the most important fact about a run, for a listing."""
    if row.reason:
        return shorten(row.reason, MOST_VALUE)
    if row.status is Status.COMPLETED:
        return shorten(f"→ {stored_to_text(row.result)}", MOST_VALUE)
    if row.fault_id is not None:
        fault = faults.get_fault(connection, row.namespace, row.fault_id)
        return "" if fault is None else shorten(f"{fault.name}: {fault}", MOST_VALUE)
    if row.status.ended:
        return {"cancel": "it was cancelled", "order": "it was undone as asked"}.get(row.cause or "", "")
    if row.worker_id is not None:
        return "executing"
    if begins_later(row):
        return f"begins at {moment(row.due_at)}"
    if row.status is Status.RECOVERING and (handled := _handled(connection, row)):
        return shorten(handled, MOST_VALUE)
    if row.waits and row.status in (Status.WAITING, Status.RECOVERING):
        return shorten(f"waits for {format_waits(connection, row)}", MOST_VALUE)
    return (
        f"goes on at {moment(row.due_at)}" if row.due_at and row.status is not Status.RUNNING else "waits for a worker"
    )


def _handled(connection: Connection, row: RunRow) -> str:
    """Return which exlet is being carried out for a run; empty if none is."""
    going = [plan for plan in plans_of(connection, row.id).values() if plan.state is PlanState.OPEN]
    return f"exlet {going[-1].exlet.name}: {format_progress(going[-1])}" if going else ""


@runs.command()
@click.argument("run")
@click.option("--follow", "following", is_flag=True, help="Keep showing it until the run has ended or is parked.")
@click.option(
    "--depth",
    type=click.IntRange(0, 100),
    default=story.DEPTH,
    show_default=True,
    help="Generations of children whose stories are included.",
)
@click.option("--all", "everything", is_flag=True, help="Show each of many calls side by side.")
@json_option
@click.pass_obj
def show(given: ConnectionOptions, run: str, following: bool, depth: int, everything: bool, as_json: bool) -> None:
    """Show a run's story: activities, faults, waits, children, undoing."""
    if following and as_json:
        raise click.UsageError("--follow and --json do not go together; --json shows its present state")
    with open_for_reading(given) as app:
        found = app.run(run)
        if following:
            found_story = follow(app, found.id, depth)
        else:
            with app.store.read() as connection:
                found_story = story.read_story(connection, app.namespace, found.id, depth)
                items = {row.id: inbox.of_run(connection, row.id) for row in found_story.runs} if as_json else {}
            if as_json:
                print_json(documents.story(found_story, items))
                return
            draw_story(console(), found_story, fold=not everything)
        advise(found_story.row, found_story.runs)


_STEERING = (suspend, resume, cancel, compensate, retry, force_complete, force_fail, skip_frame, frame_done, release)
for _verb in (start, signal, *_STEERING, forget):
    runs.add_command(_verb)
