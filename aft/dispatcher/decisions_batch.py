"""Writes decisions about faults, any number of them in one statement.

Who may run at the same time: other dispatchers with the same faults, owners of their runs, people. The statement locks
the runs in the order of their ids, then the faults in theirs, and checks both again; it writes only decisions whose run
and fault have not changed since. So two dispatchers cannot deadlock, and the second one finds nothing to do. It is one
statement: a crash leaves all of the batch or nothing, each decision with its message. Alone it is a transaction; what
needs more than this statement has it executed in its own (``dispatcher.decisions_single``).

A run with several decided faults is due at the earliest of their times, with the first fault as its wake id, unless one
of them parks it. An order that no owner has looked at wakes a run that is parked at once (see ``runs.park``). The
statement sees the inbox as it was when it began, and may have waited for the lock on the run's row since: so it does
not park a run whose inbox has grown meanwhile. Its fault stays open, for the caller to lock both rows first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aft.fault import FaultState
from aft.runs.records.inbox import NEW_ORDER
from aft.runs.states import Status, sources
from aft.store.batch.committer import Executor
from aft.store.batch.row_format import Fields, as_json
from aft.store.db_time import SQLITE_NOW
from aft.store.outbox import HOLD, PUT_SQLITE, OutboxRow
from aft.store.postgres.libpq import Parameters
from aft.store.tables import faults, outbox, runs


def written(rows: Sequence[Fields], answers: Sequence[Sequence[Any] | None]) -> list[OutboxRow]:
    """Return the messages that were written with these decisions."""
    return [
        OutboxRow(int(answer[0]), row["address"], row["body"])
        for row, answer in zip(rows, answers, strict=True)
        if answer is not None and answer[0] is not None
    ]


class _Decides:
    """Writes decisions, each as ``Decision.fields`` returns it; None answers one that was not written.

    The answer to any other is a row with its message's id, which is None if it has no message.
    """

    def for_postgresql(self, items: Sequence[Fields]) -> tuple[str, Parameters]:
        return _POSTGRESQL, [as_json([{"place": place, **item} for place, item in enumerate(items)])]

    def write_sqlite(self, connection: Executor, items: Sequence[Fields]) -> list[Any]:
        named = json.dumps([{"fault": item["fault"], "epoch": item["epoch"]} for item in items])
        still = {row[0] for row in connection.execute(_STILL_OPEN, (named,))}
        taken = [item for item in sorted(items, key=lambda item: item["fault"]) if item["fault"] in still]
        for item in taken:
            connection.execute(_MARK, item)
        for item in taken:
            connection.execute(_PARK if item["reason"] is not None else _WAKE, item)
        numbers = {item["fault"]: _post(connection, item) for item in taken}
        return [(numbers[item["fault"]],) if item["fault"] in still else None for item in items]


#: Writes decisions; to be given to ``Store.write_now``, or to ``write_within`` in a transaction.
DECIDES = _Decides()


def _post(connection: Executor, item: Fields) -> int | None:
    if item["body"] is None:
        return None
    posted = connection.execute(PUT_SQLITE, (item["namespace"], item["address"], item["body"], HOLD))
    return int(posted.fetchall()[0][0])


_OPEN = FaultState.OPEN.value
_PARKED = Status.PARKED.value
#: States from which a run may be parked, and in which only a person lets it go on.
_PARKABLE = ", ".join(f"'{status.value}'" for status in sources(Status.PARKED))
_STOPPED = f"'{_PARKED}', '{Status.SUSPENDED.value}'"

#: Not the state alone is asked for: there is an index of all open faults, which may be many, and it must not be gone
#: through. Messages get their numbers before they are written: looking for them after would cost more than they do.
_POSTGRESQL = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS g (
        place int, fault text, run text, epoch bigint, namespace text, state text, queue text, why text,
        decision text, tries_again boolean, level int, try_in_level int, wait float8, slack float8, ruling text,
        reason text, address text, body text
    )
), held AS (
    SELECT r.id, r.epoch, r.status, r.tags, r.inbox_seq
    FROM {runs.name} AS r JOIN (SELECT DISTINCT run FROM given) AS g ON r.id = g.run
    WHERE r.worker_id IS NULL ORDER BY r.id FOR UPDATE OF r
), still AS (
    SELECT g.*, held.status AS run_status, held.tags AS run_tags,
        CASE WHEN g.reason IS NOT NULL THEN {NEW_ORDER.format(run="g.run")} END AS new_order
    FROM given AS g JOIN held ON held.id = g.run AND held.epoch = g.epoch
    JOIN {faults.name} AS f ON f.id = g.fault AND f.run_id = g.run AND f.epoch = g.epoch
    WHERE f.state || '' = '{_OPEN}' AND (
        g.reason IS NULL
        OR held.inbox_seq = (SELECT seen.inbox_seq FROM {runs.name} AS seen WHERE seen.id = g.run)
    )
    ORDER BY f.run_id, f.id FOR UPDATE OF f
), numbered AS MATERIALIZED (
    SELECT place, namespace, address, body,
        CASE WHEN body IS NOT NULL THEN nextval(pg_get_serial_sequence('{outbox.name}', 'id')) END AS number
    FROM still
), marked AS (
    UPDATE {faults.name} AS f SET
        state = s.state, queue = s.queue, why = s.why, decided_at = statement_timestamp(),
        decision = coalesce(s.decision, f.decision), run_status = s.run_status, run_tags = s.run_tags,
        level = CASE WHEN s.tries_again THEN s.level ELSE f.level END,
        try_in_level = CASE WHEN s.tries_again THEN s.try_in_level ELSE f.try_in_level END,
        wait_seconds = CASE WHEN s.tries_again THEN s.wait ELSE f.wait_seconds END,
        ruling = CASE WHEN s.tries_again THEN s.ruling ELSE coalesce(s.ruling, f.ruling) END,
        due_at = CASE WHEN s.tries_again OR s.ruling IS NOT NULL
            THEN statement_timestamp() + make_interval(secs => s.wait) ELSE f.due_at END
    FROM still AS s WHERE f.id = s.fault
), together AS (
    SELECT run, min(fault) FILTER (WHERE reason IS NULL) AS first, min(wait) AS wait, min(wait + slack) AS sweep,
        (array_agg(reason ORDER BY fault DESC) FILTER (WHERE reason IS NOT NULL))[1] AS reason,
        max(new_order) AS new_order
    FROM still GROUP BY run
), changed AS (
    UPDATE {runs.name} AS r SET
        status = CASE WHEN t.reason IS NULL THEN r.status ELSE '{_PARKED}' END,
        reason = coalesce(t.reason, r.reason),
        wake_id = CASE WHEN t.reason IS NULL THEN coalesce(r.wake_id, t.first) ELSE t.new_order END,
        due_at = CASE WHEN t.reason IS NULL
            THEN least(r.due_at, statement_timestamp() + make_interval(secs => t.wait), r.deadline_at)
            WHEN t.new_order IS NOT NULL THEN statement_timestamp() END,
        sweep_at = CASE WHEN t.reason IS NULL THEN least(r.sweep_at, r.deadline_at, statement_timestamp()
            + make_interval(secs => CASE WHEN r.priority > 0 THEN t.wait ELSE t.sweep END))
            WHEN t.new_order IS NOT NULL THEN statement_timestamp() END,
        updated_at = statement_timestamp()
    FROM together AS t WHERE r.id = t.run
        AND CASE WHEN t.reason IS NULL THEN r.status NOT IN ({_STOPPED}) ELSE r.status IN ({_PARKABLE}) END
), posted AS (
    INSERT INTO {outbox.name} (id, namespace, queue, body, taken_until)
    SELECT number, namespace, address, body, statement_timestamp() + make_interval(secs => {HOLD})
    FROM numbered WHERE number IS NOT NULL
)
SELECT place, number FROM numbered
"""

_STILL_OPEN = f"""
SELECT f.id FROM json_each(?) AS g
JOIN {faults.name} AS f ON f.id = json_extract(g.value, '$.fault') AND f.epoch = json_extract(g.value, '$.epoch')
JOIN {runs.name} AS r ON r.id = f.run_id AND r.epoch = f.epoch
WHERE f.state || '' = '{_OPEN}' AND r.worker_id IS NULL
"""
_MARK = f"""
UPDATE {faults.name} SET
    state = :state, queue = :queue, why = :why, decided_at = {SQLITE_NOW},
    decision = coalesce(:decision, decision),
    run_status = (SELECT status FROM {runs.name} WHERE id = :run),
    run_tags = (SELECT tags FROM {runs.name} WHERE id = :run),
    level = CASE WHEN :tries_again THEN :level ELSE level END,
    try_in_level = CASE WHEN :tries_again THEN :try_in_level ELSE try_in_level END,
    wait_seconds = CASE WHEN :tries_again THEN :wait ELSE wait_seconds END,
    ruling = CASE WHEN :tries_again THEN :ruling ELSE coalesce(:ruling, ruling) END,
    due_at = CASE WHEN :tries_again OR :ruling IS NOT NULL THEN {SQLITE_NOW} + :wait ELSE due_at END
WHERE id = :fault
"""
_WAKE = f"""
UPDATE {runs.name} SET
    wake_id = coalesce(wake_id, :fault),
    due_at = nullif(
        min(coalesce({SQLITE_NOW} + :wait, 9e99), coalesce(due_at, 9e99), coalesce(deadline_at, 9e99)), 9e99),
    sweep_at = nullif(
        min(coalesce({SQLITE_NOW} + :wait + CASE WHEN priority > 0 THEN 0 ELSE :slack END, 9e99),
            coalesce(sweep_at, 9e99), coalesce(deadline_at, 9e99)), 9e99),
    updated_at = {SQLITE_NOW}
WHERE id = :run AND status NOT IN ({_STOPPED})
"""
_PARK = f"""
UPDATE {runs.name} SET
    status = '{_PARKED}', reason = :reason, wake_id = o.id, due_at = CASE WHEN o.id IS NOT NULL THEN {SQLITE_NOW} END,
    sweep_at = CASE WHEN o.id IS NOT NULL THEN {SQLITE_NOW} END, updated_at = {SQLITE_NOW}
FROM (SELECT {NEW_ORDER.format(run=":run")} AS id) AS o
WHERE {runs.name}.id = :run AND status IN ({_PARKABLE})
"""
