"""Alembic's entry: runs the migrations on the connection it is handed."""

from __future__ import annotations

from alembic import context

from aft.store.schema import VERSION_TABLE
from aft.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    compare_type=True,
    # The caller's transaction holds the upgrade lock and commits all of it or nothing.
    transaction_per_migration=False,
)
context.run_migrations()
