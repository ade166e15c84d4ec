"""``aft runs compensate``: undo everything a run did, or tell what that would be."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from aft.app.undoing import Undo
from aft.cli.advice import tell_if_nobody_works
from aft.cli.given import Given
from aft.cli.opening import looking
from aft.cli.output import Column, json_option, print_json, print_table, say, short_id, shorten

#: Characters of arguments in a table.
MOST_VALUE = 80


@click.command()
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Only tell what would be undone, in order, and what could not be.")
@click.option("--to", metavar="SAVEPOINT", help="Only what it did since this savepoint, which it is in.")
@click.option("--note", metavar="TEXT", help="Why; kept in the run's story.")
@json_option
@click.pass_obj
def compensate(given: Given, run: str, dry_run: bool, to: str | None, note: str | None, as_json: bool) -> None:
    """Undo everything a run did, though it has completed.

    One that has not ended is cancelled. Its children are undone where they lie in its stack.
    """
    with looking(given) as app:
        found = app.run(run)
        undos = found.compensate(dry_run=dry_run, to=to, note=note)
        if as_json:
            print_json([asdict(undo) for undo in undos])
        elif undos:
            _print(undos)
        if dry_run:
            count = sum(undo.obstacle is None for undo in undos)
            say(f"{count} would be undone, in this order; nothing was. Without --dry-run it is.")
        else:
            say(f"Run {found.id} is undone as soon as a worker takes it.")
            tell_if_nobody_works(app, found.row)


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
                shorten(json.dumps(undo.arguments, default=str, ensure_ascii=False), MOST_VALUE),
            ]
            for undo in undos
        ],
    )
