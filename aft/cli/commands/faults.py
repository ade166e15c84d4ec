"""``aft faults``: faults, what was decided about them, and messages that were refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click
from sqlalchemy import Connection

from aft import durations
from aft.app import Aft
from aft.app.actors import current_user
from aft.app.views import health
from aft.app.views.exlet_reports import format_progress, format_rule, format_ruling, plans_of, taught
from aft.cli.application import open_for_reading
from aft.cli.errors import Failure, print_to_stderr, printable
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show import documents
from aft.cli.show.lists import print_listing
from aft.cli.show.output import (
    Column,
    exactly,
    format_trend,
    json_option,
    moment,
    print_fields,
    print_json,
    print_message,
    print_table,
    short_id,
    shorten,
)
from aft.errors import UnknownRun
from aft.fault import Fault, FaultState
from aft.recovery.levels import Ladder
from aft.rules.exlets.plans import Plan
from aft.runs import run_rows
from aft.runs.find.read_groups import FailureGroup
from aft.runs.records import faults as fault_rows
from aft.runs.records import quarantine
from aft.runs.records.quarantine import QuarantineState, Refusal

STATES = [state.value for state in FaultState]
#: Characters of a refused message that are shown to a person.
MOST_SHOWN = 1_000


@click.group(cls=Noun)
def faults() -> None:
    """List faults; release or discard refused messages."""


# Looking --------------------------------------------------------------------------------------------------------


@faults.command("list")
@click.option("--state", type=click.Choice(STATES), metavar="STATE", help=f"One of {', '.join(STATES)}.")
@click.option("--quarantined", is_flag=True, help="Refused messages instead: those still in quarantine.")
@click.option("--all", "closed", is_flag=True, help="With --quarantined: also those released or discarded since.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many to list.")
@json_option
@click.pass_obj
def list_faults(
    given: ConnectionOptions, state: str | None, quarantined: bool, closed: bool, limit: int, as_json: bool
) -> None:
    """List faults, newest first."""
    if quarantined and state:
        raise click.UsageError("--quarantined lists messages, which have no --state; --all adds those dealt with")
    if closed and not quarantined:
        raise click.UsageError("--all goes with --quarantined; faults are listed in every state anyway")
    if quarantined:
        _list_refused(given, limit, closed, as_json)
        return

    def read(app: Aft) -> tuple[list[Fault], str]:
        none = f"No faults{f' that are {state}' if state else ''} in namespace {app.namespace!r}."
        return app.faults(state=state, limit=limit), none

    print_listing(
        given, read, as_json=as_json, document=documents.fault, table=_print, nothing="No faults", limit=limit
    )


def _print(found: list[Fault]) -> None:
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


@faults.command()
@click.option("--since", metavar="DURATION", default="7d", show_default=True, help="How far back.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to list.")
@json_option
@click.pass_obj
def groups(given: ConnectionOptions, since: str, limit: int, as_json: bool) -> None:
    """List groups of faults that have one cause, largest first.

    `aft runs list --where group:GROUP` shows the runs of one.
    """

    def read(app: Aft) -> tuple[list[FailureGroup], str]:
        none = f"No faults in the last {since} in namespace {app.namespace!r}."
        return app.failure_groups(since=since, limit=limit), none

    print_listing(
        given, read, as_json=as_json, document=documents.failure_group, table=_print_groups, nothing="No faults"
    )


def _print_groups(found: list[FailureGroup]) -> None:
    print_table(
        [
            Column("GROUP"),
            Column("FAULTS", right=True),
            Column("RUNS", right=True),
            Column("FIRST UTC"),
            Column("LAST UTC"),
            Column("TREND"),
            Column("STEP", flexible=True),
            Column("EXAMPLE", flexible=True),
        ],
        [
            [
                one.id,
                f"{one.count:,}",
                f"{one.runs:,}",
                moment(one.first_at),
                moment(one.last_at),
                format_trend(one.trend),
                one.example.name,
                str(one.example),
            ]
            for one in found
        ],
    )


def _list_refused(given: ConnectionOptions, limit: int, closed: bool, as_json: bool) -> None:
    def read(app: Aft) -> tuple[list[Refusal], str]:
        which = "was refused" if closed else "is held"
        hint = "" if closed else " --all shows those that were released or discarded."
        with app.store.read() as connection:
            found = quarantine.listing(connection, app.namespace, limit, closed=closed)
        return found, f"No message {which} in namespace {app.namespace!r}.{hint}"

    print_listing(
        given,
        read,
        as_json=as_json,
        document=documents.refusal,
        table=_print_refused,
        nothing="No faults",
        limit=limit,
    )


def _print_refused(found: list[Refusal]) -> None:
    print_table(
        [
            Column("MESSAGE"),
            Column("STATE"),
            Column("QUEUE", flexible=True),
            Column("AT UTC"),
            Column("BYTES", right=True),
            Column("REASON", flexible=True),
        ],
        [[short_id(one.id), one.state.value, one.queue, moment(one.at), str(one.size), one.reason] for one in found],
    )


@faults.command()
@click.argument("fault")
@json_option
@click.pass_obj
def show(given: ConnectionOptions, fault: str, as_json: bool) -> None:
    """Show all about one fault, or one refused message.

    FAULT is its id, or an unambiguous part of it; or a run's, for what it is parked for, or its latest fault.
    """
    with open_for_reading(given) as app:
        app.check()
        found = find_fault(app, fault)
        if isinstance(found, Refusal):
            if as_json:
                print_json(documents.refusal(found))
            else:
                _show_refused(app, found)
            return
        with app.store.read() as connection:
            plan = plans_of(connection, found.run_id).get(found.id)
            others = len(fault_rows.of_run(connection, found.run_id)) - 1
        if as_json:
            print_json({**documents.fault(found), "plan": None if plan is None else documents.plan(plan)})
        else:
            _show(found, plan)
            if others:
                more = "has another fault" if others == 1 else f"has {others} other faults"
                print_message(f"\nThe run {more}: `aft runs show {short_id(found.run_id)}` shows its story.")


def find_fault(app: Aft, part: str) -> Fault | Refusal:
    """Return the fault or refused message with this part of an id; for a run, what it is parked for or its latest."""
    with app.store.read() as connection:
        found = fault_rows.find_fault(connection, app.namespace, part) or quarantine.search(
            connection, app.namespace, part
        )
        if found is not None:
            return found
        try:
            run = run_rows.find_run(connection, app.namespace, part)
        except UnknownRun:
            raise Failure(
                f"no fault, no refused message and no run has the id {part!r} in namespace {app.namespace!r}; "
                "`aft faults list` shows what there is, with --quarantined what was refused"
            ) from None
        of_run = fault_rows.of_run(connection, run.id)
    if not of_run:
        raise Failure(f"run {run.id} of flow {run.flow!r} has no fault; it is {run.status.value}")
    return next((one for one in reversed(of_run) if one.state is FaultState.PARKED), of_run[-1])


def _show(one: Fault, plan: Plan | None) -> None:
    print_fields(_fields(one) | _handling(one, plan))
    if one.traceback:
        click.echo(f"\n{printable(one.traceback).rstrip()}")
    if one.decision is not None:
        print_message(f"\n`aft rules explain {short_id(one.id)}` shows which rules were asked.")


def _show_refused(app: Aft, one: Refusal) -> None:
    with app.store.read() as connection:
        objection = quarantine.objection(connection, app.namespace, one)
    print_fields(
        {
            "message": one.id,
            "queue": one.queue,
            "refused": exactly(one.at),
            "reason": one.reason,
            "bytes": str(one.size),
            "state": one.state.value,
            "by": one.settled_by or "",
            "at": exactly(one.settled_at),
            "note": one.note or "",
        }
    )
    click.echo(f"\n{shorten(one.body.decode(errors='backslashreplace'), MOST_SHOWN)}")
    if one.state is QuarantineState.HELD:
        short = short_id(one.id)
        now = f"It cannot be released yet: {objection}." if objection else "It can be released now."
        print_message(f"\n{printable(now)}")
        print_message(f"After the fix: `aft faults release {short}`; or `aft faults discard {short} --note WHY`.")


def _fields(one: Fault) -> dict[str, str]:
    return {
        "fault": one.id,
        "run": one.run_id,
        "step": f"{one.name} ({one.kind.value}{f', path {one.path}' if one.path else ''})",
        "what": str(one),
        "type": one.type,
        "resource": one.resource or "",
        "state": one.state.value,
        "why": one.why or "",
        "failures": "" if one.attempt == 0 else f"{one.attempt} of this step so far, this one included",
        "ladder": _format(documents.ladder(one)),
        "position": _position(one),
        "own answer": "" if one.own_answer is None else f"{one.own_answer.value}, by the exception itself",
        "declared": "" if one.declared_answer is None else f"{one.declared_answer.value}, by its activity",
        "status": "" if one.http_status is None else f"HTTP {one.http_status}",
        "retry after": "" if one.after is None else durations.format(one.after),
        "raised": exactly(one.raised_at),
        "decided": exactly(one.decided_at),
        "due": exactly(one.due_at),
        "settled": exactly(one.settled_at),
    }


def _handling(one: Fault, plan: Plan | None) -> dict[str, str]:
    """Return which rule has chosen which exlet, how far that is, and what was decided about the step."""
    decision = taught(one)
    if decision is None:
        return {}
    return {
        "rule": f"{format_rule(decision)}: {decision.condition}",
        "exlet": decision.exlet if plan is None else f"{decision.exlet}: {format_progress(plan)}",
        "ruling": format_ruling(one),
        "warnings": "; ".join(dict.fromkeys(decision.warnings)),
    }


def _format(ladder: Ladder) -> str:
    return str(ladder)


def _position(one: Fault) -> str:
    if one.level is None:
        return ""
    wait = "" if one.wait is None else f", after {durations.format(one.wait)}"
    return f"level {one.level}, try {one.try_in_level}{wait}"


# By hand --------------------------------------------------------------------------------------------------------


@faults.command()
@click.argument("message")
@click.option("--note", metavar="TEXT", help="What was fixed; kept with the message.")
@click.pass_obj
def release(given: ConnectionOptions, message: str, note: str | None) -> None:
    """Release a refused message after a fix.

    MESSAGE is its id, or an unambiguous part of it. It is published to its queue, once.
    """
    with open_for_reading(given) as app:
        found = _release_or_discard(app, message, partial(quarantine.requeue, by=current_user(), note=note))
        print_message(f"Message {found.id} was released; it goes to queue {found.queue!r} as soon as a relay takes it.")
        _warn_if_nobody_relays(app)


@faults.command()
@click.argument("message")
@click.option("--note", required=True, metavar="TEXT", help="Why; kept with the message.")
@click.pass_obj
def discard(given: ConnectionOptions, message: str, note: str) -> None:
    """Discard a refused message, for good.

    MESSAGE is its id, or an unambiguous part of it. Nothing is sent; who and why stay on record.
    """
    with open_for_reading(given) as app:
        found = _release_or_discard(app, message, partial(quarantine.discard, by=current_user(), note=note))
        print_message(f"Message {found.id} was discarded; `aft faults list --quarantined --all` still shows it.")


def _release_or_discard(app: Aft, part: str, close: Callable[[Connection, str, Refusal], None]) -> Refusal:
    app.check()
    with app.store.write() as connection:
        found = quarantine.find_refusal(connection, app.namespace, part)
        close(connection, app.namespace, found)
    return found


def _warn_if_nobody_relays(app: Aft) -> None:
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("relay" in worker.roles for worker in workers):
        print_to_stderr("note: no live dispatcher relays messages; start one with `aft dispatcher MODULE`")
