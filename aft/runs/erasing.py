"""Erasing what runs were given, made and said, of a person for example; that they ran stays known.

A family is erased as a whole, once all of it has ended: arguments, results, tags, signals, and the texts of failures.
What is left is a skeleton: ids, flows, steps, states, times. Nothing of such a run can be undone any more.

Who may run at the same time: others who order something of a run of the family. Its rows are locked first, all of them
in the order of their ids, then looked at; whoever comes second finds it erased, or not ended. One transaction: all is
erased, or nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, select, update

from aft.errors import OrderRefused
from aft.ids import RunId
from aft.runs import audit
from aft.runs.notices import NoticeState
from aft.runs.orders import Person
from aft.runs.rows import COLUMNS, RunRow, from_row
from aft.runs.states import FrameState
from aft.store.moments import now
from aft.store.tables import faults, frames, inbox, journal, late_effects, notices, plans, runs

#: What stands for what was erased, in each table that belongs to runs.
_ERASED: dict[Table, dict[str, Any]] = {
    journal: {"args": None, "asked": None, "value": None},
    frames: {"args": None, "value": None, "note": None},
    faults: {
        "message": "",
        "args": "[]",
        "attributes": "{}",
        "exact": False,
        "traceback": "",
        "verdict": None,
        "step": None,
        "decision": None,
        "run_tags": None,
        "ruling": None,
    },
    inbox: {"payload": "{}", "key": None, "note": None},
    late_effects: {"args": "{}", "value": "null"},
    notices: {"body": "{}", "note": None},
    plans: {"facts": "{}", "note": None},
}
#: What has to be settled before: what is looked for, in which state, and how it is told.
_UNSETTLED = (
    (late_effects, "open", "has an effect that arrived late and is not settled"),
    (notices, NoticeState.OPEN.value, "has a notice that was not heard yet"),
    (plans, "open", "has an exlet that is being carried out"),
)
_OF_RUN = {"args": "{}", "first_args": None, "defaulted": None, "result": None, "reason": None, "tags": None}


def erase(connection: Connection, run: RunRow, by: Person) -> list[RunId]:
    """Erase the family of a run; returns whom. Raises OrderRefused if something of it has not come to rest."""
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
    for run_id in ids:
        audit.write(connection, run_id, by.name, "forget", by.note)
    return ids


def _lock(connection: Connection, run: RunRow) -> list[RunRow]:
    of_family = select(*COLUMNS).where(runs.c.root_id == run.root_id).order_by(runs.c.id).with_for_update()
    return [from_row(row) for row in connection.execute(of_family)]


def _find_objection(connection: Connection, run: RunRow) -> str | None:
    """Return what keeps a run from being erased; None: nothing."""
    if not run.status.ended or run.worker_id is not None or run.wake_id is not None:
        return f"is {run.status.value}"
    for table, state, what in _UNSETTLED:
        of_run = select(table.c.id).where(table.c.run_id == run.id, table.c.state == state)
        if connection.execute(of_run.limit(1)).first() is not None:
            return what
    return None
