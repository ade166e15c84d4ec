"""Limits the size of a family of runs: it is counted before a run begins a child.

A flow that begins itself, or a map over untrusted input, would make runs faster than a person can stop them. So a run
parks where it would exceed a limit: a person looks at it, raises the limit and retries, or cancels the family.

Who may run at the same time: all runs of a family, each with an owner that counts before it begins a child. Two of them
may count the same; then the family exceeds its limit by what owners begin at the same time: each at most a
thousandth of what was left when it counted last, but one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, literal, select

from aft.errors import LimitExceeded
from aft.runs.run_rows import RunRow, is_of_family
from aft.runs.states import Status
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class FamilyLimits:
    """The largest allowed family: generations of children, children of one run, and runs that have not ended."""

    depth: int
    children: int
    family: int


@dataclass(frozen=True, slots=True)
class FamilySize:
    """The size of a family as seen from one of its runs; each number is counted up to its limit."""

    depth: int
    children: int
    family: int
    #: Whether the root is being undone because it was cancelled, and so the whole family.
    is_cancelled: bool


def measure(connection: Connection, run: RunRow, limits: FamilyLimits) -> FamilySize:
    """Count the ancestors of a run, its children in this generation, and the runs of its family that have not ended."""
    children = select(runs.c.id).where(runs.c.parent_id == run.id, runs.c.parent_generation == run.key_generation)
    family = select(runs.c.id).where(is_of_family(run.root_id), runs.c.ended_as.is_(None))
    root = select(runs.c.status, runs.c.cause).where(runs.c.id == run.root_id)
    found = connection.execute(
        select(
            _depth(run, limits.depth),
            *(
                select(func.count()).select_from(each.limit(most).subquery()).scalar_subquery()
                for each, most in ((children, limits.children), (family, limits.family))
            ),
        )
    ).one()
    status, cause = connection.execute(root).one_or_none() or (None, None)
    depth, begun, under_way = found
    return FamilySize(depth, begun, under_way, status == Status.COMPENSATING.value and cause == "cancel")


def _depth(run: RunRow, most: int) -> Any:
    """Build the subquery that counts a run's ancestors, stopping above ``most``."""
    line = select(runs.c.parent_id.label("id"), literal(1).label("depth")).where(runs.c.id == run.id)
    above = line.cte("above", recursive=True)
    above = above.union_all(
        select(runs.c.parent_id, above.c.depth + 1).where(runs.c.id == above.c.id, above.c.depth <= most)
    )
    return select(func.count(above.c.id)).scalar_subquery()


def check(found: FamilySize, limits: FamilyLimits, begun: int) -> None:
    """Raise LimitExceeded if a run must not begin another child; ``begun`` are those that it began since the count."""
    if found.depth + 1 > limits.depth:
        raise LimitExceeded(
            f"a child of this run would be {found.depth + 1} generations below its root, and AFT_MOST_DEPTH is "
            f"{limits.depth}: does the flow begin itself?"
        )
    for name, number, most, what in (
        ("AFT_MOST_CHILDREN", found.children + begun, limits.children, "this run has begun {} children"),
        ("AFT_MOST_FAMILY", found.family + begun, limits.family, "the family of this run has {} runs under way"),
    ):
        if number >= most:
            raise LimitExceeded(
                f"{what.format(number)}, and {name} is {most}; raise it and retry, or cancel the root of the family"
            )
