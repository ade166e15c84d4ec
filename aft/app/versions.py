"""Which versions of which flows are still needed, and who has their code? Reads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from aft.app import health
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """A version of a flow: its runs that have not ended, and since when there is one; live workers that have its code.

    One that has runs and no workers is needed; one that has neither can be forgotten.
    """

    flow: str
    version: int
    runs: int
    oldest: datetime | None
    workers: int


def read(connection: Connection, namespace: str) -> list[VersionSeen]:
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
        VersionSeen(flow, version, *needed.get((flow, version), (0, None)), known[flow, version])
        for flow, version in sorted({*needed, *known})
    ]


def _split(spelled: str) -> tuple[str, int]:
    flow, _, version = spelled.rpartition("@")
    return flow, int(version)
