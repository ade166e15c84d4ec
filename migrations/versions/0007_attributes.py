"""Adds the attributes of a fault's exception, so that it can be rebuilt as it was raised."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    empty = sa.text("'{}'")
    op.add_column("aft_faults", sa.Column("attributes", sa.Text(), nullable=False, server_default=empty))


def downgrade() -> None:
    op.drop_column("aft_faults", "attributes")
