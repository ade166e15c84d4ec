"""Parks a run without an owner: for a decision about one of its faults, or for a late effect.

An order may have been accepted before, while the run was still going on: it wakes the parked run at once, and the next
owner reads it. So no accepted order is lost because its run was parked first.

Who may run at the same time: senders of orders, who lock the run's row before they write to its inbox. The caller has
locked it in an earlier statement: orders sent until then are seen here, and later ones find the run parked.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, update

from aft.ids import RunId
from aft.runs.records import inbox
from aft.runs.states import Status, sources
from aft.store.db_time import now
from aft.store.leases import is_leased
from aft.store.tables import runs, workers

#: The greatest epoch that a run's row can hold: no owner can come after it.
LAST_EPOCH = 2**63 - 1
NO_EPOCH = (
    f"its epoch in the database is {LAST_EPOCH}, so that no worker can own it any more: somebody has written that; "
    "set it to what it was, or to the highest epoch of its faults and journal, then retry"
)


def park_unownable(connection: Connection, run_id: RunId) -> bool:
    """Park a run without an owner whose epoch cannot rise; no unread order wakes it, nor does anything but a new order.

    Returns False, and changes nothing, if its epoch can rise. To be tried again, it has to be mended first.
    """
    where = (runs.c.id == run_id, runs.c.worker_id.is_(None), runs.c.epoch == LAST_EPOCH)
    changes = {"status": Status.PARKED.value, "reason": NO_EPOCH, "wake_id": None, "due_at": None, "sweep_at": None}
    return bool(connection.execute(update(runs).where(*where).values(updated_at=now(), **changes)).rowcount)


def park_unrescuable(connection: Connection, run_id: RunId) -> bool:
    """Park a run as ``park_unownable`` does, after it is taken away from its owner, whose lease is over."""
    leased = exists().where(workers.c.id == runs.c.worker_id, is_leased())
    where = (runs.c.id == run_id, runs.c.epoch == LAST_EPOCH, ~leased)
    connection.execute(update(runs).where(*where).values(worker_id=None))
    return park_unownable(connection, run_id)


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
