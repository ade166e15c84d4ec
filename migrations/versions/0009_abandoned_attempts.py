"""Adds to a worker's row the attempts that it gave up and that have not returned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_workers", sa.Column("abandoned", sa.Text))


def downgrade() -> None:
    op.drop_column("aft_workers", "abandoned")
