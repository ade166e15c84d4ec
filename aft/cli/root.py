"""``aft``: what there is, before anything heavy is imported."""

from __future__ import annotations

import logging

import click

from aft.cli.given import Given
from aft.cli.groups import CommandRef, Root
from aft.version import __version__

#: Every command: where it is, and the line that ``aft --help`` says about it.
PLACES = {
    "dispatcher": CommandRef("aft.cli.dispatcher:dispatcher", "Keep runs going: retry, undo, rescue."),
    "replay": CommandRef("aft.cli.replay.command:replay", "Play an example's scenarios and draw what happens."),
    "runs": CommandRef("aft.cli.runs:runs", "Start runs, look at them, steer them."),
    "schedules": CommandRef("aft.cli.schedules:schedules", "See and steer flows that are run at certain times."),
    "faults": CommandRef("aft.cli.faults:faults", "Look at what went wrong."),
    "rules": CommandRef("aft.cli.rules.command:rules", "See and teach what is done about which fault."),
    "exlets": CommandRef("aft.cli.rules.exlets:exlets", "See and add what rules can choose."),
    "workers": CommandRef("aft.cli.workers:workers", "See who executes runs, end a worker's lease by hand."),
    "flows": CommandRef("aft.cli.flows:flows", "See which versions of flows are still needed."),
    "stack": CommandRef("aft.cli.stack:stack", "Show what a run owes to be undone."),
    "db": CommandRef("aft.cli.db:db", "Bring the database's schema up to date, see who did what by hand."),
    "broker": CommandRef("aft.cli.broker:broker", "Declare the queues, look at them."),
    "doctor": CommandRef("aft.cli.doctor:doctor", "Say what is wrong, and what to do about it."),
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
