"""Adds to the journal which steps failed because they were interrupted, and the reach of that interrupt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_journal", sa.Column("interrupt", sa.String(400)))


def downgrade() -> None:
    op.drop_column("aft_journal", "interrupt")
