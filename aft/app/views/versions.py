"""Lists the versions of flows that are still needed, and how many workers have their code. Reads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, exists, func, select

from aft.app.views import health
from aft.compensation.stack import PENDING
from aft.runs.states import Status
from aft.store.tables import frames, runs


@dataclass(frozen=True, slots=True)
class VersionUse:
    """A version of a flow: its unfinished runs, the start of the oldest, and the number of live workers with its code.

    One that has runs and no workers is needed. ``undoable``: whether a completed run of it can still be undone: that
    needs the compensators of its activities, not the flow.
    """

    flow: str
    version: int
    runs: int
    oldest: datetime | None
    workers: int
    undoable: bool = False


def read_versions(connection: Connection, namespace: str) -> list[VersionUse]:
    """Return every version that has runs which have not ended, or a live worker; by name, oldest version first."""
    going_on = (
        select(runs.c.flow, runs.c.version, func.count(), func.min(runs.c.created_at))
        .where(runs.c.namespace == namespace, runs.c.ended_as.is_(None))
        .group_by(runs.c.flow, runs.c.version)
    )
    needed = {(flow, version): (count, oldest) for flow, version, count, oldest in connection.execute(going_on)}
    known = Counter(
        _split(flow)
        for worker in health.live_workers(connection, namespace)
        if "work" in worker.roles
        for flow in worker.flows
    )
    return [
        VersionUse(
            flow,
            version,
            *needed.get((flow, version), (0, None)),
            known[flow, version],
            _is_undoable(connection, namespace, flow, version),
        )
        for flow, version in sorted({*needed, *known})
    ]


def _is_undoable(connection: Connection, namespace: str, flow: str, version: int) -> bool:
    owes = exists().where(frames.c.run_id == runs.c.id, frames.c.state.in_([state.value for state in PENDING]))
    statement = select(runs.c.id).where(
        runs.c.namespace == namespace,
        runs.c.flow == flow,
        runs.c.version == version,
        runs.c.ended_as == Status.COMPLETED.value,
        owes,
    )
    return connection.execute(statement.limit(1)).first() is not None


def _split(formatted: str) -> tuple[str, int]:
    flow, _, version = formatted.rpartition("@")
    return flow, int(version)
