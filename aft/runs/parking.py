"""Parking a run that nobody owns: by whoever decides about its faults, and for what arrived late.

An order may have come meanwhile, from somebody who saw the run going on: it wakes the run all the same, parked as it
is, and the next owner reads it. So no order that was accepted is lost because its run was parked first.

Who may run at the same time: senders of orders, who lock the run's row before they write to its inbox. Whoever parks
has locked it in a statement before this one: what was sent until then is seen here, and what is sent later finds the
run parked.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, update

from aft.ids import RunId
from aft.runs import inbox
from aft.runs.states import Status, sources
from aft.store.moments import now
from aft.store.tables import runs


def park(connection: Connection, run_id: RunId, reason: str, *of: ColumnElement[bool]) -> bool:
    """Park a run without an owner, whose row is locked; an order that no owner has looked at wakes it at once.

    Changes nothing, and returns False, if it may not be parked from the state it is in, or is not as ``of`` says.
    """
    order = inbox.find_new_order(connection, run_id)
    at = None if order is None else now()
    changes: dict[str, Any] = {"wake_id": order, "due_at": at, "sweep_at": at, "updated_at": now()}
    allowed = runs.c.status.in_([source.value for source in sources(Status.PARKED)])
    statement = update(runs).where(runs.c.id == run_id, runs.c.worker_id.is_(None), allowed, *of)
    parked = statement.values(status=Status.PARKED.value, reason=reason, **changes)
    return bool(connection.execute(parked).rowcount)
