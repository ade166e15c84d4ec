"""Bugs to be seeded into aft, that more than one test must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from sqlalchemy import Connection, select

from aft.ids import WorkerId
from aft.runs.ownership.claims import Known, Wake
from aft.runs.run_rows import RunRow
from aft.store import Store
from aft.store.tables import runs


def without_stale_check(real: Callable[..., list[RunRow]]) -> Callable[..., list[RunRow]]:
    """Make of ``claim``, or of ``claim_now``, one for which any message wakes its run, whatever it awaits and when."""

    def claim(
        where: Connection | Store, namespace: str, worker: WorkerId, wakes: Sequence[Wake], known: Known, **more: Any
    ) -> list[RunRow]:
        mine = runs.c.id.in_([run for run, _ in wakes])
        if isinstance(where, Store):
            more["timed"] = True
        with nullcontext(where) if isinstance(where, Connection) else where.read() as connection:
            current = connection.execute(
                select(runs.c.id, runs.c.wake_id).where(mine, runs.c.wake_id.is_not(None))
            ).all()
        return real(where, namespace, worker, [(row.id, row.wake_id) for row in current], known, **more)

    return claim
