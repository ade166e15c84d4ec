"""Renames columns of faults, and the column of a worker's liveness lock."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_RENAMED = {
    "aft_faults": {
        "exception": "rule_type",
        "step": "step_snapshot",
        "status": "http_status",
        "said": "own_answer",
        "declared": "declared_answer",
        "exact": "args_exact",
        "verdict": "why",
    },
    "aft_workers": {"sign": "liveness_lock"},
}


def upgrade() -> None:
    for table, columns in _RENAMED.items():
        for old, new in columns.items():
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")


def downgrade() -> None:
    for table, columns in _RENAMED.items():
        for old, new in columns.items():
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
