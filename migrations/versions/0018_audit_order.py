"""Adds the order in which audit records were written, as PostgreSQL counts it: ids and times are the writer's choice.

SQLite has it already, as the number of each row.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("aft_audit", sa.Column("number", sa.BigInteger(), nullable=True))
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "UPDATE aft_audit AS a SET number = o.place FROM (SELECT id, row_number() "
            "OVER (ORDER BY seq NULLS LAST, id) AS place FROM aft_audit) AS o WHERE o.id = a.id"
        )
        op.execute("CREATE SEQUENCE aft_audit_number_seq OWNED BY aft_audit.number")
        op.execute("SELECT setval('aft_audit_number_seq', (SELECT count(*) + 1 FROM aft_audit), false)")
        op.execute("ALTER TABLE aft_audit ALTER COLUMN number SET DEFAULT nextval('aft_audit_number_seq')")
    op.create_index("ix_aft_audit_number", "aft_audit", ["number"])


def downgrade() -> None:
    op.drop_index("ix_aft_audit_number", "aft_audit")
    op.drop_column("aft_audit", "number")
