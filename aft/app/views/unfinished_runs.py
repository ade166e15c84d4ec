"""Finds what a stopped dispatcher leaves unfinished, and whether a live worker continues it. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, select

from aft.app.views import health
from aft.ids import WorkerId
from aft.runs import run_rows
from aft.runs.run_rows import RunRow
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class Leftover:
    """The runs that a stopped worker had begun and not ended.

    ``interrupted`` were released between two steps: any worker continues them at once, or has by now. ``cut_off``
    still name the stopped worker: they are rescued when its lease expires. ``unserved`` are the flows, as
    ``name@version``, that no live worker has.
    """

    interrupted: tuple[RunRow, ...]
    cut_off: tuple[RunRow, ...]
    unserved: tuple[str, ...]


def find_leftover(connection: Connection, namespace: str, worker: WorkerId, released: Collection[str]) -> Leftover:
    """Find what a worker has left; ``released`` are the runs that it released because it was to stop."""
    statement = select(*run_rows.COLUMNS).where(runs.c.namespace == namespace, runs.c.worker_id == worker)
    cut_off = tuple(run_rows.from_row(row) for row in connection.execute(statement.order_by(runs.c.id)))
    owned = {row.id for row in cut_off}
    others = run_rows.get_all(connection, released).values()
    interrupted = tuple(row for row in others if row.id not in owned)
    known = {flow for one in health.live_workers(connection, namespace) if "work" in one.roles for flow in one.flows}
    waiting = (*cut_off, *(row for row in interrupted if row.worker_id is None and row.ended_at is None))
    unserved = sorted({f"{row.flow}@{row.version}" for row in waiting} - known)
    return Leftover(interrupted, cut_off, tuple(unserved))
