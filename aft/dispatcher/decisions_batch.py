"""Writes plain decisions (retry after a wait, give up, park), many of them in one statement.

Who may run at the same time: other dispatchers with the same faults, owners of their runs, people. The statement locks
the runs in the order of their ids, then the faults in theirs, and checks both again; it writes only decisions whose run
and fault have not changed since. So two dispatchers cannot deadlock, and the second one finds nothing to do. It is one
statement and so one transaction: a crash leaves all of the batch or nothing, each decision with its message.

It writes what ``dispatcher.decisions_single`` writes one by one, in the order of the faults' ids: a run with several
decided faults is due at the earliest of their times, with the first fault as its wake id, unless one of them parks it.

A run with an unread order is not parked here (see ``runs.park``): its fault stays open, for the caller to decide one by
one. The statement sees the inbox as it was when it began, and may have waited for the lock on the run's row since: so
it does not park a run either whose inbox has grown meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aft.dispatcher.decide import Decision
from aft.dispatcher.decisions_single import message_of, reason, ruling_of, state_of
from aft.dispatcher.route import GiveUp, ParkRun, RetryLater
from aft.fault import FaultState
from aft.runs.records.inbox import HAS_NEW_ORDER
from aft.runs.states import Status, sources
from aft.store.batch.committer import Executor
from aft.store.batch.row_format import as_json
from aft.store.db_time import SQLITE_NOW
from aft.store.outbox import HOLD, OutboxRow
from aft.store.postgres.libpq import Parameters
from aft.store.tables import faults, outbox, runs


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """A decision as data. ``wait``: seconds until its run is due; ``slack``: from then until the timer claims it.

    ``body`` is its message, None if it publishes none; ``address`` is its queue with the run's key.
    """

    fault: str
    run: str
    epoch: int
    namespace: str
    state: str
    queue: str | None
    why: str
    decision: str | None
    level: int | None = None
    try_in_level: int | None = None
    wait: float | None = None
    slack: float = 0.0
    ruling: str | None = None
    reason: str | None = None
    address: str | None = None
    body: str | None = None


def is_plain(decision: Decision) -> bool:
    """Return whether a decision can be written together with others."""
    chosen = decision.route
    if isinstance(chosen, RetryLater):
        return chosen.wait is not None and chosen.signal is None
    return isinstance(chosen, GiveUp | ParkRun)


def to_batch(decision: Decision, namespace: str, grace: float, at: datetime) -> BatchDecision:
    """Return the data of a plain decision."""
    fault, chosen, made = decision.fault, decision.route, decision.judgement.decision
    message = message_of(decision, at)
    more: dict[str, Any] = {}
    if isinstance(chosen, RetryLater):
        assert chosen.wait is not None
        more = {
            "level": chosen.level,
            "try_in_level": chosen.try_in_level,
            "wait": chosen.wait.total_seconds(),
            # Without a queue the timer is the way back; with one it comes in only if the message does not.
            "slack": 0.0 if decision.queue is None else grace,
            "ruling": ruling_of(fault),
        }
    elif isinstance(chosen, GiveUp):
        more = {"wait": 0.0, "slack": grace}
    elif isinstance(chosen, ParkRun):
        more = {"reason": reason(fault, chosen)}
    return BatchDecision(
        fault=fault.id,
        run=fault.run_id,
        epoch=fault.epoch,
        namespace=namespace,
        state=state_of(chosen).value,
        queue=decision.queue,
        why=chosen.why,
        decision=None if made is None else made.encode(),
        address=None if message is None else message[0],
        body=None if message is None else message[1],
        **more,
    )


def written(plain: Sequence[BatchDecision], answers: Sequence[Sequence[Any] | None]) -> list[OutboxRow]:
    """Return the messages that were written with these decisions."""
    rows: list[OutboxRow] = []
    for one, answer in zip(plain, answers, strict=True):
        if answer is not None and answer[0] is not None and one.address is not None and one.body is not None:
            rows.append(OutboxRow(int(answer[0]), one.address, one.body))
    return rows


class _Decides:
    """Writes plain decisions. The answer to each is a row with its message's id, which is None if it has no message.

    A decision that was not written has no answer.
    """

    def for_postgresql(self, items: Sequence[BatchDecision]) -> tuple[str, Parameters]:
        return _POSTGRESQL, [as_json([{"place": place, **_fields(item)} for place, item in enumerate(items)])]

    def write_sqlite(self, connection: Executor, items: Sequence[BatchDecision]) -> list[Any]:
        named = json.dumps([{"fault": i.fault, "epoch": i.epoch, "parks": i.reason is not None} for i in items])
        still = {row[0] for row in connection.execute(_STILL_OPEN, (named,))}
        taken = [_fields(item) for item in sorted(items, key=lambda item: item.fault) if item.fault in still]
        for item in taken:
            connection.execute(_MARK, item)
        for item in taken:
            connection.execute(_PARK if item["reason"] is not None else _WAKE, item)
        numbers = {item["fault"]: _post(connection, item) for item in taken}
        return [(numbers[item.fault],) if item.fault in still else None for item in items]


def _fields(item: BatchDecision) -> dict[str, Any]:
    return {name: getattr(item, name) for name in BatchDecision.__slots__}


#: Decides plainly; to be given to ``Store.write_now``.
DECIDES = _Decides()


def _post(connection: Executor, item: dict[str, Any]) -> int | None:
    return None if item["body"] is None else connection.execute(_POST, item).lastrowid


_OPEN, _WAITING, _PARKED = FaultState.OPEN.value, FaultState.WAITING.value, FaultState.PARKED.value
#: States from which a run may be parked, and in which only a person lets it go on.
_PARKABLE = ", ".join(f"'{status.value}'" for status in sources(Status.PARKED))
_STOPPED = f"'{Status.PARKED.value}', '{Status.SUSPENDED.value}'"

#: Not the state alone is asked for: there is an index of all open faults, which may be many, and it must not be gone
#: through. Messages get their numbers before they are written: looking for them after would cost more than they do.
_POSTGRESQL = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS g (
        place int, fault text, run text, epoch bigint, namespace text, state text, queue text, why text,
        decision text, level int, try_in_level int, wait float8, slack float8, ruling text, reason text, address text,
        body text
    )
), held AS (
    SELECT r.id, r.epoch, r.status, r.tags, r.inbox_seq
    FROM {runs.name} AS r JOIN (SELECT DISTINCT run FROM given) AS g ON r.id = g.run
    WHERE r.worker_id IS NULL ORDER BY r.id FOR UPDATE OF r
), still AS (
    SELECT g.*, held.status AS run_status, held.tags AS run_tags
    FROM given AS g JOIN held ON held.id = g.run AND held.epoch = g.epoch
    JOIN {faults.name} AS f ON f.id = g.fault AND f.run_id = g.run AND f.epoch = g.epoch
    WHERE f.state || '' = '{_OPEN}' AND (g.reason IS NULL OR (
        NOT {HAS_NEW_ORDER.format(run="g.run")}
        AND held.inbox_seq = (SELECT seen.inbox_seq FROM {runs.name} AS seen WHERE seen.id = g.run)
    ))
    ORDER BY f.run_id, f.id FOR UPDATE OF f
), numbered AS MATERIALIZED (
    SELECT place, namespace, address, body,
        CASE WHEN body IS NOT NULL THEN nextval(pg_get_serial_sequence('{outbox.name}', 'id')) END AS number
    FROM still
), marked AS (
    UPDATE {faults.name} AS f SET
        state = s.state, queue = s.queue, why = s.why, decided_at = statement_timestamp(),
        decision = coalesce(s.decision, f.decision), run_status = s.run_status, run_tags = s.run_tags,
        level = CASE WHEN s.state = '{_WAITING}' THEN s.level ELSE f.level END,
        try_in_level = CASE WHEN s.state = '{_WAITING}' THEN s.try_in_level ELSE f.try_in_level END,
        wait_seconds = CASE WHEN s.state = '{_WAITING}' THEN s.wait ELSE f.wait_seconds END,
        ruling = CASE WHEN s.state = '{_WAITING}' THEN s.ruling ELSE f.ruling END,
        due_at = CASE WHEN s.state = '{_WAITING}'
            THEN statement_timestamp() + make_interval(secs => s.wait) ELSE f.due_at END
    FROM still AS s WHERE f.id = s.fault
), together AS (
    SELECT run, min(fault) FILTER (WHERE reason IS NULL) AS first, min(wait) AS wait, min(wait + slack) AS sweep,
        (array_agg(reason ORDER BY fault DESC) FILTER (WHERE reason IS NOT NULL))[1] AS reason
    FROM still GROUP BY run
), changed AS (
    UPDATE {runs.name} AS r SET
        status = CASE WHEN t.reason IS NULL THEN r.status ELSE '{_PARKED}' END,
        reason = coalesce(t.reason, r.reason),
        wake_id = CASE WHEN t.reason IS NULL THEN coalesce(r.wake_id, t.first) END,
        due_at = CASE WHEN t.reason IS NULL
            THEN least(r.due_at, statement_timestamp() + make_interval(secs => t.wait), r.deadline_at) END,
        sweep_at = CASE WHEN t.reason IS NULL THEN least(r.sweep_at, r.deadline_at, statement_timestamp()
            + make_interval(secs => CASE WHEN r.priority > 0 THEN t.wait ELSE t.sweep END)) END,
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
    AND NOT (json_extract(g.value, '$.parks') AND {HAS_NEW_ORDER.format(run="f.run_id")})
"""
_MARK = f"""
UPDATE {faults.name} SET
    state = :state, queue = :queue, why = :why, decided_at = {SQLITE_NOW},
    decision = coalesce(:decision, decision),
    run_status = (SELECT status FROM {runs.name} WHERE id = :run),
    run_tags = (SELECT tags FROM {runs.name} WHERE id = :run),
    level = CASE WHEN :state = '{_WAITING}' THEN :level ELSE level END,
    try_in_level = CASE WHEN :state = '{_WAITING}' THEN :try_in_level ELSE try_in_level END,
    wait_seconds = CASE WHEN :state = '{_WAITING}' THEN :wait ELSE wait_seconds END,
    ruling = CASE WHEN :state = '{_WAITING}' THEN :ruling ELSE ruling END,
    due_at = CASE WHEN :state = '{_WAITING}' THEN {SQLITE_NOW} + :wait ELSE due_at END
WHERE id = :fault
"""
_WAKE = f"""
UPDATE {runs.name} SET
    wake_id = coalesce(wake_id, :fault),
    due_at = min({SQLITE_NOW} + :wait, coalesce(due_at, 9e99), coalesce(deadline_at, 9e99)),
    sweep_at = min({SQLITE_NOW} + :wait + CASE WHEN priority > 0 THEN 0 ELSE :slack END,
        coalesce(sweep_at, 9e99), coalesce(deadline_at, 9e99)),
    updated_at = {SQLITE_NOW}
WHERE id = :run AND status NOT IN ({_STOPPED})
"""
_PARK = f"""
UPDATE {runs.name} SET
    status = '{_PARKED}', reason = :reason, wake_id = NULL, due_at = NULL, sweep_at = NULL, updated_at = {SQLITE_NOW}
WHERE id = :run AND status IN ({_PARKABLE})
"""
_POST = f"""
INSERT INTO {outbox.name} (namespace, queue, body, taken_until)
VALUES (:namespace, :address, :body, {SQLITE_NOW} + {HOLD})
"""
