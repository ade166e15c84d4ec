"""``aft workers``: lists live workers, and ends a lease by hand."""

from __future__ import annotations

import click

from aft.app import Aft
from aft.app.actors import current_user
from aft.app.views import health
from aft.app.views.health import WorkerStatus
from aft.cli.application import open_for_reading
from aft.cli.errors import Failure
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show import documents
from aft.cli.show.lists import print_listing
from aft.cli.show.output import Column, json_option, moment, print_message, print_table, short_id
from aft.ids import WorkerId
from aft.runs.orders import by_hand
from aft.runs.orders.actor import Actor


@click.group(cls=Noun)
def workers() -> None:
    """List workers, or end a worker's lease by hand."""


@workers.command("list")
@json_option
@click.pass_obj
def list_workers(given: ConnectionOptions, as_json: bool) -> None:
    """List the workers with a valid lease, oldest first, and show which of them are dead."""

    def read(app: Aft) -> tuple[list[WorkerStatus], str]:
        none = f"No live worker in namespace {app.namespace!r}; start one with `aft dispatcher MODULE`."
        return _seen(app), none

    print_listing(given, read, as_json=as_json, document=documents.worker, table=_print, nothing="No workers")


def _print(found: list[WorkerStatus]) -> None:
    columns = [
        Column("WORKER"),
        Column("HOST", flexible=True),
        Column("PID", right=True),
        Column("RUNS", right=True),
        Column("STATE"),
        Column("STARTED UTC"),
        Column("LEASE UNTIL UTC"),
        Column("ROLES", flexible=True),
    ]
    print_table(
        columns,
        [
            [
                short_id(one.id),
                one.host,
                str(one.pid),
                str(one.runs),
                _state(one),
                moment(one.started_at),
                moment(one.expires_at),
                ", ".join(one.roles) or "only the runs it starts",
            ]
            for one in found
        ],
    )


def _state(one: WorkerStatus) -> str:
    if one.dead:
        return "dead"
    return "alive" if one.watched else "leased"  # known by its heartbeat only


@workers.command()
@click.argument("worker")
@click.option("--note", required=True, metavar="TEXT", help="Why; kept in the story of each of its runs.")
@click.pass_obj
def release(given: ConnectionOptions, worker: str, note: str) -> None:
    """End a worker's lease now: its runs go on elsewhere.

    WORKER is an id, or an unambiguous beginning or end of one. Its current steps may be executed twice,
    under the same key, as after its death. A worker that is alive continues under another id.
    """
    with open_for_reading(given) as app:
        app.check()
        found = _find(app, worker)
        with app.store.write() as connection:
            actor = Actor(current_user(), note, app.clock.now(), app.settings.grace)
            taken = by_hand.take_all_from_worker(connection, app.namespace, WorkerId(found.id), actor)
        print_message(f"Worker {found.id} has no lease any more; {len(taken)} of its runs go on elsewhere.")


def _seen(app: Aft) -> list[WorkerStatus]:
    with app.store.read() as connection:
        return health.seen_workers(connection, app.namespace)


def _find(app: Aft, part: str) -> WorkerStatus:
    found = [
        one
        for one in _seen(app)
        if part and (one.id.endswith(part) or part in (one.id[: len(part)], short_id(one.id)[: len(part)]))
    ]
    if len(found) == 1:
        return found[0]
    what = "several workers match" if found else "no worker with a lease has the id"
    raise Failure(f"{what} {part!r} in namespace {app.namespace!r}; `aft workers list` shows them")
