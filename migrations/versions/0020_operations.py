"""Adds operations: one order to many runs, and what came of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_IS_OPEN, _IS_HELD = sa.text("state = 'open'"), sa.text("state IN ('selected', 'ordered')")


def upgrade() -> None:
    op.create_table(
        "aft_operations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("namespace", sa.String(40), nullable=False),
        sa.Column("verb", sa.String(20), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("wanted", sa.Text, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("why", sa.Text),
        sa.Column("brake", sa.Float, nullable=False),
        sa.Column("rate", sa.Float),
        sa.Column("patience", sa.Float, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("batch", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("batch_size", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("made_by", sa.String(200), nullable=False),
        sa.Column("changed_by", sa.String(200), nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("made_at", Moment, nullable=False),
        sa.Column("seen_at", Moment),
        sa.Column("ordered_at", Moment),
        sa.Column("due_at", Moment),
        sa.Column("ended_at", Moment),
    )
    op.create_index("ix_aft_operations_listing", "aft_operations", ["namespace", "id"])
    op.create_index(
        "ix_aft_operations_due",
        "aft_operations",
        ["namespace", "due_at"],
        postgresql_where=_IS_OPEN,
        sqlite_where=_IS_OPEN,
    )
    op.create_table(
        "aft_operation_runs",
        sa.Column(
            "operation_id",
            sa.String(64),
            sa.ForeignKey("aft_operations.id", name="fk_aft_operation_runs_operation_id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("batch", sa.Integer),
        sa.Column("group_id", sa.String(12)),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("fault_id", sa.String(64)),
        sa.Column("expected", sa.String(20)),
        sa.Column("note", sa.Text),
        sa.Column("ordered_at", Moment),
        sa.Column("settled_at", Moment),
    )
    op.create_index("ix_aft_operation_runs_state", "aft_operation_runs", ["operation_id", "state", "position"])
    op.create_index(
        "uq_aft_operation_runs_held",
        "aft_operation_runs",
        ["run_id"],
        unique=True,
        postgresql_where=_IS_HELD,
        sqlite_where=_IS_HELD,
    )


def downgrade() -> None:
    op.drop_table("aft_operation_runs")
    op.drop_table("aft_operations")
