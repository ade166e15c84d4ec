"""Erases the values of a family of runs, for example personal data, and keeps the record that they ran.

A family is erased as a whole, once all of it has ended: arguments, results, tags, signals, and the texts of failures.
Ids, flows, steps, states and times stay. Nothing of such a run can be undone any more.

Who may run at the same time: others who give orders to a run of the family. All its rows are locked first, in the order
of their ids, and then checked; the second one finds the family erased, or not ended. One transaction: all is erased, or
nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, delete, select, update

from aft.errors import OrderRefused
from aft.ids import RunId
from aft.runs.orders.actor import Actor
from aft.runs.records import audit
from aft.runs.records.notices import NoticeState
from aft.runs.run_rows import COLUMNS, RunRow, from_row, is_of_family
from aft.runs.states import FrameState
from aft.store.db_time import now
from aft.store.tables import (
    faults,
    frames,
    inbox,
    journal,
    late_effects,
    notices,
    operation_runs,
    plans,
    run_labels,
    runs,
)

#: The values that replace the erased ones, by table.
_ERASED: dict[Table, dict[str, Any]] = {
    journal: {"args": None, "asked": None, "value": None},
    frames: {"args": None, "value": None, "note": None},
    faults: {
        "message": "",
        "args": "[]",
        "attributes": "{}",
        "args_exact": False,
        "traceback": "",
        "why": None,
        "step_snapshot": None,
        "decision": None,
        "run_tags": None,
        "ruling": None,
        "signal": None,
        "resource": None,
    },
    inbox: {"payload": "{}", "key": None, "note": None},
    late_effects: {"args": "{}", "value": "null"},
    notices: {"body": "{}", "note": None},
    plans: {"facts": "{}", "note": None},
    operation_runs: {"note": None},
}
#: Open work that prevents erasing: its table, its state, and the text of the refusal.
_UNSETTLED = (
    (late_effects, "open", "has a late effect that nobody has decided about"),
    (notices, NoticeState.OPEN.value, "has a notice that was not heard yet"),
    (plans, "open", "has an exlet that is being carried out"),
)
_OF_RUN = {"args": "{}"} | dict.fromkeys(("first_args", "defaulted", "result", "reason", "tags", "resources"))


def erase(connection: Connection, run: RunRow, by: Actor) -> list[RunId]:
    """Erase the family of a run and return its ids. Raises OrderRefused for a child, or if any work of it is open."""
    if run.parent_id is not None:
        raise OrderRefused(f"run {run.id} is a child, and is forgotten with its whole family: name run {run.root_id}")
    family = _lock(connection, run)
    for each in family:
        if (objection := _find_objection(connection, each)) is not None:
            raise OrderRefused(f"run {each.id} {objection}; a run is forgotten once it and all below it have ended")
    ids = [each.id for each in family]  # also again: an effect may have arrived late, with its values
    for table, values in _ERASED.items():
        connection.execute(update(table).where(table.c.run_id.in_(ids)).values(**values))
    owed = (FrameState.OWED.value, FrameState.ARMED.value)
    kept = {"state": FrameState.KEPT.value, "settled_at": now()}
    connection.execute(update(frames).where(frames.c.run_id.in_(ids), frames.c.state.in_(owed)).values(**kept))
    connection.execute(update(runs).where(runs.c.id.in_(ids)).values(**_OF_RUN, erased_at=now(), updated_at=now()))
    connection.execute(delete(run_labels).where(run_labels.c.run_id.in_(ids)))
    for run_id in ids:
        audit.write(connection, run_id, by.name, "forget", by.note)
    return ids


def _lock(connection: Connection, run: RunRow) -> list[RunRow]:
    of_family = select(*COLUMNS).where(is_of_family(run.root_id)).order_by(runs.c.id).with_for_update()
    return [from_row(row) for row in connection.execute(of_family)]


def _find_objection(connection: Connection, run: RunRow) -> str | None:
    """Return why a run cannot be erased; None if it can."""
    if not run.status.ended or run.worker_id is not None or run.wake_id is not None:
        return f"is {run.status.value}"
    for table, state, what in _UNSETTLED:
        of_run = select(table.c.id).where(table.c.run_id == run.id, table.c.state == state)
        if connection.execute(of_run.limit(1)).first() is not None:
            return what
    return None
