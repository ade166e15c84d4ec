"""Who did what to a run by hand, and why. Written in the transaction of the deed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

from aft.ids import RunId, new_id
from aft.store.moments import now
from aft.store.tables import audit


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that a person did."""

    actor: str
    action: str
    note: str | None
    at: datetime


def write(connection: Connection, run_id: RunId, actor: str, action: str, note: str | None) -> None:
    """Record a deed."""
    connection.execute(
        insert(audit).values(id=new_id(), run_id=run_id, actor=actor, action=action, note=note, at=now())
    )


def of_run(connection: Connection, run_id: RunId) -> list[Deed]:
    """Return what was done to a run by hand, oldest first."""
    statement = select(audit).where(audit.c.run_id == run_id).order_by(audit.c.id)
    return [Deed(row.actor, row.action, row.note, row.at) for row in connection.execute(statement)]
