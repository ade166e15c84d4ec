"""Telling of runs that have not ended in the time they were expected to take, each exactly once.

Who may run at the same time: any number of sweepers, and the runs' owners. A sweeper takes the moment off the row in
the transaction that tells of it; rows that another one holds are skipped, and found without that moment afterwards. The
owner's epoch and sequence are not touched, so nobody is fenced by this. A crash between the commit and the event loses
one telling; ``aft runs list --overdue`` still shows the run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select, update

from aft.runs.rows import has_ended
from aft.store.moments import now
from aft.store.tables import runs
from aft.telemetry import RunOverdue


def any_overdue(connection: Connection, namespace: str) -> bool:
    """Tell whether there may be something to tell: a look that locks nothing."""
    return connection.execute(_past(namespace, runs.c.id).limit(1)).first() is not None


def tell_overdue(connection: Connection, namespace: str, limit: int) -> list[RunOverdue]:
    """Take up to ``limit`` runs that are past their time and return what is to be told; one that has ended is not."""
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
        RunOverdue(run=row.id, flow=row.flow, expected=timedelta(seconds=row.expected_seconds))
        for row in found
        if not row.ended
    ]


def _past(namespace: str, *columns: ColumnElement[Any]) -> Select[Any]:
    return select(*columns).where(runs.c.namespace == namespace, runs.c.overdue_at <= now())
