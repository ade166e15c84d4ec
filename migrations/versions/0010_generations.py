"""Adds generations to children and pivots, and the place of a child's frame in its parent's stack."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_runs", sa.Column("parent_generation", sa.Integer))
    op.add_column("aft_runs", sa.Column("parent_seq", sa.BigInteger))
    op.add_column("aft_runs", sa.Column("parent_inbox_seq", sa.BigInteger))
    op.add_column("aft_runs", sa.Column("pivoted_at", Moment))
    op.add_column("aft_frames", sa.Column("after_seq", sa.BigInteger))
    op.add_column("aft_frames", sa.Column("after_inbox_seq", sa.BigInteger))
    # Earlier versions did not tell the generations of children apart.
    op.execute("UPDATE aft_runs SET parent_generation = 0 WHERE parent_id IS NOT NULL")
    op.execute(
        "UPDATE aft_runs SET pivoted_at = (SELECT min(recorded_at) FROM aft_journal "
        "WHERE aft_journal.run_id = aft_runs.id AND kind = 'pivot') "
        "WHERE id IN (SELECT run_id FROM aft_journal WHERE kind = 'pivot')"
    )


def downgrade() -> None:
    op.drop_column("aft_frames", "after_inbox_seq")
    op.drop_column("aft_frames", "after_seq")
    op.drop_column("aft_runs", "pivoted_at")
    op.drop_column("aft_runs", "parent_inbox_seq")
    op.drop_column("aft_runs", "parent_seq")
    op.drop_column("aft_runs", "parent_generation")
