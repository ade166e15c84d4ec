"""Adds the submitted arguments of a run that continues as new, and which arguments were defaults."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_runs", sa.Column("first_args", sa.Text(), nullable=True))
    op.add_column("aft_runs", sa.Column("defaulted", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("aft_runs", "defaulted")
    op.drop_column("aft_runs", "first_args")
