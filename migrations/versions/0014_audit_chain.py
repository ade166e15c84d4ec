"""Adds the actors of audit records and their hash chain; records outlive their runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_NAMES = {"fk": "fk_%(table_name)s_%(column_0_name)s"}


def upgrade() -> None:
    with op.batch_alter_table("aft_audit", naming_convention=_NAMES) as table:
        table.add_column(sa.Column("os_user", sa.String(200), nullable=True))
        table.add_column(sa.Column("db_user", sa.String(200), nullable=True))
        table.add_column(sa.Column("seq", sa.BigInteger(), nullable=True))
        table.add_column(sa.Column("hash", sa.String(64), nullable=True))
        table.drop_constraint(_foreign_key(), type_="foreignkey")
    if op.get_bind().dialect.name == "postgresql":
        # Not by whoever writes: the server says whose session it is.
        op.execute("ALTER TABLE aft_audit ALTER COLUMN db_user SET DEFAULT SESSION_USER")
    op.create_index("ux_aft_audit_seq", "aft_audit", ["seq"], unique=True)
    loose = sa.text("seq IS NULL")
    op.create_index("ix_aft_audit_loose", "aft_audit", ["id"], postgresql_where=loose, sqlite_where=loose)


def downgrade() -> None:
    op.drop_index("ix_aft_audit_loose", "aft_audit")
    op.drop_index("ux_aft_audit_seq", "aft_audit")
    op.execute("DELETE FROM aft_audit WHERE run_id NOT IN (SELECT id FROM aft_runs)")
    with op.batch_alter_table("aft_audit") as table:
        for column in ("hash", "seq", "db_user", "os_user"):
            table.drop_column(column)
        table.create_foreign_key("aft_audit_run_id_fkey", "aft_runs", ["run_id"], ["id"], ondelete="CASCADE")


def _foreign_key() -> str:
    (found,) = sa.inspect(op.get_bind()).get_foreign_keys("aft_audit")
    return found["name"] or "fk_aft_audit_run_id"
