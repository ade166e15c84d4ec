"""Reads the failure groups of a namespace: how often each occurred, since when, and one fault as an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, case, distinct, func, select

from aft.fault import Fault
from aft.runs.records.faults import show_row
from aft.store.tables import faults

#: The parts of the time that is looked at, whose counts show the trend.
PARTS = 8


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Faults that have one cause; ``trend`` counts them in equal parts of the time looked at, oldest first."""

    id: str
    count: int
    runs: int
    first_at: datetime
    last_at: datetime
    trend: tuple[int, ...]
    example: Fault = field(repr=False)


def read_groups(
    connection: Connection, namespace: str, since: datetime, until: datetime, limit: int
) -> list[FailureGroup]:
    """Return the groups with the most faults that were raised in this time, largest first."""
    raised_at, group_id = faults.c.raised_at, faults.c.group_id
    length = (until - since) / PARTS
    borders = [since + length * nth for nth in range(PARTS)]
    statement = (
        select(
            group_id,
            func.count().label("number"),
            func.count(distinct(faults.c.run_id)).label("runs"),
            func.min(raised_at).label("first_at"),
            func.max(raised_at).label("last_at"),
            func.max(faults.c.id).label("example"),
            *(func.sum(case((raised_at >= border, 1), else_=0)) for border in borders),
        )
        .where(faults.c.namespace == namespace, raised_at >= since, raised_at < until, group_id.is_not(None))
        .group_by(group_id)
        .order_by(func.count().desc(), group_id)
        .limit(limit)
    )
    rows = connection.execute(statement).all()
    named = select(faults).where(faults.c.id.in_([row.example for row in rows]))
    examples = {row.id: show_row(row) for row in connection.execute(named)}
    return [
        FailureGroup(
            id=row.group_id,
            count=row.number,
            runs=row.runs,
            first_at=row.first_at,
            last_at=row.last_at,
            trend=_trend(row[6:]),
            example=examples[row.example],
        )
        for row in rows
        if row.example in examples
    ]


def _trend(since: Sequence[int]) -> tuple[int, ...]:
    """Return the counts of the parts, of the counts since the beginning of each."""
    return tuple(int(one) - int(later) for one, later in zip(since, (*since[1:], 0), strict=True))
