"""Claims runs for a worker, and finds runs that are due although no message woke them.

``claim`` is one guarded UPDATE: the worker that sets ``wake_id`` to null owns the run, every other finds no row. The
same UPDATE raises the epoch; the run's records are read only after it has committed (``flows.session.run_records``).

Who may run at the same time: any number of workers that want the same runs, and all who change a run's row. The
statements are literal SQL and take their input as one JSON text: every batch is the same statement, so that nothing is
built, compiled or planned for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection

from aft.fault import FaultState
from aft.ids import RunId, WorkerId
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.run_rows import NAMES, RunRow, read_run
from aft.runs.states import GOING, Status
from aft.store import Store
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import SQLITE_NOW
from aft.store.tables import faults, runs, workers

#: Due runs among which the most urgent is chosen.
WINDOW = 500
#: Seconds for which a message may be late while there is a backlog.
BACKLOG = 60.0
#: Seconds by which the message of a fault may be ahead of the database's clock.
EARLY = 1.0
#: (flow, version) pairs that a process has code for.
Known = Sequence[tuple[str, int]]
#: A run, and the fault or order that wakes it.
Wake = tuple[RunId, str]


@dataclass(frozen=True, slots=True)
class Due:
    """When work is due: ``next`` is the seconds until the next run that the timer may claim; None: there is none.

    ``urgent``: a run with a priority is due. ``alone``: a run that must be executed alone is due.
    """

    next: float | None
    urgent: bool
    alone: bool


def claim(
    connection: Connection,
    namespace: str,
    worker: WorkerId,
    wakes: Sequence[Wake],
    known: Known,
    *,
    alone: bool = False,
) -> list[RunRow]:
    """Claim the runs that await exactly the wake named for them; the others are not touched.

    With ``alone`` only runs that must be executed alone are claimed, without it only the others.
    """
    given = {"namespace": namespace, "worker": worker, "known": _format(known), "wakes": wakes, "alone": alone}
    return _read_all(_execute(connection, _CLAIM, {**given, "timed": True}))


def claim_now(
    store: Store,
    namespace: str,
    worker: WorkerId,
    wakes: Sequence[Wake],
    known: Known,
    *,
    timed: bool = False,
    alone: bool = False,
) -> list[RunRow]:
    """Claim runs in a transaction of its own: one statement, one round trip; ``alone`` as for ``claim``.

    Unless ``timed``, the wake came as a message, and a fault that waits in its ladder wakes no run before it is due.
    """
    given = {"namespace": namespace, "worker": worker, "known": _format(known), "wakes": wakes, "alone": alone}
    return _read_all(store.execute(_CLAIM, json.dumps({**given, "timed": timed})))


def _read_all(found: Iterable[Sequence[Any]]) -> list[RunRow]:
    return [read_run(row) for row in found]


def find_due(
    connection: Connection,
    namespace: str,
    known: Known,
    limit: int,
    *,
    alone: bool = False,
    urgent: bool = False,
    by_age: bool = False,
    patient: bool = False,
) -> list[Wake]:
    """Find runs that are due and that no message woke, and lock them for a claim in this transaction.

    Returns the most urgent among the ``WINDOW`` that have waited longest: sorting all of a million would cost more than
    executing the runs. ``urgent``: only runs with a priority. ``by_age``: those that have waited longest, whatever
    their priority; workers ask for these now and then, so that low priorities do not starve. ``patient``: there is a
    backlog of messages, so a missing one is late, not lost, and its run is left to it for ``BACKLOG`` seconds more.
    """
    given = {"namespace": namespace, "known": _format(known), "limit": limit, "window": max(limit, WINDOW)}
    found = _execute(connection, _find_due(alone, urgent, by_age, patient), given)
    return [(RunId(run), str(wake)) for run, wake in found]


def read_due(store: Store, namespace: str, known: Known, *, patient: bool = False) -> Due:
    """Return when work is due; reads only. ``patient`` as for ``find_due``."""
    given = json.dumps({"namespace": namespace, "known": _format(known)})
    ((((left, urgent, alone),),)) = (store.query([(_MISSED if patient else _DUE, given)])[0],)
    return Due(None if left is None else float(left), bool(urgent), bool(alone))


def _format(known: Known) -> list[str]:
    return [f"{flow}@{version}" for flow, version in known]


def _execute(connection: Connection, words: PreparedQuery, given: dict[str, Any]) -> Any:
    """Execute a statement in a transaction that the caller has begun."""
    statement = words.postgresql if connection.dialect.name == "postgresql" else words.sqlite
    return connection.exec_driver_sql(statement, (json.dumps(given),))


def _words(text: str, **parts: str) -> PreparedQuery:
    """Format a statement for both databases; ``given`` is the CTE of its input."""
    return PreparedQuery(text.format(**_POSTGRESQL, **parts), text.format(**_SQLITE, **parts))


_POSTGRESQL = {
    "given": "given AS MATERIALIZED (SELECT %s::json AS all_of_it)",
    "namespace": "(SELECT all_of_it ->> 'namespace' FROM given)",
    "worker": "(SELECT all_of_it ->> 'worker' FROM given)",
    "is_alone": "(SELECT (all_of_it ->> 'alone')::bool FROM given)",
    "is_timed": "(SELECT (all_of_it ->> 'timed')::bool FROM given)",
    "limit": "(SELECT (all_of_it ->> 'limit')::int FROM given)",
    "window": "(SELECT (all_of_it ->> 'window')::int FROM given)",
    "is_known": "(r.flow || '@' || r.version) "
    "= ANY (ARRAY(SELECT json_array_elements_text(all_of_it -> 'known') FROM given))",
    "wakes": "SELECT w ->> 0 AS run, w ->> 1 AS wake FROM given, json_array_elements(all_of_it -> 'wakes') AS w",
    # For the planner, which expects an array to be short: the rows are looked up by id, whatever it thinks of a join.
    "is_named": "r.id = ANY (ARRAY(SELECT w ->> 0 FROM given, json_array_elements(all_of_it -> 'wakes') AS w))",
    "now": "statement_timestamp()",
    "soon": f"statement_timestamp() + interval '{EARLY} seconds'",
    "earlier": f"statement_timestamp() - interval '{BACKLOG} seconds'",
    # Seconds are subtracted: PostgreSQL subtracts no infinite times, and one damaged row would stop all timers.
    "left": "extract(epoch FROM min(sweep_at))::float8 - extract(epoch FROM statement_timestamp())::float8",
    "locked": "FOR UPDATE OF r SKIP LOCKED",
}
_SQLITE = {
    "given": "given AS MATERIALIZED (SELECT ? AS all_of_it)",
    "namespace": "(SELECT json_extract(all_of_it, '$.namespace') FROM given)",
    "worker": "(SELECT json_extract(all_of_it, '$.worker') FROM given)",
    "is_alone": "(SELECT json_extract(all_of_it, '$.alone') FROM given)",
    "is_timed": "(SELECT json_extract(all_of_it, '$.timed') FROM given)",
    "limit": "(SELECT json_extract(all_of_it, '$.limit') FROM given)",
    "window": "(SELECT json_extract(all_of_it, '$.window') FROM given)",
    "is_known": "(r.flow || '@' || r.version) IN (SELECT k.value FROM given, json_each(all_of_it, '$.known') AS k)",
    "wakes": "SELECT json_extract(w.value, '$[0]') AS run, json_extract(w.value, '$[1]') AS wake "
    "FROM given, json_each(all_of_it, '$.wakes') AS w",
    "is_named": "true",
    "now": SQLITE_NOW,
    "soon": f"{SQLITE_NOW} + {EARLY}",
    "earlier": f"{SQLITE_NOW} - {BACKLOG}",
    "left": f"min(sweep_at) - {SQLITE_NOW}",
    "locked": "",
}


def _are(*values: Status | FaultState) -> str:
    return ", ".join(f"'{value.value}'" for value in values)


#: Several branches of a run may be in their ladders at once, but ``wake_id`` names one wake only. So any of its faults
#: that was decided about wakes it too, unless it is parked or suspended: then it awaits a person's order. A final one
#: does so only until the journal shows it: its message may be sent again by others with access to the broker.
_CALLED = f"""
    r.wake_id IS NOT NULL
    AND r.status IN ({_are(*GOING, Status.COMPENSATING)})
    AND EXISTS (SELECT 1 FROM {faults.name} AS f WHERE f.id = w.wake AND f.run_id = w.run
        AND (f.state = '{FaultState.WAITING.value}' OR f.state = '{FaultState.FINAL.value}' AND f.settled_at IS NULL))
"""
#: A message may arrive too early: others with access to the broker can publish it, and a queue may have been given a
#: shorter time to live. Then a ladder of an hour would take a second, and a run that is to begin at night would begin
#: at once. The timer claims the run when due.
_IS_EARLY = f"""
    (r.started_at IS NULL AND r.due_at > {{soon}}
    OR EXISTS (SELECT 1 FROM {faults.name} AS f WHERE f.id = w.wake AND f.run_id = w.run
        AND f.state = '{FaultState.WAITING.value}' AND f.due_at > {{soon}}))
"""
#: An ended run is claimed only for a late effect or order, and keeps its end. The lease is checked too: if others have
#: ended it, they would rescue what this worker claims, again and again. The namespace is not compared as it is, or
#: SQLite would scan that index instead of looking the ids up.
_CLAIM = _words(
    f"""
WITH {{given}}
UPDATE {runs.name} AS r SET
    worker_id = {{worker}}, epoch = r.epoch + 1, wake_id = NULL, due_at = NULL, sweep_at = NULL, reason = NULL,
    started_at = coalesce(r.started_at, {{now}}), updated_at = {{now}},
    status = CASE WHEN r.ended_as IS NOT NULL THEN r.ended_as
        WHEN r.cause IS NOT NULL THEN '{Status.COMPENSATING.value}' ELSE '{Status.RUNNING.value}' END
FROM ({{wakes}} ORDER BY run) AS w
WHERE {{is_named}} AND r.id = w.run AND (r.wake_id = w.wake OR ({_CALLED}))
    AND r.namespace || '' = {{namespace}} AND r.worker_id IS NULL AND {{is_known}}
    AND (r.deaths >= {MOST_SHARED_DEATHS}) = {{is_alone}} AND ({{is_timed}} OR NOT {_IS_EARLY})
    AND EXISTS (SELECT 1 FROM {workers.name} AS o
        WHERE o.id = {{worker}} AND o.stopped_at IS NULL AND o.expires_at > {{now}})
RETURNING {{columns}}
""",
    columns=", ".join(NAMES),
)

_WAITS = "r.namespace = {namespace} AND r.worker_id IS NULL AND r.wake_id IS NOT NULL AND {is_known}"
_SOLITARY = f"r.deaths >= {MOST_SHARED_DEATHS}"

#: Only the timer wakes it, or its message is later than any backlog explains.
_IS_MISSED = "(r.sweep_at <= r.due_at OR r.sweep_at <= {earlier})"


def _due_query(patient: bool) -> PreparedQuery:
    # Of those that have waited longest, as for a claim: looking at all of them would cost too much.
    first = f"""SELECT r.sweep_at, r.due_at FROM {runs.name} AS r
        WHERE {_WAITS} AND r.sweep_at IS NOT NULL AND NOT {_SOLITARY} ORDER BY r.sweep_at LIMIT"""
    wanted = f"{first} {WINDOW}) AS r WHERE {_IS_MISSED}" if patient else f"{first} 1) AS r"
    return _words(f"""
WITH {{given}}
SELECT
    (SELECT {{left}} FROM ({wanted}),
    EXISTS (SELECT 1 FROM {runs.name} AS r
        WHERE {_WAITS} AND r.sweep_at <= {{now}} AND r.priority > 0 AND NOT {_SOLITARY}),
    EXISTS (SELECT 1 FROM {runs.name} AS r WHERE {_WAITS} AND r.sweep_at <= {{now}} AND {_SOLITARY})
""")


_DUE, _MISSED = _due_query(patient=False), _due_query(patient=True)


@cache
def _find_due(alone: bool, urgent: bool, by_age: bool, patient: bool) -> PreparedQuery:
    wanted = (_SOLITARY if alone else f"NOT {_SOLITARY}") + (" AND r.priority > 0" if urgent else "")
    missed = f"AND {_IS_MISSED}" if patient else ""
    first = "w.sweep_at" if by_age else "w.priority DESC, w.sweep_at"
    return _words(f"""
WITH {{given}}, waiting AS (
    SELECT r.id, r.priority, r.sweep_at FROM {runs.name} AS r
    WHERE {_WAITS} AND r.sweep_at <= {{now}} AND {wanted} ORDER BY r.sweep_at LIMIT {{window}}
)
SELECT r.id, r.wake_id FROM {runs.name} AS r JOIN waiting AS w ON w.id = r.id
WHERE r.worker_id IS NULL AND r.wake_id IS NOT NULL {missed}
ORDER BY {first} LIMIT {{limit}} {{locked}}
""")
