"""``aft flows``: which versions of flows are still needed, and which have workers."""

from __future__ import annotations

import click

from aft.app import Aft
from aft.app.views import versions
from aft.app.views.versions import VersionUse
from aft.cli.groups import Noun
from aft.cli.options import ConnectionOptions
from aft.cli.show.documents import document
from aft.cli.show.lists import print_listing
from aft.cli.show.output import Column, json_option, moment, print_table

#: What ``--json`` prints of a version.
KEYS = "flow version runs oldest workers undoable"


@click.group(cls=Noun)
def flows() -> None:
    """List the versions of flows that are still needed."""


@flows.command("list")
@json_option
@click.pass_obj
def list_flows(given: ConnectionOptions, as_json: bool) -> None:
    """List flows by version: runs that have not ended, and workers that have the code.

    A version without runs is not needed any more: its flow can be removed. Undoing a run needs only the compensators
    of its activities: keep those as long as completed runs may be compensated. To undo to a savepoint needs the flow.
    """

    def read(app: Aft) -> tuple[list[VersionUse], str]:
        with app.store.read() as connection:
            return versions.read_versions(connection, app.namespace), f"{nothing} in namespace {app.namespace!r}."

    nothing = "No flow has runs that go on, and no live worker has code"
    print_listing(given, read, as_json=as_json, document=lambda one: document(one, KEYS), table=_print, nothing=nothing)


def _print(found: list[VersionUse]) -> None:
    columns = [
        Column("FLOW", flexible=True),
        Column("VERSION", right=True),
        Column("RUNS", right=True),
        Column("OLDEST UTC"),
        Column("WORKERS", right=True),
        Column("DETAIL", flexible=True),
    ]
    print_table(
        columns,
        [
            [
                one.flow,
                str(one.version),
                str(one.runs),
                moment(one.oldest) if one.oldest else "",
                str(one.workers),
                _about(one, found),
            ]
            for one in found
        ],
    )


def _about(one: VersionUse, found: list[VersionUse]) -> str:
    if one.runs and not one.workers:
        return (
            "its runs cannot go on: start a dispatcher that has this version; to cancel or compensate them, one that "
            "has the compensators of their activities will do"
        )
    newest = max(other.version for other in found if other.flow == one.flow)
    if not one.runs and one.version < newest and one.undoable:
        return (
            "no longer needed: its flow can be removed; completed runs of it can be undone as long as a worker has the "
            "compensators of their activities"
        )
    if not one.runs and one.version < newest:
        return "not needed any more: its code can be removed"
    return ""
