"""Shared by the programs of ours: an application on clean tables and queues, and a count of ended runs."""

from __future__ import annotations

import time
from typing import Any

import pika
import psycopg
from psycopg import sql

import aft
from aft import names
from aft.brokers.base import Topology
from aft.brokers.rabbitmq.topology import exchanges
from aft.store.tables import metadata
from bench import seed
from bench.jobs import JobFailed
from bench.ours import failing_flows, flows

NAMESPACE = "bench"
#: Seconds between two looks at how many runs have ended.
LOOK = 0.02


def make_app(job: dict[str, Any]) -> aft.Aft:
    """Make the application that a job is measured with."""
    settings = aft.Settings.load(
        database_url=job["database"], broker_url=job["broker"], namespace=NAMESPACE, **job.get("settings", {})
    )
    return aft.Aft(settings=settings)


def clean(job: dict[str, Any], app: aft.Aft) -> None:
    """Empty the tables and remove the queues, so that rounds are independent; ``finished`` runs are kept."""
    with psycopg.connect(job["database"], autocommit=True) as connection:
        if job.get("finished"):
            for table in ("aft_journal", "aft_frames", "aft_run_labels"):
                statement = f"DELETE FROM {table} AS t USING aft_runs AS r WHERE r.id = t.run_id AND r.flow <> %s"
                connection.execute(statement.encode(), (seed.FLOW,))
            connection.execute("DELETE FROM aft_runs WHERE flow <> %s", (seed.FLOW,))
            connection.execute("TRUNCATE aft_workers, aft_outbox")
        else:
            tables = sql.SQL(", ").join(sql.Identifier(name) for name in metadata.tables)
            connection.execute(sql.SQL("TRUNCATE {}").format(tables))
    if job.get("finished"):
        seed.finished(job["database"], NAMESPACE, job["finished"])
    remove_queues(job["broker"], Topology(NAMESPACE, frozenset(app.waits())))


def remove_queues(broker: str, topology: Topology) -> None:
    """Delete every queue of a topology, with its messages."""
    connection = pika.BlockingConnection(pika.URLParameters(broker))
    channel = connection.channel()
    for queue in (*topology.work_queues, *topology.delay_queues, names.undeliverable(topology.namespace)):
        channel.queue_delete(queue)
    for exchange in exchanges(topology):
        channel.exchange_delete(exchange.name)
    connection.close()


def flow_named(name: str) -> aft.Flow[Any, Any]:
    """Return the flow of this name."""
    found = next(getattr(module, name) for module in (flows, failing_flows) if hasattr(module, name))
    assert isinstance(found, aft.Flow)
    return found


class Counting:
    """Counts ended runs, on a connection of its own."""

    def __init__(self, database: str, status: str = "completed") -> None:
        self._connection = psycopg.connect(database, autocommit=True)
        self._status = status

    def count(self) -> int:
        """Return how many runs have ended with the wanted status."""
        row = self._connection.execute(
            "SELECT count(*) FROM aft_runs WHERE namespace = %s AND status = %s", (NAMESPACE, self._status)
        ).fetchone()
        return int(row[0]) if row else 0

    def wait_for(self, wanted: int, patience: float = 120.0) -> None:
        """Wait for a count; raises JobFailed after ``patience`` seconds."""
        if (count := self.wait_until(wanted, patience)) < wanted:
            raise JobFailed(f"only {count} of {wanted} runs were {self._status} after {patience:.0f} s")

    def wait_until(self, wanted: int, most: float) -> int:
        """Wait for a count, ``most`` seconds at the longest; return the count."""
        until = time.monotonic() + most
        while (count := self.count()) < wanted and time.monotonic() < until:
            time.sleep(LOOK)
        return count
