"""The rows of faults: raised by the run's owner or a rescue, decided about by the dispatcher, read by all."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, select, update

from aft.codec.text import StoredJson
from aft.errors import UnknownFault
from aft.fault import Fault, FaultKind, FaultState, Recoverability
from aft.ids import RunId
from aft.runs.records import step_snapshots, stored_ladders
from aft.runs.rulings import Ruling
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
#: States of a fault that determines nothing any more.
_OVER = (FaultState.TRIED, FaultState.RESOLVED)
#: The faults of several runs that are in a live state, or in none that there is, each run's oldest first.
LIVE_OF_RUNS = PreparedQuery.about(
    f"SELECT {', '.join(NAMES)} FROM {faults.name} WHERE run_id {{among}} "
    f"AND state NOT IN ({', '.join(repr(state.value) for state in _OVER)}) ORDER BY run_id, id"
)
#: Faults by their ids.
NAMED = PreparedQuery.about(f"SELECT {', '.join(NAMES)} FROM {faults.name} WHERE id {{among}}")
#: The column of each field: those of durations have their unit in their names.
_COLUMN_OF = {name: {"after": "after_seconds", "wait": "wait_seconds"}.get(name, name) for name in Fault.__slots__}
#: The fields of a new fault that are stored as they are; the others are converted, or written by its decision.
_WRITTEN = (
    *("id", "path", "name", "epoch", "attempt", "type", "message", "args", "attributes", "args_exact", "traceback"),
    *("own_answer", "declared_answer", "http_status", "signal", "ladder", "resource", "why", "raised_at"),
    *("rule_type", "step_snapshot", "decision", "ruling", "group_id"),
)
_LINEAGE: StoredJson[tuple[str, ...]] = StoredJson(tuple[str, ...])
#: More failures than any step can have: one more must still be a number for the database.
_MOST_FAILURES = 2**31 - 1


def _read_text(stored: Any) -> str:
    # SQLite keeps a value of another type where a column says text.
    if not isinstance(stored, str):
        raise TypeError(f"{type(stored).__name__} instead of a text")
    return stored


def _read_number(stored: Any) -> int:
    if not isinstance(stored, int):
        raise TypeError(f"{type(stored).__name__} instead of a number")
    return stored


def _count_failures(stored: Any) -> int:
    if not 0 <= _read_number(stored) < _MOST_FAILURES:
        raise ValueError("it cannot have failed so often")
    return int(stored)


def _checked(decode: Callable[[str], Any]) -> Callable[[Any], str]:
    """Return the reader of a document that others decode later, and that must not fail there: it stays a text."""

    def read(stored: Any) -> str:
        decode(_read_text(stored))
        return str(stored)

    return read


#: The readers of columns that are not null; all others must be texts.
_READERS: dict[str, Callable[[Any], Any]] = {
    "kind": FaultKind,
    "state": FaultState,
    "lineage": lambda text: _LINEAGE.read(_read_text(text)),
    "args_exact": bool,
    "attempt": _count_failures,
    "ladder": _checked(stored_ladders.decode),
    "step_snapshot": _checked(step_snapshots.decode),
    "ruling": _checked(Ruling.decode),
    **dict.fromkeys(("epoch", "level", "try_in_level", "http_status"), _read_number),
    **dict.fromkeys(("own_answer", "declared_answer"), Recoverability),
    **dict.fromkeys(("after", "wait"), lambda seconds: timedelta(seconds=seconds)),
    **dict.fromkeys(("raised_at", "due_at", "decided_at", "settled_at"), db_time.read_time),
}
#: What replaces those that cannot be read, where that is not None.
_HARMLESS: dict[str, Any] = {
    **{"epoch": 0, "attempt": 0, "lineage": (), "args": "[]", "attributes": "{}", "ladder": "[]"},
    **{"name": "", "type": "", "traceback": "", "raised_at": db_time.LONG_AGO},
}
#: What nobody needs any more of a failure that the journal shows.
_DECIDED = {"step_snapshot": None, "ruling": None, "ladder": "[]", "attempt": 0, "after_seconds": None}
_DECIDED |= {"wait_seconds": None, "level": None, "try_in_level": None, "epoch": 0, "signal": None, "resource": None}
#: What reading a corrupt row raises.
MEANINGLESS = (ValueError, TypeError, RecursionError, OverflowError)
#: What a person can do about a run that is parked for a corrupt row.
IF_CORRUPT = "retry tries its step again as if it had not failed before, or cancel the run"
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
    return Fault(**{name: _read(name, row[column]) for name, column in _COLUMN_OF.items()})


def _read(name: str, value: Any) -> Any:
    reads: Callable[[Any], Any] = _READERS.get(name, _read_text)
    return value if value is None else reads(value)


def show_row(row: Row[Any]) -> Fault:
    """Read a whole row to be shown; a corrupt one becomes a stand-in that says why, so that no other is hidden."""
    return read_safely(row._asdict())


def read_safely(row: Mapping[str, Any]) -> Fault:
    """Read a whole row, also with the raw values of the driver; a corrupt one becomes a stand-in."""
    try:
        return read_fault(row)
    except MEANINGLESS:
        return stand_in(row)


def read_failure(row: Mapping[str, Any]) -> Fault:
    """Read the row of a failure that the journal shows: what only its decision needed does not matter any more.

    Raises one of ``MEANINGLESS`` if the exception, which the flow's code is to get, cannot be read.
    """
    try:
        return read_fault(row)
    except MEANINGLESS:
        return read_fault({**row, **_DECIDED})


def read_live(row: Mapping[str, Any]) -> Fault:
    """Read a row in a live state for the run's owner; a corrupt one is parked for a person, who lets the step go on.

    Raises one of ``MEANINGLESS`` for a corrupt failure that the journal shows: the flow's code is to get that.
    """
    fault = read_safely(row)
    return read_failure(row) if fault.state is FaultState.FINAL and fault.path is not None else fault


def stand_in(row: Mapping[str, Any], *damaged: str) -> Fault:
    """Read a corrupt row: harmless values replace those that cannot be read, and the message says which.

    ``damaged`` are columns that the caller could not decode.

    It is parked, unless it was closed: its run is parked for it by whoever has to act on it. A step's failure is closed
    once the journal shows it.
    """
    values, corrupt = dict[str, Any](), list(damaged)
    for name, column in _COLUMN_OF.items():
        try:
            values[name] = None if column in damaged else _read(name, row[column])
        except MEANINGLESS as error:
            values[name] = None
            corrupt.append(f"{column} ({type(error).__name__})")
    message = f"its row in the database cannot be read: {', '.join(corrupt)}"
    values |= {name: harmless for name, harmless in _HARMLESS.items() if values[name] is None}
    values |= {"message": message, "why": f"{message}; {IF_CORRUPT}"}
    values["kind"] = values["kind"] or (FaultKind.FLOW if values["path"] is None else FaultKind.ACTIVITY)
    is_shown = values["state"] is FaultState.FINAL and (row["path"] is None or values["settled_at"] is not None)
    if values["state"] not in _OVER and not is_shown:
        values |= {"state": FaultState.PARKED, "decided_at": None}
    return Fault(**values)


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


def find_same(connection: Connection, fault: Fault) -> tuple[str, ...]:
    """Return the parked faults of a run that say what this one says: it takes their place."""
    statement = select(faults.c.id).where(
        faults.c.run_id == fault.run_id,
        faults.c.state == FaultState.PARKED.value,
        faults.c.kind == fault.kind.value,
        faults.c.path == fault.path,
        faults.c.type == fault.type,
        faults.c.message == fault.message,
    )
    return tuple(connection.execute(statement).scalars())


def listing(connection: Connection, namespace: str, *, state: FaultState | None = None, limit: int = 50) -> list[Fault]:
    """Return the newest faults, newest first."""
    statement = select(faults).where(faults.c.namespace == namespace).order_by(faults.c.id.desc()).limit(limit)
    if state is not None:
        statement = statement.where(faults.c.state == state.value)
    return [show_row(row) for row in connection.execute(statement)]


def renew(connection: Connection, fault_id: str, epoch: int) -> None:
    """Move an earlier owner's fault to this epoch, so that it is decided about; only in a write of the run's owner."""
    connection.execute(update(faults).where(faults.c.id == fault_id).values(epoch=epoch))


def rule(
    connection: Connection, fault_id: str, ruling: str | None, state: FaultState = FaultState.WAITING, **more: Any
) -> None:
    """Write a ruling that a person ordered, due now, into an undecided fault; only in a write of the run's owner."""
    ruled = {"state": state.value, "ruling": ruling, "due_at": now(), "settled_at": None, "signal": None, **more}
    connection.execute(update(faults).where(faults.c.id == fault_id).values(**ruled))


def close(connection: Connection, ids: Collection[str], state: FaultState) -> None:
    """Close faults with this final state."""
    if ids:
        _close(connection, state, faults.c.id.in_(ids))


def park_corrupt(connection: Connection, fault_id: str) -> None:
    """Park a fault that its run is parked for; it may have been in another live state, because it cannot be read."""
    _close(connection, FaultState.PARKED, faults.c.id == fault_id, faults.c.state != FaultState.PARKED.value)


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
