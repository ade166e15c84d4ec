"""``aft``: the list of commands, before anything heavy is imported."""

from __future__ import annotations

import logging

import click

from aft.cli.groups import CommandRef, Root
from aft.cli.options import ConnectionOptions
from aft.version import __version__

#: Every command: where it is, and its line in ``aft --help``.
PLACES = {
    "dispatcher": CommandRef("aft.cli.commands.dispatcher:dispatcher", "Execute runs: retry, undo, rescue."),
    "replay": CommandRef(
        "aft.cli.commands.replay.command:replay", "Play an example's scenarios and draw what happens."
    ),
    "runs": CommandRef("aft.cli.commands.runs.command:runs", "Start, list, show and steer runs."),
    "schedules": CommandRef(
        "aft.cli.commands.schedules:schedules", "List and steer schedules: flows that are run at certain times."
    ),
    "operations": CommandRef(
        "aft.cli.commands.runs.operations:operations", "List, show and steer operations: one order to many runs."
    ),
    "faults": CommandRef("aft.cli.commands.faults:faults", "List faults and refused messages."),
    "rules": CommandRef("aft.cli.commands.rules.command:rules", "Show and teach the rules that decide about faults."),
    "exlets": CommandRef("aft.cli.commands.rules.exlets:exlets", "Show and add exlets, which rules choose."),
    "workers": CommandRef("aft.cli.commands.workers:workers", "List workers, or end a worker's lease by hand."),
    "flows": CommandRef("aft.cli.commands.flows:flows", "List the versions of flows that are still needed."),
    "stack": CommandRef("aft.cli.commands.stack:stack", "Show a run's compensation stack."),
    "db": CommandRef("aft.cli.commands.db:db", "Migrate the database's schema; list the actions of people."),
    "broker": CommandRef("aft.cli.commands.broker:broker", "Declare the queues, or show their state."),
    "doctor": CommandRef("aft.cli.commands.doctor:doctor", "Check the installation, and say what to do."),
}


@click.group(
    cls=Root,
    places=PLACES,
    name="aft",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="aft", message="%(prog)s %(version)s")
@click.option("--database", metavar="URL", help="Instead of AFT_DATABASE_URL.  [default: sqlite:///aft.db]")
@click.option("--broker", metavar="URL", help="Instead of AFT_BROKER_URL.  [default: embedded]")
@click.option("--namespace", metavar="NAME", help="Instead of AFT_NAMESPACE.  [default: aft]")
@click.pass_context
def root(context: click.Context, database: str | None, broker: str | None, namespace: str | None) -> None:
    """Fault tolerance for Python workflows over message queues.

    Settings come from AFT_* variables; `aft doctor` lists them.

    Exit status: 0 done, 1 what was asked for failed, 2 usage.
    """
    # Where a connection fails, aft says so in one line; pika would say it again in thirty.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    context.obj = ConnectionOptions(database, broker, namespace)
