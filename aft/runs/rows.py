"""A run as it lies in its row, and the ways to look runs up. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from aft.errors import UnknownRun
from aft.ids import RunId, WorkerId
from aft.runs.states import Status
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
    root_id: str
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


COLUMNS = [runs.c[name] for name in RunRow.__slots__]


def from_row(row: Row[Any]) -> RunRow:
    """Read a row that was selected by ``COLUMNS``."""
    values = dict(row._mapping)
    values["status"] = Status(values["status"])
    values["ended_as"] = None if values["ended_as"] is None else Status(values["ended_as"])
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


def find(connection: Connection, namespace: str, prefix: str) -> RunRow:
    """Return the one run whose id begins, or ends, with what a person typed."""
    if len(prefix) == 36:
        return get(connection, namespace, prefix)
    # The ends of ids differ sooner than their beginnings, which are times.
    matches = select(*COLUMNS).where(
        runs.c.namespace == namespace,
        runs.c.id.startswith(prefix, autoescape=True) | runs.c.id.endswith(prefix, autoescape=True),
    )
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
    limit: int = 50,
) -> list[RunRow]:
    """Return the newest runs, newest first."""
    statement = select(*COLUMNS).where(runs.c.namespace == namespace).order_by(runs.c.id.desc()).limit(limit)
    if status is not None:
        statement = statement.where(runs.c.status == status.value)
    if flow is not None:
        statement = statement.where(runs.c.flow == flow)
    return [from_row(row) for row in connection.execute(statement)]
