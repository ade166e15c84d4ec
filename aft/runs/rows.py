"""A run as it lies in its row, and the ways to look runs up. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Row, exists, func, select
from sqlalchemy import cast as cast_to
from sqlalchemy.dialects.postgresql import JSONB

from aft.errors import UnknownRun
from aft.ids import RunId, WorkerId
from aft.runs import waits
from aft.runs.states import ENDS, Status
from aft.runs.waits import Wait
from aft.store import moments
from aft.store.moments import later
from aft.store.spelling import has_part
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row of the runs table."""

    id: RunId
    namespace: str
    flow: str
    version: int
    key: str | None
    key_generation: int
    args: str
    status: Status
    reason: str | None
    cause: str | None
    result: str | None
    ended_as: Status | None
    fault_id: str | None
    priority: int
    owner: str | None
    resources: tuple[str, ...]
    tags: dict[str, Any]
    expected: timedelta | None
    root_id: str
    parent_id: RunId | None
    parent_path: str | None
    parent_generation: int | None
    parent_seq: int | None
    parent_inbox_seq: int | None
    waits: tuple[Wait, ...]
    savepoints: dict[str, str]
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


#: Fields whose column has a unit in its name.
_UNITS = {"expected": runs.c.expected_seconds.label("expected")}
_MOMENTS = ("deadline_at", "pivoted_at", "due_at", "created_at", "started_at", "updated_at", "ended_at")
COLUMNS: list[ColumnElement[Any]] = [_UNITS[name] if name in _UNITS else runs.c[name] for name in RunRow.__slots__]


#: The columns of a run's row in the order of its fields, for statements that are written out.
NAMES = tuple("expected_seconds" if name == "expected" else name for name in RunRow.__slots__)


def from_row(row: Row[Any]) -> RunRow:
    """Read a row that was selected by ``COLUMNS``."""
    return read(row)


def read(row: Sequence[Any]) -> RunRow:
    """Read a row in the order of ``NAMES``, also as the driver gives it."""
    values = dict(zip(RunRow.__slots__, row, strict=True))
    values["status"] = Status(values["status"])
    values["ended_as"] = None if values["ended_as"] is None else Status(values["ended_as"])
    values["resources"] = tuple(json.loads(values["resources"] or "[]"))
    values["tags"] = json.loads(values["tags"] or "{}")
    values["waits"] = waits.decode(values["waits"])
    values["savepoints"] = json.loads(values["savepoints"] or "{}")
    values["expected"] = None if values["expected"] is None else timedelta(seconds=values["expected"])
    for name in _MOMENTS:
        values[name] = moments.read(values[name])
    return RunRow(**values)


def get(connection: Connection, namespace: str, run_id: str) -> RunRow:
    """Return the run, or raise UnknownRun."""
    statement = select(*COLUMNS).where(runs.c.id == run_id, runs.c.namespace == namespace)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise UnknownRun(
            f"no run has the id {run_id!r} in namespace {namespace!r}; `aft runs list` shows what there is"
        )
    return from_row(row)


def get_all(connection: Connection, ids: Iterable[str]) -> dict[RunId, RunRow]:
    """Return those of these runs that there are."""
    wanted = set(ids)
    found = connection.execute(select(*COLUMNS).where(runs.c.id.in_(wanted))) if wanted else ()
    return {row.id: from_row(row) for row in found}


def find(connection: Connection, namespace: str, prefix: str) -> RunRow:
    """Return the one run whose id a person meant, who typed a part of it (``spelling.has_part``)."""
    if len(prefix) == 36:
        return get(connection, namespace, prefix)
    matches = select(*COLUMNS).where(runs.c.namespace == namespace, has_part(runs.c.id, prefix))
    found = connection.execute(matches.limit(3)).all() if prefix else []
    if len(found) > 1:
        raise UnknownRun(f"several runs match {prefix!r}; give more of the id")
    return from_row(found[0]) if found else get(connection, namespace, prefix)


def listing(
    connection: Connection,
    namespace: str,
    *,
    status: Status | None = None,
    flow: str | None = None,
    owner: str | None = None,
    resource: str | None = None,
    priority: int | None = None,
    overdue: bool = False,
    limit: int = 50,
) -> list[RunRow]:
    """Return the newest runs, newest first; ``overdue`` are those that should have ended by now and have not.

    ``priority``: those of this one and above.
    """
    statement = select(*COLUMNS).where(runs.c.namespace == namespace).order_by(runs.c.id.desc()).limit(limit)
    if status is not None:
        statement = statement.where(runs.c.status == status.value)
    if flow is not None:
        statement = statement.where(runs.c.flow == flow)
    if owner is not None:
        statement = statement.where(runs.c.owner == owner)
    if resource is not None:
        statement = statement.where(_needs(connection, resource))
    if priority is not None:
        statement = statement.where(runs.c.priority >= priority)
    if overdue:
        statement = statement.where(is_overdue())
    return [from_row(row) for row in connection.execute(statement)]


def _needs(connection: Connection, resource: str) -> ColumnElement[bool]:
    """The condition that a run names a resource; each database reads JSON in its own way."""
    if connection.dialect.name == "postgresql":
        return cast_to(runs.c.resources, JSONB).contains([resource])
    named = func.json_each(runs.c.resources).table_valued("value")
    return exists().where(named.c.value == resource)


def is_overdue() -> ColumnElement[bool]:
    """The condition that a run has not ended in its time; ``overdue_at`` does not tell, once that was told."""
    began_before = later(cast(Any, -runs.c.expected_seconds))
    return ~has_ended() & (runs.c.created_at < began_before)


def has_ended() -> ColumnElement[bool]:
    """The condition that a run has come to its end, though something late may be settled since."""
    return runs.c.status.in_([status.value for status in ENDS]) | runs.c.ended_as.is_not(None)
