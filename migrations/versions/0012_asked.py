"""Adds to the journal the arguments that the flow's code gave, where a rule has changed them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_journal", sa.Column("asked", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("aft_journal", "asked")
