"""Drops constraints and indexes that each step of each run has to write, and that nothing needs.

A journal's row is written by the owner of its run only, whose guarded write has just locked the run's row; so the
foreign keys of journal and frames, and the second unique index of the journal, had nothing to prevent. A flow's runs
are found by the unique index of keys. The index of roots needs only children.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_OF_CHILDREN = sa.text("parent_id IS NOT NULL")
_TABLES = ("aft_journal", "aft_frames")
_NAMES = {"fk": "fk_%(table_name)s_%(column_0_name)s"}


def upgrade() -> None:
    for table in _TABLES:
        with op.batch_alter_table(table, naming_convention=_NAMES) as altered:
            (found,) = sa.inspect(op.get_bind()).get_foreign_keys(table)
            altered.drop_constraint(found["name"] or f"fk_{table}_run_id", type_="foreignkey")
            if table == "aft_journal":
                altered.drop_constraint("uq_aft_journal_seq", type_="unique")
    op.drop_index("ix_aft_runs_flow", "aft_runs")
    op.drop_index("ix_aft_runs_root", "aft_runs")
    op.create_index(
        "ix_aft_runs_root", "aft_runs", ["root_id"], postgresql_where=_OF_CHILDREN, sqlite_where=_OF_CHILDREN
    )


def downgrade() -> None:
    op.drop_index("ix_aft_runs_root", "aft_runs")
    op.create_index("ix_aft_runs_root", "aft_runs", ["root_id"])
    op.create_index("ix_aft_runs_flow", "aft_runs", ["namespace", "flow", "id"])
    for table in _TABLES:
        op.execute(f"DELETE FROM {table} WHERE run_id NOT IN (SELECT id FROM aft_runs)")
        with op.batch_alter_table(table) as altered:
            altered.create_foreign_key(f"fk_{table}_run_id", "aft_runs", ["run_id"], ["id"], ondelete="CASCADE")
            if table == "aft_journal":
                altered.create_unique_constraint("uq_aft_journal_seq", ["run_id", "seq"])
