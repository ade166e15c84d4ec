"""``aft runs forget``: erases the data of runs; that they ran stays recorded."""

from __future__ import annotations

import click
from sqlalchemy import select

from aft.app import Aft
from aft.cli.application import open_for_reading
from aft.cli.errors import Failure
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import confirm, print_message
from aft.store.tables import runs


@click.command()
@click.argument("run", required=False)
@click.option("--key", metavar="KEY", help="Instead of RUN: the runs that were submitted with this key.")
@click.option("--flow", metavar="NAME", help="With --key: of this flow only.")
@click.option("--note", metavar="TEXT", help="Why; kept in the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def forget(
    given: ConnectionOptions, run: str | None, key: str | None, flow: str | None, note: str | None, yes: bool
) -> None:
    """Erase arguments, results, tags, signals and texts of failures of a run and of all below it.

    They must have ended. A record of them stays: ids, flows, keys, steps, states, times, and who did what by hand.
    Nothing of them can be undone after that.
    """
    if (run is None) == (key is None):
        raise click.UsageError("name a run, or give --key; one of the two")
    if flow is not None and key is None:
        raise click.UsageError("--flow goes with --key")
    with open_for_reading(given) as app:
        found = [app.run(run).id] if run is not None else _find(app, str(key), flow)
        confirm(f"{', '.join(found)}: what {'it' if len(found) == 1 else 'they'} held is erased for good", yes)
        erased = [one for each in found for one in app.run(each).forget(note=note)]
    print_message(f"{len(erased)} {'run' if len(erased) == 1 else 'runs'} forgotten.")


def _find(app: Aft, key: str, flow: str | None) -> list[str]:
    statement = select(runs.c.id).where(runs.c.namespace == app.namespace, runs.c.key == key)
    if flow is not None:
        statement = statement.where(runs.c.flow == flow)
    with app.store.read() as connection:
        found = [str(id) for id in connection.execute(statement.order_by(runs.c.id)).scalars()]
    if not found:
        of = "" if flow is None else f" of flow {flow!r}"
        raise Failure(f"no run{of} was submitted with the key {key!r} in namespace {app.namespace!r}")
    return found
