"""Facts about earlier faults of the same signature: how many there were, and their outcomes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select

from aft.fault import FaultState
from aft.store.tables import faults

#: The windows that are counted, by the end of the fact's name.
WINDOWS = {
    "1m": timedelta(minutes=1),
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
}
#: Most faults that are counted; more count as that many.
MOST_COUNTED = 10_000
#: Faults that are read for the outcomes of levels.
_LOOKED_AT = 200
_ENDED = (FaultState.RESOLVED, FaultState.TRIED, FaultState.FINAL)


def of_signature(
    connection: Connection, namespace: str, name: str, type_: str, at: datetime, wanted: Collection[str]
) -> dict[str, Any]:
    """Return the wanted history facts of one signature, as they were at that time."""
    same = (faults.c.namespace == namespace, faults.c.name == name, faults.c.type == type_, faults.c.raised_at <= at)
    found: dict[str, Any] = {}
    for label, window in WINDOWS.items():
        if f"history.same_{label}" in wanted:
            found[f"history.same_{label}"] = _count(connection, *same, faults.c.raised_at > at - window)
    if "history.outcome" in wanted:
        found["history.outcome"] = _outcomes(connection, *same, faults.c.raised_at > at - max(WINDOWS.values()))
    return found


def _count(connection: Connection, *same: Any) -> int:
    """Count faults up to a bound: a storm of faults must not make each of them more expensive."""
    some = select(faults.c.id).where(*same).limit(MOST_COUNTED).subquery()
    return int(connection.execute(select(func.count()).select_from(some)).scalar_one())


def _outcomes(connection: Connection, *same: Any) -> dict[int, str]:
    """Return for each level the outcome of the last try there."""
    statement = (
        select(faults.c.level, faults.c.state)
        .where(*same, faults.c.level.is_not(None), faults.c.state.in_([state.value for state in _ENDED]))
        .order_by(faults.c.raised_at.desc())
        .limit(_LOOKED_AT)
    )
    found: dict[int, str] = {}
    for row in connection.execute(statement):
        found.setdefault(row.level, row.state)
    return found
