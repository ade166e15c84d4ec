"""``aft runs compensate``: undoes everything a run did, or previews that."""

from __future__ import annotations

import click

from aft.app.views.undo_preview import Undo
from aft.cli.application import open_for_reading
from aft.cli.commands.runs.many import ManyRuns, order_many, run_or_many
from aft.cli.options import ConnectionOptions
from aft.cli.show import documents
from aft.cli.show.advice import warn_if_nobody_works
from aft.cli.show.output import Column, format_data, json_option, print_json, print_message, print_table, short_id
from aft.codec import value_to_json
from aft.runs.operations.operation_rows import Verb
from aft.runs.orders import steer
from aft.runs.run_rows import RunRow
from aft.runs.states import Status

#: Characters of arguments in a table.
MOST_VALUE = 80


@click.command()
@run_or_many
@click.option("--dry-run", is_flag=True, help="Only show what would be undone, in order, and what could not be.")
@click.option("--to", metavar="SAVEPOINT", help="Only what it did since this savepoint, which it is in.")
@click.option("--note", metavar="TEXT", help="Why; kept in the run's story.")
@json_option
@click.pass_obj
def compensate(
    given: ConnectionOptions,
    run: str | None,
    many: ManyRuns | None,
    dry_run: bool,
    to: str | None,
    note: str | None,
    as_json: bool,
) -> None:
    """Undo everything a run did, also if it has completed.

    One that has not ended is cancelled: it stops where it is, also if it waits or is parked, and ends `compensated`.
    Its children are undone at their place in its stack.
    """
    if many is not None:
        if dry_run or to or as_json:
            raise click.UsageError("--dry-run, --to and --json go with one RUN; --preview shows many")
        order_many(given, None, Verb.COMPENSATE, many, lambda desk: desk.compensate(many.where, note=note, **many.how))
        return
    with open_for_reading(given) as app:
        found = app.run(str(run))
        undos = found.compensate(dry_run=dry_run, to=to, note=note)
        if as_json:
            print_json([documents.undo(undo) for undo in undos])
        elif undos:
            _print(undos)
        if dry_run:
            _print_preview(found.row, undos, whole=to is None)
        else:
            row = found.row
            suspended = to is not None and row.status is Status.SUSPENDED and row.wake_id is None
            print_message(
                f"Run {found.id} is undone as soon as {'it is resumed' if suspended else 'a worker takes it'}."
            )
            warn_if_nobody_works(app, row)


def _print_preview(row: RunRow, undos: list[Undo], *, whole: bool) -> None:
    """Print how much would be undone, and by which command."""
    count = sum(undo.obstacle is None for undo in undos)
    if steer.is_being_undone(row):
        parked = row.status is Status.PARKED and row.wake_id is None
        how = f"; it is parked, `aft runs retry {short_id(row.id)}` goes on" if parked else ""
        print_message(f"Run {row.id} is being undone already{how}. {count} more would be undone, in this order.")
    elif whole and (objection := steer.find_objection(row)) is not None:
        print_message(f"Nothing would be undone: {objection}.")
    else:
        print_message(f"{count} would be undone, in this order. Nothing was undone; leave out --dry-run to undo it.")


def _print(undos: list[Undo]) -> None:
    columns = [
        Column("RUN"),
        Column("STEP"),
        Column("ACTIVITY", flexible=True),
        Column("UNDONE BY", flexible=True),
        Column("ARGUMENTS", flexible=True),
    ]
    print_table(
        columns,
        [
            [
                short_id(undo.run_id),
                undo.path,
                undo.activity,
                undo.obstacle or undo.compensator or "",
                format_data(value_to_json(undo.arguments), MOST_VALUE),
            ]
            for undo in undos
        ],
    )
