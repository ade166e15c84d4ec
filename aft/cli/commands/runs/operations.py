"""``aft operations``: lists, shows and steers operations, which give one order to many runs."""

from __future__ import annotations

from typing import Any

import click

from aft.app import Aft, Operation
from aft.app.operations import RunOutcome
from aft.cli.application import open_for_reading
from aft.cli.commands.runs.many import describe_counts, follow
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show import documents
from aft.cli.show.lists import print_listing
from aft.cli.show.output import (
    Column,
    exactly,
    json_option,
    moment,
    print_fields,
    print_json,
    print_message,
    print_table,
    short_id,
)
from aft.runs.operations.operation_rows import OperationRow, OutcomeState

STATES = [state.value for state in OutcomeState]


@click.group(cls=Noun)
def operations() -> None:
    """List, show and steer operations: one order to many runs.

    `aft runs retry --where WORDS`, and the other verbs of `aft runs`, make them. OPERATION is an id, or an unambiguous
    beginning or end of one.
    """


@operations.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many to list.")
@json_option
@click.pass_obj
def list_operations(given: ConnectionOptions, limit: int, as_json: bool) -> None:
    """List operations, newest first."""

    def read(app: Aft) -> tuple[list[tuple[OperationRow, dict[OutcomeState, int]]], str]:
        found = [(one.row, one.counts) for one in app.operations.list(limit=limit)]
        hint = "`aft runs retry --where WORDS` makes one."
        return found, f"No operations in namespace {app.namespace!r}. {hint}"

    print_listing(
        given,
        read,
        as_json=as_json,
        document=lambda one: documents.operation(*one),
        table=_print,
        nothing="No operations",
        limit=limit,
    )


def _print(found: list[tuple[OperationRow, dict[OutcomeState, int]]]) -> None:
    columns = [
        Column("OPERATION"),
        Column("STATE"),
        Column("VERB"),
        Column("RUNS", right=True),
        Column("MADE UTC"),
        Column("BY", flexible=True),
        Column("DETAIL", flexible=True),
    ]
    print_table(columns, [_cells(row, counts) for row, counts in found])


def _cells(row: OperationRow, counts: dict[OutcomeState, int]) -> list[str]:
    detail = row.why or describe_counts(counts)
    total, made = f"{row.total:,}", moment(row.made_at)
    return [short_id(row.id), row.state.value, row.verb.value, total, made, row.made_by, detail]


@operations.command()
@click.argument("operation")
@click.option("--state", type=click.Choice(STATES), metavar="STATE", help=f"Only runs that are {', '.join(STATES)}.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many runs to list.")
@click.option("--follow", "following", is_flag=True, help="Show its progress until it ends or stops.")
@json_option
@click.pass_obj
def show(
    given: ConnectionOptions, operation: str, state: str | None, limit: int, following: bool, as_json: bool
) -> None:
    """Show what an operation does, and what came of the order to each run."""
    if following and as_json:
        raise click.UsageError("--follow and --json do not go together; --json shows its present state")
    with open_for_reading(given) as app:
        found = app.operations.get(operation)
        if following:
            follow(found)
            return
        outcomes = found.outcomes(state, limit=limit)
        if as_json:
            runs = [documents.outcome(one) for one in outcomes]
            print_json({**documents.operation(found.row, found.counts), "outcomes": runs})
            return
        _print_operation(found)
        _print_outcomes(outcomes)


def _print_operation(operation: Operation) -> None:
    row = operation.row
    rate = "" if row.rate is None else f", {row.rate:g} a second"
    print_fields(
        {
            "operation": row.id,
            "state": row.state.value + (f": {row.why}" if row.why else ""),
            "verb": row.verb.value,
            "runs": f"{row.total:,}: {describe_counts(operation.counts)}",
            "where": row.wanted,
            "how": f"batch {row.batch}, of {row.batch_size}; stops when more than {row.brake:.0%} fail again{rate}",
            "made": f"{exactly(row.made_at)} by {row.made_by}",
            "changed by": "" if row.changed_by == row.made_by else row.changed_by,
            "ended": exactly(row.ended_at) if row.ended_at else "",
            "note": row.note or "",
        }
    )


def _print_outcomes(found: list[RunOutcome]) -> None:
    columns = [Column("RUN"), Column("OUTCOME"), Column("BATCH", right=True), Column("DETAIL", flexible=True)]
    cells = [[short_id(one.run.id), one.state.value, str(one.batch or ""), one.note or ""] for one in found]
    print_table(columns, cells)


@operations.command()
@click.argument("operation")
@click.pass_obj
def pause(given: ConnectionOptions, operation: str) -> None:
    """Give no more orders, until it is resumed."""
    _steer(given, operation, Operation.pause, "is paused; `aft operations resume {id}` continues it.")


@operations.command()
@click.argument("operation")
@click.pass_obj
def resume(given: ConnectionOptions, operation: str) -> None:
    """Go on with one that is paused, or has stopped by itself: then with one run again."""
    _steer(given, operation, Operation.resume, "goes on.")


@operations.command()
@click.argument("operation")
@click.pass_obj
def cancel(given: ConnectionOptions, operation: str) -> None:
    """End an operation: runs that have no order yet get none."""
    _steer(given, operation, Operation.cancel, "is cancelled; orders that were given stand.")


def _steer(given: ConnectionOptions, operation: str, order: Any, what: str) -> None:
    with open_for_reading(given) as app:
        found: Operation = app.operations.get(operation)
        order(found)
        print_message(f"Operation {found.id} {what.format(id=short_id(found.id))}")
