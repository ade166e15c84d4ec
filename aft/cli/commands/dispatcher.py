"""``aft dispatcher``: runs a dispatcher process until it is told to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import click

from aft.app import Aft, Role
from aft.cli.application import opened
from aft.cli.commands.serve import serve
from aft.cli.errors import Failure, one_line, printable
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import print_fields
from aft.flows.declare.registry import flow_names
from aft.telemetry import log_event, logger

LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.argument("modules", nargs=-1, metavar="MODULE...")
@click.option("--concurrency", type=click.IntRange(1, 1000), metavar="N", help="Runs executed at a time.")
@click.option("--only", multiple=True, metavar="ROLE", help="Take this role only: intake, work, relay or sweep.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.pass_obj
def dispatcher(
    given: ConnectionOptions, modules: tuple[str, ...], concurrency: int | None, only: tuple[str, ...], log_level: str
) -> None:
    """Run a dispatcher until it is stopped.

    MODULE holds flows: `shop.orders`, or `shop.orders:app` to use the aft.Aft that it defines. The current directory
    is on the path.

    \b
    Roles; several --only, or one with commas, combine:
      intake  consumes faults and decides about them
      work    executes runs; the only one that needs MODULE
      relay   publishes messages that were left in the outbox
      sweep   rescues runs of dead workers, wakes runs whose message was lost, fires schedules

    SIGTERM or Ctrl-C drains: no run is claimed, each is released after its current step, and no attempt is counted.
    A second one stops at once.
    """
    roles = read_roles(only)
    if Role.WORK in roles and not modules:
        raise click.UsageError(
            "name the modules that hold your flows, `aft dispatcher shop.orders`; "
            "or do without: --only intake,relay,sweep"
        )
    write_log(log_level)
    loaded = load(modules)
    with opened(given, loaded) as app:
        if Role.WORK in roles and not (app.registry.known or app.registry.compensators):
            raise Failure(
                f"{', '.join(modules)} declares no flow, and no compensator that runs could be undone with; "
                "put @aft.flow on a function there"
            )
        app.telemetry.subscribe(log_event)
        workers = concurrency or app.settings.concurrency
        introduce(app, roles, workers)
        serve(app, app.dispatcher(concurrency=workers, only=roles))


def read_roles(only: Sequence[str]) -> list[Role]:
    """Parse ``--only``, which may be repeated and may hold commas; nothing means every role."""
    wanted = [name.strip() for text in only for name in text.split(",") if name.strip()]
    known = [role.value for role in Role]
    for name in wanted:
        if name not in known:
            raise click.BadParameter(f"{name!r} is not a role; there are {', '.join(known)}", param_hint="--only")
    if only and not wanted:
        raise click.BadParameter(f"names no role; there are {', '.join(known)}", param_hint="--only")
    return [role for role in Role if not wanted or role.value in wanted]


def introduce(app: Aft, roles: Sequence[Role], concurrency: int) -> None:
    """Print what this process is going to do, and on which database and broker."""
    works = Role.WORK in roles
    embedded = app.settings.broker_url == "embedded"
    print_fields(
        {
            "database": app.store.url,
            "broker": "embedded, in the database" if embedded else app.broker.url,
            "namespace": app.namespace,
            "flows": (", ".join(flow_names(app.registry)) or "none: runs are only undone here") if works else "",
            "roles": ", ".join(roles),
            "concurrency": str(concurrency) if works else "",
        },
        err=True,
    )


def write_log(level: str) -> None:
    """Write the log to stderr, one line for each event, with the time in UTC."""
    form = _OneLine("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s  %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It logs every plugin that it loads.
    logging.getLogger("alembic").setLevel(logging.WARNING)


class _OneLine(logging.Formatter):
    """Keeps aft's own events on one line each: the text of an exception that they quote may hold line breaks.

    The lines of a traceback are marked, so that none of them, which may be anybody's text, looks like an event.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.name == logger.name:
            record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, error: Any) -> str:
        lines = printable(super().formatException(error)).splitlines()
        return "\n".join(f"  | {line}" for line in lines)
