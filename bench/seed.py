"""Inserts a million runs into the tables as aft would have left them, without executing any.

``finished``: completed runs, each with a row in the journal. ``pending``: runs in their ladder, each with a fault that
waits and a message in a delay queue, published through the broker port.
"""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg

from aft import names
from aft.brokers.base import Broker, Outgoing
from aft.durations import parse
from aft.envelope import Message, MessageKind
from aft.ids import FaultId, RunId

#: What seeded runs are of.
FLOW = "seeded"
#: Messages of one publish, and rows of one statement.
CHUNK = 20_000

_FINISHED = """
INSERT INTO aft_runs (id, namespace, flow, version, args, status, result, ended_as, root_id, epoch, seq, created_at,
                      started_at, updated_at, ended_at)
SELECT 'seeded-' || number, %(namespace)s, %(flow)s, 1, '{"steps":3}', 'completed', '3', 'completed',
       'seeded-' || number, 1, 2, at, at, at, at
FROM (SELECT number, statement_timestamp() - number * interval '1ms' AS at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number) AS made
"""
_JOURNALED = """
INSERT INTO aft_journal (run_id, path, seq, scope, kind, name, outcome, args, value, attempts, epoch, recorded_at)
SELECT 'seeded-' || number, '1', 1, '', 'activity', 'step', 'ok', '{"number":1}', '1', 1, 1, statement_timestamp()
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number
"""
_RECOVERING = """
INSERT INTO aft_runs (id, namespace, flow, version, args, status, root_id, epoch, seq, wake_id, due_at, sweep_at,
                      created_at, started_at, updated_at)
SELECT 'pending-' || number, %(namespace)s, %(flow)s, 1, '{}', 'recovering', 'pending-' || number, 1, 1,
       'fault-' || number, at + interval '1h', at + interval '1h' + interval '5s', at, at, at
FROM (SELECT number, statement_timestamp() AS at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number) AS made
"""
_FAULTS = """
INSERT INTO aft_faults (id, run_id, namespace, path, kind, name, state, epoch, attempt, type, lineage, message, args,
                        args_exact, traceback, ladder, level, try_in_level, wait_seconds, queue, due_at, raised_at,
                        decided_at)
SELECT 'fault-' || number, 'pending-' || number, %(namespace)s, '1', 'activity', 'step', 'waiting', 1, 1,
       'builtins.ConnectionError', '["builtins.ConnectionError"]', 'not now', '["not now"]', true, '', '1h', 1, 1,
       3600, %(queue)s, at + interval '1h', at, at
FROM (SELECT number, statement_timestamp() AS at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number) AS made
"""


def finished(database: str, namespace: str, count: int) -> None:
    """Insert finished runs, unless they are there."""
    given = {"namespace": namespace, "flow": FLOW, "first": 1, "last": count}
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM aft_runs WHERE flow = %s", (FLOW,)).fetchone()
        if row is None or row[0] < count:
            connection.execute(_FINISHED, given)
            connection.execute(_JOURNALED, given)
            connection.execute("VACUUM ANALYZE")


def pending(database: str, broker: Broker, namespace: str, count: int) -> None:
    """Insert runs that wait for an hour, and publish their messages."""
    queue = names.delay(namespace, parse("1h"))
    with psycopg.connect(database, autocommit=True) as connection:
        for first in range(1, count + 1, CHUNK):
            last = min(first + CHUNK - 1, count)
            given = {"namespace": namespace, "flow": FLOW, "first": first, "last": last, "queue": queue}
            connection.execute(_RECOVERING, given)
            connection.execute(_FAULTS, given)
            broker.publish([Outgoing(queue, _wake(number), names.key(FLOW, 1)) for number in range(first, last + 1)])
        connection.execute("ANALYZE")


def _wake(number: int) -> bytes:
    run, fault = RunId(f"pending-{number}"), FaultId(f"fault-{number}")
    return Message.about_fault(MessageKind.RESUME, run, fault, datetime.now(UTC)).encode().encode()
