"""What acceptance tests look at behind a run: its children, its inbox, its journal, the database's time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select

import aft
from aft.runs import families, inbox, journal
from aft.runs.inbox import Letter
from aft.runs.journal import Entry
from aft.runs.rows import RunRow
from aft.store.moments import now


def children_of(app: aft.Aft, run: aft.Run) -> list[RunRow]:
    """The children of a run, oldest first."""
    with app.store.read() as connection:
        return families.of(connection, run.id)


def unread(app: aft.Aft, run: aft.Run) -> list[Letter]:
    """What lies in a run's inbox."""
    with app.store.read() as connection:
        return inbox.unread(connection, run.id)


def recorded(app: aft.Aft, run: aft.Run) -> list[Entry]:
    """What is in a run's journal."""
    with app.store.read() as connection:
        return journal.load(connection, run.id)


def database_now(app: aft.Aft) -> datetime:
    """The database's time."""
    with app.store.read() as connection:
        found: datetime = connection.execute(select(now())).scalar_one()
        return found
