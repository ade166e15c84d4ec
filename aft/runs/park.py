"""Parks a run without an owner: for a decision about one of its faults, or for a late effect.

An order may have been accepted before, while the run was still going on: it wakes the parked run at once, and the next
owner reads it. So no accepted order is lost because its run was parked first.

Who may run at the same time: senders of orders, who lock the run's row before they write to its inbox. The caller has
locked it in an earlier statement: orders sent until then are seen here, and later ones find the run parked.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, update

from aft.ids import RunId
from aft.runs.records import inbox
from aft.runs.states import Status, sources
from aft.store.db_time import now
from aft.store.tables import runs


def park(connection: Connection, run_id: RunId, reason: str, *of: ColumnElement[bool]) -> bool:
    """Park a run without an owner, whose row is locked; an order that no owner has seen wakes it at once.

    Returns False, and changes nothing, if its state has no edge to ``parked``, or a condition in ``of`` is false.
    """
    order = inbox.find_new_order(connection, run_id)
    at = None if order is None else now()
    changes: dict[str, Any] = {"wake_id": order, "due_at": at, "sweep_at": at, "updated_at": now()}
    allowed = runs.c.status.in_([source.value for source in sources(Status.PARKED)])
    statement = update(runs).where(runs.c.id == run_id, runs.c.worker_id.is_(None), allowed, *of)
    parked = statement.values(status=Status.PARKED.value, reason=reason, **changes)
    return bool(connection.execute(parked).rowcount)
