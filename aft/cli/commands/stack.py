"""``aft stack``: the compensation stack of a run, the top first."""

from __future__ import annotations

import click

from aft.cli.application import open_for_reading
from aft.cli.options import ConnectionOptions
from aft.cli.show import documents
from aft.cli.show.output import (
    Column,
    format_data,
    json_option,
    print_json,
    print_message,
    print_table,
    short_id,
    shorten,
)
from aft.codec import stored_to_json
from aft.compensation import stack as frames
from aft.compensation.stack import PENDING, Frame

#: Characters of arguments and of a note in the table.
MOST_VALUE = 200


@click.command()
@click.argument("run")
@json_option
@click.pass_obj
def stack(given: ConnectionOptions, run: str, as_json: bool) -> None:
    """Show a run's compensation stack, the top first.

    RUN is an id, or an unambiguous beginning or end of one.
    """
    with open_for_reading(given) as app:
        found = app.run(run)
        row = found.row
        with app.store.read() as connection:
            owed = frames.of_run(connection, found.id)
    if as_json:
        print_json(
            {
                "run": row.id,
                "flow": row.flow,
                "version": row.version,
                "status": row.status.value,
                "frames": [documents.frame(one) for one in owed],
            }
        )
        return
    pending = sum(one.state in PENDING for one in owed)
    owes = f"{pending} of {len(owed)} frames owed" if owed else "there is nothing to undo"
    print_message(f"Run {row.id} of {row.flow}@{row.version} is {row.status.value}; {owes}.")
    if owed:
        _print(owed)


def _print(owed: list[Frame]) -> None:
    columns = [
        Column("STATE"),
        Column("ACTIVITY", flexible=True),
        Column("COMPENSATOR", flexible=True),
        Column("ARGUMENTS", flexible=True),
        Column("RESULT", flexible=True),
    ]
    noted = any(one.note for one in owed)
    if noted:
        columns.append(Column("NOTE", flexible=True))
    print_table(columns, [_cells(one)[: len(columns)] for one in owed])


def _cells(one: Frame) -> list[str]:
    return [
        one.state.value,
        one.activity,
        one.compensator if one.child_id is None else f"child {short_id(one.child_id)}",
        _format(one.args, ""),
        _format(one.value, "unknown"),
        shorten(one.note or "", MOST_VALUE),
    ]


def _format(stored: str | None, missing: str) -> str:
    return missing if stored is None else format_data(stored_to_json(stored), MOST_VALUE)
