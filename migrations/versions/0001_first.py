"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from aft.store.db_time import Moment

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "aft_delays",
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("wait_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("declared_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "wait_ms", name=op.f("pk_aft_delays")),
    )
    op.create_table(
        "aft_messages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("queue", sa.String(length=255), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("visible_at", Moment(), nullable=False),
        sa.Column("consumer", sa.String(length=64), nullable=True),
        sa.Column("deliveries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_messages")),
    )
    op.create_index("ix_aft_messages_visible", "aft_messages", ["target", "visible_at"], unique=False)
    op.create_table(
        "aft_outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("queue", sa.String(length=255), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("taken_until", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_outbox")),
    )
    op.create_index("ix_aft_outbox_taken", "aft_outbox", ["namespace", "taken_until"], unique=False)
    op.create_table(
        "aft_quarantine",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("queue", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_quarantine")),
    )
    op.create_index("ix_aft_quarantine_listing", "aft_quarantine", ["namespace", "id"], unique=False)
    op.create_table(
        "aft_queues",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("wait_ms", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_aft_queues")),
    )
    op.create_table(
        "aft_runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("flow", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=400), nullable=True),
        sa.Column("key_generation", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("cause", sa.String(length=20), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("ended_as", sa.String(length=20), nullable=True),
        sa.Column("fault_id", sa.String(length=64), nullable=True),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("root_id", sa.String(length=64), nullable=False),
        sa.Column("parent_id", sa.String(length=64), nullable=True),
        sa.Column("parent_path", sa.String(length=400), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=True),
        sa.Column("wake_id", sa.String(length=64), nullable=True),
        sa.Column("due_at", Moment(), nullable=True),
        sa.Column("sweep_at", Moment(), nullable=True),
        sa.Column("seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("inbox_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("deaths", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("deaths_alone", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("started_at", Moment(), nullable=True),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_runs")),
        sa.UniqueConstraint("namespace", "flow", "key", name="uq_aft_runs_key"),
    )
    op.create_index("ix_aft_runs_flow", "aft_runs", ["namespace", "flow", "id"], unique=False)
    op.create_index("ix_aft_runs_root", "aft_runs", ["root_id"], unique=False)
    op.create_index("ix_aft_runs_status", "aft_runs", ["namespace", "status", "id"], unique=False)
    op.create_index(
        "ix_aft_runs_sweep",
        "aft_runs",
        ["namespace", "sweep_at"],
        unique=False,
        postgresql_where=sa.text("sweep_at IS NOT NULL"),
        sqlite_where=sa.text("sweep_at IS NOT NULL"),
    )
    op.create_index(
        "ix_aft_runs_worker",
        "aft_runs",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("worker_id IS NOT NULL"),
        sqlite_where=sa.text("worker_id IS NOT NULL"),
    )
    op.create_table(
        "aft_workers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("flows", sa.Text(), nullable=False),
        sa.Column("started_at", Moment(), nullable=False),
        sa.Column("expires_at", Moment(), nullable=False),
        sa.Column("stopped_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_workers")),
    )
    op.create_index("ix_aft_workers_live", "aft_workers", ["namespace", "expires_at"], unique=False)
    op.create_table(
        "aft_audit",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name=op.f("fk_aft_audit_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_audit")),
    )
    op.create_index("ix_aft_audit_run", "aft_audit", ["run_id", "id"], unique=False)
    op.create_table(
        "aft_faults",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=400), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=400), nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("said", sa.String(length=20), nullable=True),
        sa.Column("declared", sa.String(length=20), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("after_seconds", sa.Float(), nullable=True),
        sa.Column("ladder", sa.Text(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("try_in_level", sa.Integer(), nullable=True),
        sa.Column("wait_seconds", sa.Float(), nullable=True),
        sa.Column("queue", sa.String(length=255), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("due_at", Moment(), nullable=True),
        sa.Column("raised_at", Moment(), nullable=False),
        sa.Column("decided_at", Moment(), nullable=True),
        sa.Column("settled_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name=op.f("fk_aft_faults_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_faults")),
    )
    op.create_index("ix_aft_faults_listing", "aft_faults", ["namespace", "id"], unique=False)
    op.create_index(
        "ix_aft_faults_open",
        "aft_faults",
        ["namespace", "raised_at"],
        unique=False,
        postgresql_where=sa.text("state = 'open'"),
        sqlite_where=sa.text("state = 'open'"),
    )
    op.create_index("ix_aft_faults_run", "aft_faults", ["run_id", "id"], unique=False)
    op.create_table(
        "aft_frames",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.String(length=400), nullable=False),
        sa.Column("scope", sa.String(length=400), nullable=False),
        sa.Column("activity", sa.String(length=200), nullable=False),
        sa.Column("compensator", sa.String(length=400), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("args", sa.Text(), nullable=True),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("key_generation", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("pushed_at", Moment(), nullable=False),
        sa.Column("settled_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name=op.f("fk_aft_frames_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_aft_frames")),
    )
    op.create_table(
        "aft_inbox",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("read_epoch", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name=op.f("fk_aft_inbox_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_aft_inbox")),
        sa.UniqueConstraint("id", name=op.f("uq_aft_inbox_id")),
    )
    op.create_table(
        "aft_journal",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("path", sa.String(length=400), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("scope", sa.String(length=400), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("args", sa.Text(), nullable=True),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("fault_id", sa.String(length=64), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("key_generation", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["aft_runs.id"], name=op.f("fk_aft_journal_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_aft_journal")),
        sa.UniqueConstraint("run_id", "seq", name="uq_aft_journal_seq"),
    )
    op.create_table(
        "aft_late_effects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=400), nullable=False),
        sa.Column("scope", sa.String(length=400), nullable=False),
        sa.Column("activity", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=500), nullable=False),
        sa.Column("key_generation", sa.Integer(), nullable=False),
        sa.Column("compensator", sa.String(length=400), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("settled_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["aft_runs.id"], name=op.f("fk_aft_late_effects_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aft_late_effects")),
    )
    op.create_index(
        "ix_aft_late_effects_open",
        "aft_late_effects",
        ["namespace", "at"],
        unique=False,
        postgresql_where=sa.text("state = 'open'"),
        sqlite_where=sa.text("state = 'open'"),
    )
    op.create_index("ix_aft_late_effects_run", "aft_late_effects", ["run_id"], unique=False)


def downgrade() -> None:

    op.drop_index("ix_aft_late_effects_run", table_name="aft_late_effects")
    op.drop_index(
        "ix_aft_late_effects_open",
        table_name="aft_late_effects",
        postgresql_where=sa.text("state = 'open'"),
        sqlite_where=sa.text("state = 'open'"),
    )
    op.drop_table("aft_late_effects")
    op.drop_table("aft_journal")
    op.drop_table("aft_inbox")
    op.drop_table("aft_frames")
    op.drop_index("ix_aft_faults_run", table_name="aft_faults")
    op.drop_index(
        "ix_aft_faults_open",
        table_name="aft_faults",
        postgresql_where=sa.text("state = 'open'"),
        sqlite_where=sa.text("state = 'open'"),
    )
    op.drop_index("ix_aft_faults_listing", table_name="aft_faults")
    op.drop_table("aft_faults")
    op.drop_index("ix_aft_audit_run", table_name="aft_audit")
    op.drop_table("aft_audit")
    op.drop_index("ix_aft_workers_live", table_name="aft_workers")
    op.drop_table("aft_workers")
    op.drop_index(
        "ix_aft_runs_worker",
        table_name="aft_runs",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
        sqlite_where=sa.text("worker_id IS NOT NULL"),
    )
    op.drop_index(
        "ix_aft_runs_sweep",
        table_name="aft_runs",
        postgresql_where=sa.text("sweep_at IS NOT NULL"),
        sqlite_where=sa.text("sweep_at IS NOT NULL"),
    )
    op.drop_index("ix_aft_runs_status", table_name="aft_runs")
    op.drop_index("ix_aft_runs_root", table_name="aft_runs")
    op.drop_index("ix_aft_runs_flow", table_name="aft_runs")
    op.drop_table("aft_runs")
    op.drop_table("aft_queues")
    op.drop_index("ix_aft_quarantine_listing", table_name="aft_quarantine")
    op.drop_table("aft_quarantine")
    op.drop_index("ix_aft_outbox_taken", table_name="aft_outbox")
    op.drop_table("aft_outbox")
    op.drop_index("ix_aft_messages_visible", table_name="aft_messages")
    op.drop_table("aft_messages")
    op.drop_table("aft_delays")
