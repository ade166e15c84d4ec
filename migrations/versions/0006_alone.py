"""Adds an index to find runs that must be executed alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    alone = sa.text("sweep_at IS NOT NULL AND deaths >= 2")
    op.create_index(
        "ix_aft_runs_alone", "aft_runs", ["namespace", "sweep_at"], postgresql_where=alone, sqlite_where=alone
    )


def downgrade() -> None:
    op.drop_index("ix_aft_runs_alone", table_name="aft_runs")
