"""What tests of transactional activities share: a table to write to, and work that is done on other connections."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

import aft
from tests.setups import Setup

#: More calls than connections are kept: so some of them work on one that has been worked on.
CALLS = 25


def driver() -> Any:
    """The driver's own connection, of the activity that asks."""
    return aft.session().connection().connection.driver_connection


@aft.activity(name="transactions_ordinary", transactional=True, levels=[])
def ordinary() -> int:
    return int(aft.session().execute(text("SELECT 1")).scalar_one())


@aft.flow(name="transactions_working")
def working() -> int:
    """Work on all connections: none is in the way of anybody."""
    return sum(ordinary() for _ in range(CALLS))


def prepare(setup: Setup, table: str) -> aft.Aft:
    """Make an app, and a table of texts in its database."""
    app = setup.app()
    app.check()
    with app.store.write() as connection:
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {table} (id TEXT)"))
    return app


def written(app: aft.Aft, table: str, order: str) -> list[str]:
    """What was written for an order, without its name."""
    with app.store.read() as connection:
        found = connection.execute(text(f"SELECT id FROM {table} WHERE id LIKE :id"), {"id": f"{order}%"})
        return sorted(one.removeprefix(order).removeprefix("-") for one in found.scalars())
