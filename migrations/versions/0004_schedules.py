"""Schedules: flows that are run at certain times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "aft_schedules",
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("flow", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("declared_version", sa.Integer(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("cron", sa.String(length=200)),
        sa.Column("every_seconds", sa.Float()),
        sa.Column("zone", sa.String(length=100), nullable=False),
        sa.Column("catch_up", sa.String(length=10), nullable=False),
        sa.Column("overlap", sa.Boolean(), nullable=False),
        sa.Column("since", Moment(), nullable=False),
        sa.Column("next_at", Moment()),
        sa.Column("last_at", Moment()),
        sa.Column("last_run_id", sa.String(length=64)),
        sa.Column("skipped_at", Moment()),
        sa.Column("skipped_why", sa.Text()),
        sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("broken", sa.Text()),
        sa.Column("made_by", sa.String(length=200), nullable=False),
        sa.Column("changed_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name="pk_aft_schedules"),
    )
    op.create_index(
        "ix_aft_schedules_next",
        "aft_schedules",
        ["namespace", "next_at"],
        postgresql_where=sa.text("next_at IS NOT NULL"),
        sqlite_where=sa.text("next_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_aft_schedules_next", table_name="aft_schedules")
    op.drop_table("aft_schedules")
