"""Adds a mark to runs whose values were erased."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_runs", sa.Column("erased_at", Moment(), nullable=True))


def downgrade() -> None:
    op.drop_column("aft_runs", "erased_at")
