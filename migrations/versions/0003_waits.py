"""Adds waits, branches, children, deadlines, and signals with keys."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in _added():
        op.add_column(table, column)
    op.create_index(
        "ix_aft_runs_parent",
        "aft_runs",
        ["parent_id"],
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    )
    urgent = sa.text("sweep_at IS NOT NULL AND priority > 0")
    op.create_index(
        "ix_aft_runs_urgent", "aft_runs", ["namespace", "sweep_at"], postgresql_where=urgent, sqlite_where=urgent
    )
    op.create_index("uq_aft_inbox_key", "aft_inbox", ["run_id", "key"], unique=True)


def downgrade() -> None:
    op.drop_index("uq_aft_inbox_key", table_name="aft_inbox")
    op.drop_index("ix_aft_runs_urgent", table_name="aft_runs")
    op.drop_index("ix_aft_runs_parent", table_name="aft_runs")
    for table, column in _added():
        op.drop_column(table, column.name)


def _added() -> list[tuple[str, sa.Column[Any]]]:
    return [
        ("aft_runs", sa.Column("waits", sa.Text())),
        ("aft_runs", sa.Column("savepoints", sa.Text())),
        ("aft_runs", sa.Column("deadline_at", Moment())),
        ("aft_journal", sa.Column("beside", sa.Integer())),
        ("aft_frames", sa.Column("child_id", sa.String(length=64))),
        ("aft_faults", sa.Column("signal", sa.String(length=200))),
        ("aft_inbox", sa.Column("key", sa.String(length=400))),
        ("aft_inbox", sa.Column("note", sa.Text())),
    ]
