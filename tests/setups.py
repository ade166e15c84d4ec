"""The combinations of database and broker that every promise is tested on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pika

import aft
from aft import names
from aft.brokers.base import Topology
from aft.brokers.rabbitmq.topology import exchanges
from aft.config import Settings
from aft.store import Store, schema

#: Where the tests' receivers of notices are.
HERE = "127.0.0.1, localhost"
#: Names of the combinations.
SETUPS = ("sqlite", "postgresql", "postgresql+rabbitmq")
#: The two of them that most people have.
ENDS = ("sqlite", "postgresql+rabbitmq")


@dataclass
class Setup:
    """A database and a broker, and apps on them in a namespace of the test's own."""

    name: str
    database: str
    broker: str
    namespace: str = field(default_factory=lambda: f"t{secrets.token_hex(6)}")
    apps: list[aft.Aft] = field(default_factory=list)

    def app(self, **settings: Any) -> aft.Aft:
        """Make an app; short graces and levels, so that what takes long in life does not take long here.

        Its lease outlasts a machine that stands still: a test whose owner was overtaken would tell of the machine.
        """
        given = {"lease": 60.0, "grace": 1.0, "levels": "50ms*2, 100ms", "webhook_hosts": HERE} | settings
        made = aft.Aft(
            settings=Settings.load(
                database_url=self.database, broker_url=self.broker, namespace=self.namespace, **given
            )
        )
        self.apps.append(made)
        return made

    def environ(self) -> dict[str, str]:
        """The variables that lead a process here."""
        return {
            "AFT_DATABASE_URL": self.database,
            "AFT_BROKER_URL": self.broker,
            "AFT_NAMESPACE": self.namespace,
            "AFT_WEBHOOK_HOSTS": HERE,
        }

    def close(self) -> None:
        """Close every app that was made, and remove the namespace's queues: a broker has only so many files."""
        if self.broker.startswith("amqp") and self.apps:
            forget_queues(self.broker, self.apps[0].delays().topology())
        for app in self.apps:
            app.close()


def eventually(claim: Callable[[], Any], *, within: float = 60.0) -> Any:
    """Wait until a claim is true and return what it returned; fail if it is not true in time.

    The longer a look takes, the fewer there are: whoever looks on shall not slow down what it waits for.
    """
    deadline = time.monotonic() + within
    while True:
        begun = time.monotonic()
        found = claim()
        if found:
            return found
        looked = time.monotonic()
        assert looked < deadline, f"not true within {within} s: {claim}"
        time.sleep(min(max(0.01, 4 * (looked - begun)), 0.5))


@contextmanager
def dispatching(app: aft.Aft, **options: Any) -> Iterator[None]:
    """Run a dispatcher in this process for a while."""
    with app.dispatcher(**options):
        yield


@contextmanager
def run_to(
    app: aft.Aft, flow: aft.Flow[..., Any], *args: Any, status: str | None = None, **named: Any
) -> Iterator[aft.Run[Any]]:
    """Run a dispatcher in this process, and a flow: up to a status, if one is given."""
    with app.dispatcher():
        run = app.submit(flow, *args, **named)
        if status is not None:
            eventually(lambda: run.status == status)
        yield run


def forget_queues(url: str, topology: Topology) -> None:
    """Remove a namespace's queues from RabbitMQ."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for queue in (*topology.work_queues, *topology.delay_queues, names.undeliverable(topology.namespace)):
        channel.queue_delete(queue)
    for exchange in exchanges(topology):
        channel.exchange_delete(exchange.name)
    connection.close()


def migrate(url: str) -> None:
    """Bring a database to the newest schema."""
    store = Store(url)
    schema.upgrade(store)
    store.close()
