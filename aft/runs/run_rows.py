"""Reads rows of the runs table and looks runs up. Reads only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Row, case, select

from aft.codec.text import check_depth
from aft.errors import CodecError, UnknownRun
from aft.ids import RunId, WorkerId
from aft.runs import waits
from aft.runs.states import ENDS, Status
from aft.runs.waits import Wait
from aft.store import db_time
from aft.store.batch.row_format import has_part
from aft.store.db_time import later
from aft.store.tables import runs
from aft.texts import format_value, require_text


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row of the runs table."""

    id: RunId
    namespace: str
    flow: str
    version: int
    key: str | None
    key_generation: int
    args: str = field(repr=False)
    status: Status
    reason: str | None = field(repr=False)
    cause: str | None
    result: str | None = field(repr=False)
    ended_as: Status | None
    fault_id: str | None
    priority: int
    owner: str | None
    resources: tuple[str, ...]
    tags: dict[str, Any] = field(repr=False)
    expected: timedelta | None
    root_id: str
    parent_id: RunId | None
    parent_path: str | None
    parent_generation: int | None
    parent_seq: int | None
    parent_inbox_seq: int | None
    waits: tuple[Wait, ...]
    #: The savepoints that it is in, by path, with their names; None: not known, because its worker was lost.
    savepoints: dict[str, str] | None
    deadline_at: datetime | None
    pivoted_at: datetime | None
    epoch: int
    worker_id: WorkerId | None
    wake_id: str | None
    due_at: datetime | None
    seq: int
    inbox_seq: int
    deaths: int
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    ended_at: datetime | None
    #: When its values were erased; None: they were not.
    erased_at: datetime | None
    #: The columns that cannot be read, and why; they have harmless values here. None: all can be read.
    unreadable: str | None = None


_FIELDS = RunRow.__slots__[:-1]
#: Fields whose column has a unit in its name.
_UNITS = {"expected": runs.c.expected_seconds.label("expected")}
_MOMENTS = ("deadline_at", "pivoted_at", "due_at", "created_at", "started_at", "updated_at", "ended_at", "erased_at")
COLUMNS: list[ColumnElement[Any]] = [_UNITS[name] if name in _UNITS else runs.c[name] for name in _FIELDS]


#: The columns of a run's row in the order of its fields, for statements that are written out.
NAMES = tuple("expected_seconds" if name == "expected" else name for name in _FIELDS)
#: Seconds that a run may be expected to take; PostgreSQL refuses to go back by more, or by what is no number.
_MOST_EXPECTED = 1e10
#: The exceptions that a corrupt value raises.
_MEANINGLESS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, CodecError)


def from_row(row: Row[Any]) -> RunRow:
    """Read a row that was selected by ``COLUMNS``."""
    return read_run(row)


def read_run(row: Sequence[Any]) -> RunRow:
    """Read a row in the order of ``NAMES``, also with the raw values of the driver.

    Never raises for a corrupt value: one corrupt row must not stop those that are read with it. Callers that act on a
    run check ``unreadable``.
    """
    values = dict(zip(_FIELDS, row, strict=True))
    started = values["started_at"] is not None
    try:
        for name, (reads, _) in _READERS.items():
            values[name] = reads(values[name])
        values["savepoints"] = _read_savepoints(values["savepoints"], started)
        return RunRow(**values)
    except _MEANINGLESS:
        return _read_damaged(dict(zip(_FIELDS, row, strict=True)))


def _read_damaged(values: dict[str, Any]) -> RunRow:
    """Read a corrupt row: harmless values replace those that cannot be read."""
    damaged = []
    for name, (reads, instead) in {**_READERS, "savepoints": (_decode, None)}.items():
        try:
            values[name] = reads(values[name])
        except _MEANINGLESS as error:
            # The owner's fence compares what is in the row, whatever that is.
            values[name] = values[name] if name in _NUMBERS else instead
            damaged.append(f"{name} ({type(error).__name__})")
    return RunRow(**values, unreadable=", ".join(damaged))


def _read_number(stored: Any) -> int:
    # SQLite keeps a value of another type, and makes a fraction of a number that is too large: it could not rise.
    if not isinstance(stored, int):
        raise TypeError(f"{type(stored).__name__} instead of a whole number")
    return stored


def _read_savepoints(stored: str | None, started: bool) -> dict[str, str] | None:
    """Read the savepoints that a run is in; the owner stores them when it releases the run, a lost worker does not."""
    if stored is None:
        return None if started else {}
    return _decode(stored)


def _decode(stored: str | None) -> dict[str, Any]:
    check_depth(stored or "")
    found = json.loads(stored or "{}")
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} instead of names with values")
    return found


#: What the owner's writes raise, or name.
_NUMBERS = ("epoch", "seq", "inbox_seq", "deaths", "key_generation")
#: The readers of columns that may be corrupt, and the values that replace those.
_READERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "status": (Status, Status.PARKED),
    "ended_as": (lambda stored: None if stored is None else Status(stored), None),
    "resources": (lambda stored: tuple(json.loads(stored or "[]")), ()),
    "tags": (_decode, {}),
    "waits": (waits.decode, ()),
    "expected": (lambda stored: None if stored is None else timedelta(seconds=stored), None),
    **dict.fromkeys(_NUMBERS, (_read_number, None)),
    **dict.fromkeys(_MOMENTS, (db_time.read_time, None)),
    **{name: (db_time.read_time, datetime.fromtimestamp(0, UTC)) for name in ("created_at", "updated_at")},
}


def get_run(connection: Connection, namespace: str, run_id: str) -> RunRow:
    """Return the run, or raise UnknownRun."""
    statement = select(*COLUMNS).where(runs.c.id == run_id, runs.c.namespace == namespace)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise UnknownRun(
            f"no run has the id {format_value(run_id)} in namespace {namespace!r}; `aft runs list` shows what there is"
        )
    return from_row(row)


def get_all(connection: Connection, ids: Iterable[str]) -> dict[RunId, RunRow]:
    """Return those of these runs that exist, by id."""
    wanted = set(ids)
    found = connection.execute(select(*COLUMNS).where(runs.c.id.in_(wanted))) if wanted else ()
    return {row.id: from_row(row) for row in found}


def find_run(connection: Connection, namespace: str, prefix: str) -> RunRow:
    """Return the one run whose id matches what a person typed (``row_format.has_part``); raises UnknownRun."""
    require_text("run_id", prefix, UnknownRun)
    if len(prefix) == 36:
        return get_run(connection, namespace, prefix)
    matches = select(*COLUMNS).where(runs.c.namespace == namespace, has_part(runs.c.id, prefix))
    found = connection.execute(matches.limit(3)).all() if prefix else []
    if len(found) > 1:
        raise UnknownRun(f"several runs match {format_value(prefix)}; give more of the id")
    return from_row(found[0]) if found else get_run(connection, namespace, prefix)


def is_of_family(root_id: str) -> ColumnElement[bool]:
    """Return the condition that a run is this root, or a descendant of it."""
    return (runs.c.id == root_id) | ((runs.c.root_id == root_id) & runs.c.parent_id.is_not(None))


def is_overdue() -> ColumnElement[bool]:
    """Return the condition that a run has exceeded its expected time; ``overdue_at`` is cleared once reported."""
    expected = runs.c.expected_seconds
    began_before = later(cast(Any, case((expected.between(0, _MOST_EXPECTED), -expected))))  # else null: never
    return ~has_ended() & (runs.c.created_at < began_before)


def has_ended() -> ColumnElement[bool]:
    """Return the condition that a run has ended, also if it is active again for a late effect."""
    return runs.c.status.in_([status.value for status in ENDS]) | runs.c.ended_as.is_not(None)
