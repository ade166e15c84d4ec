"""``aft broker``: declares the queues of a namespace, and shows their state."""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta

import click
from rich.text import Text

from aft import names
from aft.app import Aft
from aft.app.views import health
from aft.brokers.base import QueueStatus, Topology
from aft.cli.application import open_for_reading, opened
from aft.cli.errors import one_line
from aft.cli.groups import Noun
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.documents import document
from aft.cli.show.output import Column, json_option, print_json, print_message, print_table
from aft.names import MOST_DELAYS
from aft.recovery.delays import SHORTEST

#: What ``--json`` prints of a queue.
KEYS = "name exists messages consumers problem"


@click.group(cls=Noun)
def broker() -> None:
    """Declare the queues, or show their state.

    A namespace has a queue for faults, two for work, one for what cannot be delivered, and one for each wait of the
    settings' ladder and of the activities in MODULE. On RabbitMQ, workers with the same flows have two more, which they
    declare themselves: wake-ups are routed to workers that have the run's flow.
    """


@broker.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.pass_obj
def declare(given: ConnectionOptions, modules: tuple[str, ...]) -> None:
    """Declare the queues. Idempotent; a dispatcher does it when it starts."""
    loaded = load(modules)
    with opened(given, loaded) as app:
        app.check()
        topology = app.delays().declare(app.waits())
        for one in app.broker.status(topology):
            click.echo(one.name)
        print_message(f"These exist now at {app.broker.url}.")


@broker.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@json_option
@click.pass_context
def status(context: click.Context, modules: tuple[str, ...], as_json: bool) -> None:
    """Show each queue; exit status 1 if one is missing or differs."""
    loaded = load(modules)
    with open_for_reading(context.obj, loaded) as app:
        app.check()
        found = app.broker.status(wanted_topology(app))
        if as_json:
            queues = [document(one, KEYS) for one in found]
            print_json({"broker": app.broker.url, "namespace": app.namespace, "queues": queues})
        else:
            _print(found, embedded=app.settings.broker_url == "embedded")
    context.exit(int(any(is_wrong(one) for one in found)))


def wanted_topology(app: Aft) -> Topology:
    """Return the queues that should exist: those declared before, and those needed now."""
    known = app.delays().topology().waits
    return Topology(app.namespace, known | needed_waits(app, known), _pools(app))


def _pools(app: Aft) -> frozenset[frozenset[str]]:
    """Return the sets of flows that live workers have."""
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    flows = [[flow.rpartition("@") for flow in worker.flows] for worker in workers if "work" in worker.roles]
    return frozenset(frozenset(names.key(name, int(version)) for name, _, version in one) for one in flows)


def needed_waits(app: Aft, known: Set[timedelta] = frozenset()) -> frozenset[timedelta]:
    """Return the waits that need a queue besides the known ones, as many as the namespace has room for."""
    waits = sorted(wait for wait in app.waits() if wait >= SHORTEST and wait not in known)
    return frozenset(waits[: max(MOST_DELAYS - len(known), 0)])


def is_wrong(one: QueueStatus) -> bool:
    """Return whether something must be done about a queue."""
    return not one.exists or bool(one.problem)


def _print(found: list[QueueStatus], *, embedded: bool) -> None:
    # The embedded broker knows which consumers hold messages, not which wait for them.
    consumers = [] if embedded else [Column("CONSUMERS", right=True)]
    columns = [Column("QUEUE"), Column("MESSAGES", right=True), *consumers, Column("STATE")]
    print_table(columns, [_cells(one, embedded=embedded) for one in found])
    for text in dict.fromkeys(one.problem for one in found if one.problem):
        same = [one.name for one in found if one.problem == text]
        print_message(f"{same[0] if len(same) == 1 else f'{len(same)} queues'}: {one_line(text)}")


def _cells(one: QueueStatus, *, embedded: bool) -> list[str | Text]:
    numbers = [one.messages] if embedded else [one.messages, one.consumers]
    if not one.exists:
        return [one.name, *("-" for _ in numbers), Text("missing", "red")]
    state = Text("differs", "red") if one.problem else Text("ok", "green")
    return [one.name, *map(str, numbers), state]
