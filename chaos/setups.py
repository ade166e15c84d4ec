"""Where chaos runs: a database, a broker, a namespace and a ledger, on private servers."""

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
    """One database, one broker, one namespace, one ledger. ``postgres`` and ``rabbit`` may be killed."""

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
        """The log file of the processes of this namespace."""
        return self.directory / f"{self.namespace}.log"

    @property
    def killed(self) -> Path:
        """The file that records when each process was killed."""
        return self.directory / f"{self.namespace}.killed"

    @property
    def lease(self) -> float:
        """The length of a worker's lease in seconds."""
        return Settings.load(lease=self.settings["lease"]).lease.total_seconds()

    def environ(self) -> dict[str, str]:
        """Return the environment variables with which a process connects here."""
        return {
            "AFT_DATABASE_URL": self.database,
            "AFT_BROKER_URL": self.broker,
            "AFT_NAMESPACE": self.namespace,
            "AFT_TEST_LEDGER": str(self.ledger.path),
            **{f"AFT_{name.upper()}": value for name, value in self.settings.items()},
        }

    def app(self, **settings: Any) -> aft.Aft:
        """Make an application on this site; the caller closes it."""
        urls = {"database_url": self.database, "broker_url": self.broker, "namespace": self.namespace}
        return aft.Aft(settings=Settings.load(**(urls | self.settings | settings)))

    def another(self, **settings: str) -> Site:
        """Return the same site with its own namespace and ledger."""
        return replace(self, namespace=f"c{secrets.token_hex(6)}", settings=self.settings | settings)

    def forget(self) -> None:
        """Remove the namespace's queues from a shared broker, whose number of files is limited."""
        if self.broker.startswith("amqp"):
            with self.app() as app:
                forget_queues(self.broker, app.delays().topology())

    def prepare(self) -> None:
        """Migrate the database, and create the load's own table."""
        with self.app() as app:
            schema.upgrade(app.store)
            load.prepare(app.store)


@contextmanager
def private(name: str, directory: Path, **settings: str) -> Iterator[Site]:
    """Start the servers of a combination, and remove them at the end."""
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
