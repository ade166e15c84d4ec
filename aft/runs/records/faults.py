"""The rows of faults: raised by the run's owner or a rescue, decided about by the dispatcher, read by all."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, select, update

from aft.errors import UnknownFault
from aft.fault import Fault, FaultKind, FaultState, Recoverability
from aft.ids import RunId
from aft.store import db_time
from aft.store.batch.row_format import has_part
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import now
from aft.store.tables import faults
from aft.texts import format_value, require_text

#: The columns of a fault's row, in the order in which they are read where a statement is written out.
NAMES = tuple(column.name for column in faults.columns)
#: States of a fault that still determines what its step does next.
LIVE = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.FINAL, FaultState.PARKED)
#: Those of them that are closed when their run ends.
UNRESOLVED = [state.value for state in LIVE if state is not FaultState.FINAL]
#: The faults of several runs that are in a live state, each run's oldest first.
LIVE_OF_RUNS = PreparedQuery.about(
    f"SELECT {', '.join(NAMES)} FROM {faults.name} WHERE run_id {{among}} "
    f"AND state IN ({', '.join(repr(state.value) for state in LIVE)}) ORDER BY run_id, id"
)
#: Faults by their ids.
NAMED = PreparedQuery.about(f"SELECT {', '.join(NAMES)} FROM {faults.name} WHERE id {{among}}")
#: The column of each field: those of durations have their unit in their names.
_COLUMN_OF = {name: {"after": "after_seconds", "wait": "wait_seconds"}.get(name, name) for name in Fault.__slots__}
#: The fields of a new fault that are stored as they are; the others are converted, or written by its decision.
_WRITTEN = (
    *("id", "path", "name", "epoch", "attempt", "type", "message", "args", "attributes", "args_exact", "traceback"),
    *("own_answer", "declared_answer", "http_status", "signal", "ladder", "resource", "why", "raised_at"),
    *("rule_type", "step_snapshot", "decision", "ruling"),
)
#: The readers of columns that are not null and are stored otherwise than their fields.
_READERS: dict[str, Callable[[Any], Any]] = {
    "kind": FaultKind,
    "state": FaultState,
    "lineage": lambda text: tuple(json.loads(text)),
    "args_exact": bool,
    **dict.fromkeys(("own_answer", "declared_answer"), Recoverability),
    **dict.fromkeys(("after", "wait"), lambda seconds: timedelta(seconds=seconds)),
    **dict.fromkeys(("raised_at", "due_at", "decided_at", "settled_at"), db_time.read_time),
}
_INSERT = insert(faults)


def add(connection: Connection, namespace: str, fault: Fault) -> None:
    """Write a new fault."""
    connection.execute(_INSERT, {**fields(namespace, fault), "run_id": fault.run_id})


def fields(namespace: str, fault: Fault) -> dict[str, Any]:
    """Return a new fault as the columns of its row, without its run's id."""
    after = None if fault.after is None else fault.after.total_seconds()
    stored = {"namespace": namespace, "kind": fault.kind.value, "state": fault.state.value, "after_seconds": after}
    return {name: getattr(fault, name) for name in _WRITTEN} | stored | {"lineage": json.dumps(fault.lineage)}


def from_row(row: Row[Any]) -> Fault:
    """Read a whole row of the faults table."""
    return read_fault(row._asdict())


def read_fault(row: Mapping[str, Any]) -> Fault:
    """Read a whole row of the faults table, also with the raw values of the driver."""
    values = {name: row[column] for name, column in _COLUMN_OF.items()}
    for name, reads in _READERS.items():
        if values[name] is not None:
            values[name] = reads(values[name])
    return Fault(**values)


def show_row(row: Row[Any]) -> Fault:
    """Read a whole row to be shown; a corrupt one becomes a parked stand-in that says why, so that no other is hidden.

    Not for those who decide about the fault, or act on it.
    """
    values = row._asdict()
    try:
        return read_fault(values)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        why = f"its row in the database cannot be read: {error}"
        harmless = {
            "lineage": "[]",
            "own_answer": None,
            "declared_answer": None,
            "after_seconds": None,
            "wait_seconds": None,
        }
        kinds = {"kind": FaultKind.FLOW.value, "state": FaultState.PARKED.value, "message": why, "why": why}
        return read_fault({**values, **harmless, **kinds})


def get_fault(connection: Connection, namespace: str, fault_id: str) -> Fault | None:
    """Return one fault, or None."""
    statement = select(faults).where(faults.c.id == fault_id, faults.c.namespace == namespace)
    row = connection.execute(statement).one_or_none()
    return None if row is None else show_row(row)


def find_fault(connection: Connection, namespace: str, part: str) -> Fault | None:
    """Return the one fault whose id matches what a person typed, or None; raises UnknownFault if several do."""
    require_text("fault_id", part, UnknownFault)
    statement = select(faults).where(faults.c.namespace == namespace, has_part(faults.c.id, part))
    found = connection.execute(statement.limit(2)).all() if part else []
    if len(found) > 1:
        raise UnknownFault(f"several faults match {format_value(part)}; give more of the id")
    return show_row(found[0]) if found else None


def of_run(connection: Connection, run_id: RunId) -> list[Fault]:
    """Return a run's faults, oldest first."""
    statement = select(faults).where(faults.c.run_id == run_id).order_by(faults.c.id)
    return [show_row(row) for row in connection.execute(statement)]


def listing(connection: Connection, namespace: str, *, state: FaultState | None = None, limit: int = 50) -> list[Fault]:
    """Return the newest faults, newest first."""
    statement = select(faults).where(faults.c.namespace == namespace).order_by(faults.c.id.desc()).limit(limit)
    if state is not None:
        statement = statement.where(faults.c.state == state.value)
    return [show_row(row) for row in connection.execute(statement)]


def renew(connection: Connection, fault_id: str, epoch: int) -> None:
    """Move an earlier owner's fault to this epoch, so that it is decided about; only in a write of the run's owner."""
    connection.execute(update(faults).where(faults.c.id == fault_id).values(epoch=epoch))


def reopen(connection: Connection, fault_id: str, ruling: str) -> None:
    """Make a parked fault wait again, due now, with this ruling; only in a write of the run's owner."""
    again = {"state": FaultState.WAITING.value, "ruling": ruling, "due_at": now(), "settled_at": None, "signal": None}
    connection.execute(update(faults).where(faults.c.id == fault_id).values(**again))


def close(connection: Connection, ids: Collection[str], state: FaultState) -> None:
    """Close faults with this final state."""
    if ids:
        _close(connection, state, faults.c.id.in_(ids))


def close_rest(connection: Connection, run_id: RunId) -> None:
    """Resolve the faults of a run that ends; those that failed a step for good stay ``final``."""
    _close(connection, FaultState.RESOLVED, faults.c.run_id == run_id, faults.c.state.in_(UNRESOLVED))


def close_all(connection: Connection, run_id: RunId) -> None:
    """Resolve all faults of a run that are in a live state, also the final ones."""
    live = faults.c.state.in_([state.value for state in LIVE])
    _close(connection, FaultState.RESOLVED, faults.c.run_id == run_id, live)


def close_final(connection: Connection, run_id: RunId, paths: Collection[str], state: FaultState) -> None:
    """Move the final faults of these steps to another state, because their journal entries are deleted."""
    if paths:
        final = (faults.c.path.in_(paths), faults.c.state == FaultState.FINAL.value)
        _close(connection, state, faults.c.run_id == run_id, *final)


def keep_aborts(connection: Connection, run_id: RunId) -> None:
    """Make the open abort faults of a run final: it ends with the effects of lost workers unknown."""
    aborts = (faults.c.kind == FaultKind.ABORT.value, faults.c.state.in_(UNRESOLVED))
    _close(connection, FaultState.FINAL, faults.c.run_id == run_id, *aborts)


def _close(connection: Connection, state: FaultState, *which: ColumnElement[bool]) -> None:
    connection.execute(update(faults).where(*which).values(state=state.value, settled_at=now()))
