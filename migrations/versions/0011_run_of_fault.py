"""Adds to faults their run's state and tags at the decision, and an index of parked runs without a notice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_faults", sa.Column("run_status", sa.String(20)))
    op.add_column("aft_faults", sa.Column("run_tags", sa.Text()))
    op.add_column("aft_runs", sa.Column("parked_told", sa.BigInteger()))
    untold = sa.text("status = 'parked' AND wake_id IS NULL AND (parked_told IS NULL OR parked_told != epoch)")
    op.create_index("ix_aft_runs_untold", "aft_runs", ["namespace", "id"], postgresql_where=untold, sqlite_where=untold)


def downgrade() -> None:
    op.drop_index("ix_aft_runs_untold", table_name="aft_runs")
    op.drop_column("aft_runs", "parked_told")
    op.drop_column("aft_faults", "run_tags")
    op.drop_column("aft_faults", "run_status")
