"""The hops of the fault path without aft: two processes, batches of up to 200, every hop recorded.

worker → fault queue → dispatcher, which records its decision → delay queue, whose TTL dead-letters to → resume queue →
worker, which records that it took the run and how the attempt went. All queues are quorum queues, publishes are
confirmed in a pipeline, deliveries are acknowledged many at once and only when what came of them is confirmed; each
batch is one statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pika
import psycopg
from pika.channel import Channel

from aft.ids import new_id
from bench import jobs
from bench.limits.unconfirmed import Unconfirmed

BATCH = 200
FAILURES = 2
#: On disk before it is confirmed.
DURABLE = pika.BasicProperties(delivery_mode=2)  # type: ignore[no-untyped-call]
FAULTS, DELAY, RESUME = "limits.faults", "limits.delay", "limits.resume"

_SEED = """
INSERT INTO aft_runs (id, namespace, flow, version, args, status, root_id, created_at, updated_at)
SELECT id, 'limits', 'failing', 1, '{}', 'running', id, statement_timestamp(), statement_timestamp()
FROM unnest(%s::text[]) AS id
"""
_ATTEMPT = """
WITH taken AS (
    UPDATE aft_runs SET epoch = epoch + 1, seq = seq + 1, status = 'recovering', updated_at = statement_timestamp(),
           started_at = coalesce(started_at, statement_timestamp()), wake_id = given.fault
    FROM unnest(%s::text[], %s::text[], %s::int[]) AS given (run, fault, attempt)
    WHERE id = given.run RETURNING id, epoch, given.fault, given.attempt
)
INSERT INTO aft_faults (id, run_id, namespace, path, kind, name, state, epoch, attempt, type, lineage, message, args,
                        args_exact, traceback, ladder, raised_at)
SELECT fault, id, 'limits', '1', 'activity', 'fail', 'open', epoch, attempt, 'ConnectionError',
       '["ConnectionError","OSError","Exception"]', 'not now', '["not now"]', true, '', '[]', statement_timestamp()
FROM taken
"""
_END = """
UPDATE aft_runs SET seq = seq + 1, epoch = epoch + 1, status = 'completed', ended_at = statement_timestamp(),
       wake_id = NULL, updated_at = statement_timestamp()
WHERE id = ANY(%s::text[])
"""
_DECIDE = """
WITH decided AS (
    UPDATE aft_faults SET state = 'waiting', level = 1, due_at = statement_timestamp(),
           decided_at = statement_timestamp()
    WHERE id = ANY(%s::text[]) RETURNING run_id, due_at
)
UPDATE aft_runs SET due_at = decided.due_at, sweep_at = decided.due_at + interval '5s' FROM decided
WHERE id = decided.run_id
"""

Out = list[tuple[str, str]]


class Station:
    """Consumes a queue in batches: handles each, publishes the results, then acknowledges."""

    def __init__(
        self, broker: str, source: str, deal: Callable[[Sequence[str]], Out], over: Callable[[], bool]
    ) -> None:
        self._source, self._deal, self._over = source, deal, over
        self._waiting: list[tuple[int, str]] = []
        self._busy = False
        self._unconfirmed = Unconfirmed()
        self._last = 0
        self._connection = pika.SelectConnection(pika.URLParameters(broker), on_open_callback=self._opened)

    def run(self) -> None:
        """Run until ``over`` returns true."""
        self._connection.ioloop.start()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._begin)

    def _begin(self, channel: Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm)
        channel.basic_qos(prefetch_count=2 * BATCH)
        channel.basic_consume(self._source, self._on_message)

    def _on_message(self, channel: Channel, method: Any, properties: Any, body: bytes) -> None:
        self._waiting.append((method.delivery_tag, body.decode()))
        if not self._busy:
            self._busy = True
            self._connection.ioloop.call_later(0, self._flush)

    def _flush(self) -> None:
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        self._last = batch[-1][0]
        out = self._deal([body for _, body in batch])
        for queue, body in out:
            self._channel.basic_publish("", queue, body.encode(), DURABLE)
            self._unconfirmed.add()
        self._settle()

    def _on_confirm(self, frame: Any) -> None:
        self._unconfirmed.confirm(frame)
        self._settle()

    def _settle(self) -> None:
        if not self._busy or self._unconfirmed:
            return
        self._channel.basic_ack(self._last, multiple=True)
        if self._over():
            self._connection.ioloop.stop()
        elif self._waiting:
            self._connection.ioloop.call_later(0, self._flush)
        else:
            self._busy = False


def declare(broker: str) -> None:
    """Delete the queues, and declare them again."""
    connection = pika.BlockingConnection(pika.URLParameters(broker))
    channel = connection.channel()
    forward = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": RESUME, "x-message-ttl": 1}
    kept = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    for queue, more in ((FAULTS, {}), (RESUME, {}), (DELAY, forward | kept)):
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **more})
    connection.close()


def work(job: dict[str, Any], ended: Callable[[int], None], over: Callable[[], bool]) -> Station:
    """Return the worker's station: attempts fail twice, then succeed. A message is a run and an attempt."""
    connection = psycopg.connect(job["database"], autocommit=True, prepare_threshold=0)

    def deal(bodies: Sequence[str]) -> Out:
        runs = [body.split() for body in bodies]
        failed = [(run, new_id(), int(attempt)) for run, attempt in runs if int(attempt) <= FAILURES]
        done = [run for run, attempt in runs if int(attempt) > FAILURES]
        if failed:
            connection.execute(_ATTEMPT.encode(), [list(column) for column in zip(*failed, strict=True)])
        if done:
            connection.execute(_END.encode(), [done])
            ended(len(done))
        return [(FAULTS, f"{run} {fault} {attempt}") for run, fault, attempt in failed]

    return Station(job["broker"], RESUME, deal, over)


def dispatch(job: dict[str, Any]) -> Station:
    """Return the dispatcher's station: every fault is tried again."""
    connection = psycopg.connect(job["database"], autocommit=True, prepare_threshold=0)

    def deal(bodies: Sequence[str]) -> Out:
        faults = [body.split() for body in bodies]
        connection.execute(_DECIDE.encode(), [[fault for _, fault, _ in faults]])
        return [(DELAY, f"{run} {int(attempt) + 1}") for run, _, attempt in faults]

    return Station(job["broker"], FAULTS, deal, lambda: False)


def seed(job: dict[str, Any]) -> None:
    """Insert the runs, and publish a wake for each."""
    ids = [new_id() for _ in range(job["count"])]
    with psycopg.connect(job["database"], autocommit=True) as connection:
        connection.execute("TRUNCATE aft_runs CASCADE")
        connection.execute(_SEED, [ids])
    declare(job["broker"])
    connection_ = pika.BlockingConnection(pika.URLParameters(job["broker"]))
    channel = connection_.channel()
    for run in ids:
        channel.basic_publish("", RESUME, f"{run} 1".encode(), DURABLE)
    connection_.close()


def main() -> None:
    """Run the job of this program, with the dispatcher in its own process."""
    job = jobs.given()
    if job.get("crew"):
        station = dispatch(job)
        jobs.wait_for_go()
        station.run()
        return
    seed(job)
    left = [job["count"]]

    def ended(count: int) -> None:
        left[0] -= count

    crew = jobs.Crew("bench.limits.hops", [{**job, "crew": True}])
    crew.wait_until_ready()
    station = work(job, ended, lambda: left[0] <= 0)
    crew.tell("GO")
    began = time.perf_counter()
    station.run()
    jobs.answer({"faults": FAILURES * job["count"] / (time.perf_counter() - began)})
    crew.end()


if __name__ == "__main__":
    main()
