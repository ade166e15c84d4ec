"""Where chaos takes place: a database, a broker, a namespace and a ledger, on servers that nobody else uses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

import aft
from aft.config import Settings
from aft.store import schema
from chaos import load
from chaos.ledger import Ledger
from tests.servers import PrivatePostgres, PrivateRabbit
from tests.setups import forget_queues

#: The combinations of database and broker.
COMBINATIONS = ("postgresql+rabbitmq", "postgresql+embedded", "sqlite+rabbitmq", "sqlite+embedded")
#: Connections that a private PostgreSQL takes: a fleet has many threads, and each new process some more.
MOST_CONNECTIONS = 400


@dataclass
class Site:
    """One database, one broker, one namespace, one ledger. ``postgres`` and ``rabbit`` are there to be killed."""

    name: str
    database: str
    broker: str
    directory: Path
    namespace: str = field(default_factory=lambda: f"c{secrets.token_hex(6)}")
    settings: dict[str, str] = field(default_factory=lambda: {"lease": "5s", "grace": "1s"})
    postgres: PrivatePostgres | None = None
    rabbit: PrivateRabbit | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of this namespace."""
        return Ledger(self.directory / f"{self.namespace}.ledger")

    @property
    def log(self) -> Path:
        """Where the processes of this namespace say what troubles them."""
        return self.directory / f"{self.namespace}.log"

    @property
    def killed(self) -> Path:
        """Where it is kept when which process was killed, for whoever reads the ledger afterwards."""
        return self.directory / f"{self.namespace}.killed"

    @property
    def lease(self) -> float:
        """Seconds that a worker owns its runs without a heartbeat."""
        return Settings.load(lease=self.settings["lease"]).lease.total_seconds()

    def environ(self) -> dict[str, str]:
        """The variables that lead a process here."""
        return {
            "AFT_DATABASE_URL": self.database,
            "AFT_BROKER_URL": self.broker,
            "AFT_NAMESPACE": self.namespace,
            "AFT_TEST_LEDGER": str(self.ledger.path),
            **{f"AFT_{name.upper()}": value for name, value in self.settings.items()},
        }

    def app(self, **settings: Any) -> aft.Aft:
        """Make an app here; the caller closes it."""
        urls = {"database_url": self.database, "broker_url": self.broker, "namespace": self.namespace}
        return aft.Aft(settings=Settings.load(**(urls | self.settings | settings)))

    def another(self, **settings: str) -> Site:
        """The same place, with a namespace and a ledger of its own."""
        return replace(self, namespace=f"c{secrets.token_hex(6)}", settings=self.settings | settings)

    def forget(self) -> None:
        """Remove the namespace's queues from a broker that others use, too: it has only so many files."""
        if self.broker.startswith("amqp"):
            with self.app() as app:
                forget_queues(self.broker, app.delays().topology())

    def prepare(self) -> None:
        """Bring the database to the newest schema, with the load's own table."""
        with self.app() as app:
            schema.upgrade(app.store)
            load.prepare(app.store)


@contextmanager
def private(name: str, directory: Path, **settings: str) -> Iterator[Site]:
    """Start the servers of a combination, and remove them in the end."""
    directory.mkdir(parents=True, exist_ok=True)
    database, _, broker = name.partition("+")
    with ExitStack() as servers:
        postgres = servers.enter_context(PrivatePostgres()) if database == "postgresql" else None
        rabbit = servers.enter_context(PrivateRabbit()) if broker == "rabbitmq" else None
        if postgres is not None:
            _allow_connections(postgres)
        site = Site(
            name,
            postgres.url if postgres is not None else f"sqlite:///{directory / 'aft.db'}",
            rabbit.url if rabbit is not None else "embedded",
            directory,
            postgres=postgres,
            rabbit=rabbit,
        )
        site.settings |= settings
        site.prepare()
        yield site


def _allow_connections(postgres: PrivatePostgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET max_connections = {MOST_CONNECTIONS}")
    postgres.restart()
