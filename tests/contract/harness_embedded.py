"""The embedded broker in the contract suite: on a SQLite file, and on PostgreSQL, shared or private."""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import delete

from aft.brokers.base import Topology
from aft.brokers.embedded.routes import routes_of
from aft.store import Store, schema
from aft.store.tables import messages, queues
from tests.contract.harness import Harness, ServerHarness
from tests.servers import PrivatePostgres


class EmbeddedHarness(Harness):
    """The embedded broker, on a database that other tests may share."""

    def __init__(self, kind: str, url: str) -> None:
        super().__init__(kind, url)
        with closing(Store(url)) as store:
            schema.upgrade(store)

    def forget(self, topology: Topology) -> None:
        names = list(routes_of(topology))
        with closing(Store(self.url)) as store, store.write() as connection:
            connection.execute(delete(messages).where(messages.c.target.in_(names)))
            connection.execute(delete(queues).where(queues.c.name.in_(names)))


class PrivatePostgresHarness(EmbeddedHarness, ServerHarness):
    """The embedded broker, on a PostgreSQL of the tests' own."""

    def __init__(self, kind: str, server: PrivatePostgres) -> None:
        super().__init__(kind, server.url)
        self._server = server

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()
