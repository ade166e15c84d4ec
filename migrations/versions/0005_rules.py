"""Adds rules and exlets: trees, plans and their holds, notices, and columns of faults."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_OPEN = sa.text("state = 'open'")


def upgrade() -> None:
    for table, column in _added():
        op.add_column(table, column)
    op.create_index("ix_aft_faults_signature", "aft_faults", ["namespace", "name", "type", "raised_at"])
    op.create_table(
        "aft_rule_books",
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", name="pk_aft_rule_books"),
    )
    op.create_table(
        "aft_rule_trees",
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("flow", sa.String(length=200), nullable=False),
        sa.Column("exception", sa.String(length=20), nullable=False),
        sa.Column("activity", sa.String(length=200), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("tree", sa.Text(), nullable=False),
        *_made(),
        sa.PrimaryKeyConstraint("namespace", "flow", "exception", "activity", "revision", name="pk_aft_rule_trees"),
    )
    op.create_table(
        "aft_exlets",
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("exlet", sa.Text(), nullable=False),
        *_made(),
        sa.PrimaryKeyConstraint("namespace", "name", "revision", name="pk_aft_exlets"),
    )
    _create_plans()
    _create_notices()


def downgrade() -> None:
    for table in ("notices", "holds", "plans", "exlets", "rule_trees", "rule_books"):
        op.drop_table(f"aft_{table}")
    op.drop_index("ix_aft_faults_signature", table_name="aft_faults")
    for table, column in _added():
        op.drop_column(table, column.name)


def _added() -> list[tuple[str, sa.Column[Any]]]:
    return [
        ("aft_workers", sa.Column("sources", sa.Text())),
        ("aft_runs", sa.Column("tags", sa.Text())),
        ("aft_faults", sa.Column("exception", sa.String(length=20))),
        ("aft_faults", sa.Column("step", sa.Text())),
        ("aft_faults", sa.Column("decision", sa.Text())),
        ("aft_faults", sa.Column("ruling", sa.Text())),
    ]


def _made() -> list[sa.Column[Any]]:
    return [
        sa.Column("made_by", sa.String(length=200), nullable=False),
        sa.Column("made_at", Moment(), nullable=False),
        sa.Column("note", sa.Text()),
    ]


def _create_plans() -> None:
    op.create_table(
        "aft_plans",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("fault_id", sa.String(length=64), nullable=False),
        sa.Column("exlet", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("reached", sa.String(length=64)),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("due_at", Moment(), nullable=False),
        sa.Column("made_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment()),
        sa.PrimaryKeyConstraint("id", name="pk_aft_plans"),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name="fk_aft_plans_run_id", ondelete="CASCADE"),
    )
    op.create_index("ix_aft_plans_run", "aft_plans", ["run_id", "id"])
    op.create_index(
        "ix_aft_plans_open", "aft_plans", ["namespace", "due_at"], postgresql_where=_OPEN, sqlite_where=_OPEN
    )
    op.create_table(
        "aft_holds",
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=20), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "run_id", name="pk_aft_holds"),
        sa.ForeignKeyConstraint(["plan_id"], ["aft_plans.id"], name="fk_aft_holds_plan_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name="fk_aft_holds_run_id", ondelete="CASCADE"),
    )


def _create_notices() -> None:
    op.create_table(
        "aft_notices",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("due_at", Moment(), nullable=False),
        sa.Column("made_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment()),
        sa.Column("note", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_aft_notices"),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name="fk_aft_notices_run_id", ondelete="CASCADE"),
    )
    op.create_index("ix_aft_notices_run", "aft_notices", ["run_id", "id"])
    op.create_index(
        "ix_aft_notices_due", "aft_notices", ["namespace", "due_at"], postgresql_where=_OPEN, sqlite_where=_OPEN
    )
