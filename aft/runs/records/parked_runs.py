"""Writes a notice about each parked run: one for each time that it is parked.

A run's row says that it is parked, from the transaction that parks it: by its owner (a bug in the flow's code, a replay
that diverged, a failure after the pivot), by a decision about a fault, by an exlet, for a late effect. So no other
record is needed. A sweeper finds such runs and writes the notice and ``parked_told``, the epoch that was reported, in
one transaction: neither exists without the other.

Who may run at the same time: any number of sweepers, and people who give the run orders. Rows that another sweeper has
locked are skipped, and found reported afterwards. To leave ``parked`` a run must be claimed, which raises its epoch:
parked again, it is reported again. A crash before the commit leaves the run for the next round.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select, update

from aft.ids import RunId
from aft.runs.records import notices
from aft.runs.states import Status
from aft.security.redaction import redact
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.tables import runs
from aft.texts import shorten

#: Characters of the reason that a notice carries.
MOST_REASON = 2_000


def find_unreported(connection: Connection, namespace: str, limit: int) -> list[RunId]:
    """Return parked runs that have no notice yet; locks nothing."""
    return list(connection.execute(_unreported(namespace).limit(limit)).scalars())


def report(connection: Connection, namespace: str, run_id: RunId, url: str) -> bool:
    """Write the notice that a run is parked; False if another sweeper does so, or the run is not parked any more."""
    statement = _unreported(namespace, runs).where(runs.c.id == run_id).with_for_update(skip_locked=True)
    row = connection.execute(statement).one_or_none()
    if row is None:
        return False
    connection.execute(update(runs).where(runs.c.id == run_id).values(parked_told=row.epoch))
    notices.put(connection, namespace, run_id, url, _body(row))
    return True


def _unreported(namespace: str | ColumnElement[str], *columns: Any) -> Select[Any]:
    return select(*(columns or (runs.c.id,))).where(runs.c.namespace == namespace, _is_untold())


def _is_untold() -> ColumnElement[bool]:
    """Return the condition of the index ``ix_aft_runs_untold``: parked, without an order, and not reported since."""
    is_unreported = runs.c.parked_told.is_(None) | (runs.c.parked_told != runs.c.epoch)
    return (runs.c.status == Status.PARKED.value) & runs.c.wake_id.is_(None) & is_unreported


#: Whether a parked run in a namespace has no notice yet.
ANY_UNREPORTED = PreparedQuery.of(_unreported(GIVEN).limit(1))


def _body(row: Row[Any]) -> dict[str, Any]:
    """Return the notice's body; without arguments and results, which must not leave the system."""
    found = {
        "event": "parked",
        "run": row.id,
        "namespace": row.namespace,
        "flow": row.flow,
        "version": row.version,
        "key": row.key,
        "owner": row.owner,
        "reason": shorten(redact(row.reason or ""), MOST_REASON),
        "parked_at": row.updated_at.isoformat(),
    }
    return {name: value for name, value in found.items() if value is not None}
