"""Reports runs that have exceeded their expected time, each at most once.

Who may run at the same time: any number of sweepers, and the runs' owners. A sweeper clears ``overdue_at`` in the row,
and emits the event after the commit; rows that another one has locked are skipped, and found cleared afterwards. Epoch
and sequence number are not changed, so no owner is fenced by this. A crash between the commit and the event loses the
event; ``aft runs list --overdue`` still shows the run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select, update

from aft.runs.run_rows import has_ended
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import now
from aft.store.tables import runs
from aft.telemetry import RunOverdue


def take_overdue(connection: Connection, namespace: str, limit: int) -> list[RunOverdue]:
    """Take up to ``limit`` overdue runs and return the events to emit; those that have ended are left out."""
    past = (
        _past(namespace, runs.c.id, runs.c.flow, runs.c.expected_seconds, has_ended().label("ended"))
        .order_by(runs.c.overdue_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = connection.execute(past).all()
    if found:
        ids = [row.id for row in found]
        connection.execute(update(runs).where(runs.c.id.in_(ids)).values(overdue_at=None))
    return [
        RunOverdue(run=row.id, flow=row.flow, expected=_read_seconds(row.expected_seconds))
        for row in found
        if not row.ended
    ]


def _read_seconds(seconds: float | None) -> timedelta:
    """Read a duration; of a row that was damaged none, so that the other runs are reported."""
    try:
        return timedelta(seconds=seconds or 0)
    except (ValueError, OverflowError):
        return timedelta(0)


def _past(namespace: str | ColumnElement[str], *columns: ColumnElement[Any]) -> Select[Any]:
    return select(*columns).where(runs.c.namespace == namespace, runs.c.overdue_at <= now())


#: Whether there may be a run to report in a namespace.
ANY_OVERDUE = PreparedQuery.of(_past(GIVEN, runs.c.id).limit(1))
