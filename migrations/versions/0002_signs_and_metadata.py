"""Adds the liveness locks of workers, runs' expected durations, and quarantine that can be released."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in _added():
        op.add_column(table, column)
    op.create_index(
        "ix_aft_runs_overdue",
        "aft_runs",
        ["namespace", "overdue_at"],
        postgresql_where=sa.text("overdue_at IS NOT NULL"),
        sqlite_where=sa.text("overdue_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_aft_runs_overdue", table_name="aft_runs")
    for table, column in _added():
        op.drop_column(table, column.name)


def _added() -> list[tuple[str, sa.Column[Any]]]:
    return [
        ("aft_workers", sa.Column("died", sa.Boolean(), server_default=sa.text("false"), nullable=False)),
        ("aft_workers", sa.Column("sign", sa.Text())),
        ("aft_runs", sa.Column("resources", sa.Text())),
        ("aft_runs", sa.Column("expected_seconds", sa.Float())),
        ("aft_runs", sa.Column("overdue_at", Moment())),
        ("aft_faults", sa.Column("resource", sa.String(length=200))),
        ("aft_quarantine", sa.Column("state", sa.String(length=20), server_default=sa.text("'held'"), nullable=False)),
        ("aft_quarantine", sa.Column("settled_at", Moment())),
        ("aft_quarantine", sa.Column("settled_by", sa.String(length=200))),
        ("aft_quarantine", sa.Column("note", sa.Text())),
    ]
