"""``aft``: the list of commands, before anything heavy is imported."""

from __future__ import annotations

import logging

import click

from aft.cli.groups import CommandRef, Root
from aft.cli.options import Given
from aft.version import __version__

#: Every command: where it is, and its line in ``aft --help``.
PLACES = {
    "dispatcher": CommandRef("aft.cli.commands.dispatcher:dispatcher", "Keep runs going: retry, undo, rescue."),
    "replay": CommandRef(
        "aft.cli.commands.replay.command:replay", "Play an example's scenarios and draw what happens."
    ),
    "runs": CommandRef("aft.cli.commands.runs.command:runs", "Start runs, look at them, steer them."),
    "schedules": CommandRef(
        "aft.cli.commands.schedules:schedules", "See and steer flows that are run at certain times."
    ),
    "faults": CommandRef("aft.cli.commands.faults:faults", "Look at what went wrong."),
    "rules": CommandRef("aft.cli.commands.rules.command:rules", "See and teach what is done about which fault."),
    "exlets": CommandRef("aft.cli.commands.rules.exlets:exlets", "See and add what rules can choose."),
    "workers": CommandRef("aft.cli.commands.workers:workers", "See who executes runs, end a worker's lease by hand."),
    "flows": CommandRef("aft.cli.commands.flows:flows", "See which versions of flows are still needed."),
    "stack": CommandRef("aft.cli.commands.stack:stack", "Show what a run owes to be undone."),
    "db": CommandRef("aft.cli.commands.db:db", "Bring the database's schema up to date, see who did what by hand."),
    "broker": CommandRef("aft.cli.commands.broker:broker", "Declare the queues, look at them."),
    "doctor": CommandRef("aft.cli.commands.doctor:doctor", "Say what is wrong, and what to do about it."),
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
    context.obj = Given(database, broker, namespace)
