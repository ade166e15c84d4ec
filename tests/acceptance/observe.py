"""What lies behind a run: its children, its inbox, its journal, its late effects, the database's time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select

import aft
from aft.runs.records import inbox, journal
from aft.runs.records.inbox import InboxItem
from aft.runs.records.journal import Entry
from aft.runs.run_rows import RunRow
from aft.runs.wakes import child_runs
from aft.store import tables
from aft.store.db_time import now


def children_of(app: aft.Aft, run: aft.Run) -> list[RunRow]:
    """The children of a run, oldest first."""
    with app.store.read() as connection:
        return child_runs.of(connection, run.id)


def unread(app: aft.Aft, run: aft.Run) -> list[InboxItem]:
    """What lies in a run's inbox."""
    with app.store.read() as connection:
        return inbox.unread(connection, run.id)


def answers(app: aft.Aft, run: aft.Run) -> list[tuple[str, bool, str | None]]:
    """All that a run was asked: whether it was read, and what was answered."""
    with app.store.read() as connection:
        return [(item.verb.value, item.read, item.note) for item in inbox.of_run(connection, run.id)]


def recorded(app: aft.Aft, run: aft.Run) -> list[Entry]:
    """What is in a run's journal."""
    with app.store.read() as connection:
        return journal.load(connection, run.id)


def late_effects(app: aft.Aft) -> list[str]:
    """What became of the effects that came late."""
    with app.store.read() as connection:
        found = connection.execute(
            select(tables.late_effects.c.state).where(tables.late_effects.c.namespace == app.namespace)
        )
        return list(found.scalars())


def database_now(app: aft.Aft) -> datetime:
    """The database's time."""
    with app.store.read() as connection:
        found: datetime = connection.execute(select(now())).scalar_one()
        return found
