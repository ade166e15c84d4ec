"""Measures RabbitMQ's queues, and the cost of checking a thousand liveness locks."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pika
from sqlalchemy import Connection, insert, text

from aft import names
from aft.app import Aft
from aft.brokers.base import Outgoing, Topology
from aft.brokers.rabbitmq import RabbitBroker
from aft.brokers.rabbitmq.topology import exchanges
from aft.envelope import Message, MessageKind
from aft.ids import FaultId, RunId, new_id
from aft.runs.ownership.rescue import ANY_EXPIRED
from aft.store.db_time import later, now
from aft.store.liveness.sessions import SessionLivenessProbe
from aft.store.tables import runs, workers
from bench.cpu import cpu_of, listening_at
from bench.scale.costs import Broker

#: Messages that are sent through a queue at a time, and how often; the cheapest time counts: others use the broker too.
MESSAGES, ROUNDS = 2_000, 3
#: How long they lie in a delay queue.
WAIT = timedelta(milliseconds=200)
#: Workers that are made up to look at, and runs that each of them has.
CROWD, RUNS_EACH = 1_000, 8
#: Looks that are timed.
LOOKS = 20


def broker(url: str, namespace: str) -> Broker:
    """Measure a work queue and a delay queue in a namespace of their own."""
    rabbit = RabbitBroker(url)
    server = listening_at(urlsplit(url).port or 5672)
    topology = Topology(f"{namespace}-probe", frozenset([WAIT]))
    body = (
        Message.about_fault(MessageKind.RESUME, RunId(new_id()), FaultId(new_id()), datetime.now(UTC)).encode().encode()
    )
    try:
        rabbit.declare(topology)
        resume, delay = names.resume(topology.namespace), names.delay(topology.namespace, WAIT)
        direct = [_through(rabbit, server, resume, resume, body) for _ in range(ROUNDS)]
        delayed = [_through(rabbit, server, delay, resume, body) for _ in range(ROUNDS)]
    finally:
        _remove(url, topology)
        rabbit.close()
    return Broker(
        message_ms=min(cpu for cpu, _ in direct),
        delay_ms=min(cpu for cpu, _ in delayed),
        messages_a_second=max(rate for _, rate in direct),
        delays_a_second=max(rate for _, rate in delayed),
        message_bytes=float(len(body)),
    )


def _through(rabbit: RabbitBroker, server: int | None, queue: str, target: str, body: bytes) -> tuple[float, float]:
    """Return the broker's CPU in ms for one message (0: it is on another machine), and messages per second."""
    consumer = rabbit.consumer([target], prefetch=400)
    cpu, began, left = cpu_of(server or 0), time.perf_counter(), MESSAGES
    rabbit.publish([Outgoing(queue, body)] * MESSAGES)
    while left > 0:
        found = consumer.receive(400, 10.0)
        consumer.ack(found)
        left -= len(found)
        if not found:
            raise TimeoutError(f"{left} messages have not come")
    seconds = time.perf_counter() - began
    used = cpu_of(server or 0) - cpu
    consumer.close()
    return used * 1e3 / MESSAGES, MESSAGES / seconds


def remove_queues(app: Aft) -> None:
    """Delete the queues of the app's namespace."""
    _remove(app.settings.broker_url, app.delays().topology())


def _remove(url: str, topology: Topology) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        for name in (*topology.work_queues, *topology.delay_queues, names.undeliverable(topology.namespace)):
            channel.queue_delete(name)
        for exchange in exchanges(topology):
            channel.exchange_delete(exchange.name)
        channel.exchange_delete(names.live_events(topology.namespace))
    finally:
        connection.close()


def looks(app: Aft) -> tuple[float, float]:
    """Return the database's µs for each worker in one check of all locks, and for each run in one sweep.

    A thousand workers are made up, in a transaction that is rolled back; one session holds all of their locks.
    """
    with app.store.engine.connect() as connection:
        alone = _time_looks(connection, app.namespace)
        _make_crowd(connection, app.namespace)
        crowded = _time_looks(connection, app.namespace)
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock_all()"))
        connection.rollback()
    look, sweep = ((after - before) * 1e6 for before, after in zip(alone, crowded, strict=True))
    return max(0.0, look) / CROWD, max(0.0, sweep) / (CROWD * RUNS_EACH)


def _time_looks(connection: Connection, namespace: str) -> tuple[float, float]:
    liveness_probe = SessionLivenessProbe()
    signs, sweeps = [], []
    for _ in range(LOOKS):
        began = time.perf_counter()
        liveness_probe.check(lambda: nullcontext(connection), {})
        connection.execute(
            text(
                "SELECT id, liveness_lock FROM aft_workers "
                "WHERE namespace = :n AND liveness_lock IS NOT NULL AND stopped_at IS NULL"
            ),
            {"n": namespace},
        ).all()
        between = time.perf_counter()
        connection.exec_driver_sql(ANY_EXPIRED.postgresql, (namespace,))
        signs.append(between - began)
        sweeps.append(time.perf_counter() - between)
    return min(signs), min(sweeps)


def _make_crowd(connection: Connection, namespace: str) -> None:
    ids = [new_id() for _ in range(CROWD)]
    common = {"namespace": namespace, "host": "nowhere", "pid": 0, "roles": "[]", "flows": "[]"}
    connection.execute(
        insert(workers).values(started_at=now(), expires_at=later(3600.0)),
        [{"id": one, "liveness_lock": f"session:0:{number}", **common} for number, one in enumerate(ids)],
    )
    connection.execute(text("SELECT pg_advisory_lock(7000000000 + n) FROM generate_series(1, :n) AS n"), {"n": CROWD})
    made = {"namespace": namespace, "flow": "plain", "version": 1, "args": "[]", "status": "running", "epoch": 1}
    rows = [{"id": new_id(), "worker_id": one, **made} for one in ids for _ in range(RUNS_EACH)]
    connection.execute(
        insert(runs).values(created_at=now(), updated_at=now()), [{**row, "root_id": row["id"]} for row in rows]
    )
    connection.execute(text("ANALYZE aft_workers"))
    connection.execute(text("ANALYZE aft_runs"))
