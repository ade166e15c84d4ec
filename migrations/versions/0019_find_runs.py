"""Adds what runs are found by: labels (tags, resources), flows, owners, keys by their beginnings, and failure groups.

The unique index of keys begins with the key now, and holds only runs that have one.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_HAS_KEY, _HAS_OWNER = sa.text("key IS NOT NULL"), sa.text("owner IS NOT NULL")
#: Runs whose labels are written at a time.
_PAGE = 1000


def upgrade() -> None:
    with op.batch_alter_table("aft_runs") as altered:
        altered.drop_constraint("uq_aft_runs_key", type_="unique")
    op.create_index(
        "uq_aft_runs_key",
        "aft_runs",
        ["namespace", "key", "flow"],
        unique=True,
        postgresql_ops={"key": "text_pattern_ops"},
        postgresql_where=_HAS_KEY,
        sqlite_where=_HAS_KEY,
    )
    op.create_index("ix_aft_runs_flow", "aft_runs", ["namespace", "flow", "id"])
    op.create_index(
        "ix_aft_runs_owner",
        "aft_runs",
        ["namespace", "owner", "id"],
        postgresql_where=_HAS_OWNER,
        sqlite_where=_HAS_OWNER,
    )
    op.add_column("aft_faults", sa.Column("group_id", sa.String(12), nullable=True))
    op.create_index("ix_aft_faults_group", "aft_faults", ["namespace", "group_id", "raised_at"])
    op.create_table(
        "aft_run_labels",
        sa.Column("namespace", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(220), primary_key=True),
        sa.Column("value", sa.String(400), primary_key=True),
        sa.Column("run_id", sa.String(64), primary_key=True),
    )
    op.create_index("ix_aft_run_labels_run", "aft_run_labels", ["run_id"])
    _label_runs(op.get_bind())


def _label_runs(connection: sa.Connection) -> None:
    after = ""
    page = sa.text(
        "SELECT id, namespace, resources, tags FROM aft_runs "
        "WHERE id > :after AND (resources IS NOT NULL OR tags IS NOT NULL) ORDER BY id LIMIT :page"
    )
    insert = sa.text(
        "INSERT INTO aft_run_labels (namespace, name, value, run_id) VALUES (:namespace, :name, :value, :id)"
    )
    while found := connection.execute(page, {"after": after, "page": _PAGE}).all():
        labels = [
            {"namespace": row.namespace, "name": name, "value": value, "id": row.id}
            for row in found
            for name, value in _labels(row.resources, row.tags)
        ]
        if labels:
            connection.execute(insert, labels)
        after = found[-1].id


def _labels(resources: str | None, tags: str | None) -> set[tuple[str, str]]:
    try:
        named, tagged = json.loads(resources or "[]"), json.loads(tags or "{}")
        found = [("resource", name) for name in named] + [(f"tag:{name}", value) for name, value in tagged.items()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return set()  # a damaged row has no labels
    texts = {(name, json.dumps(value)) for name, value in found if not isinstance(value, list | dict)}
    return {(name, value) for name, value in texts if len(name) <= 220 and len(value) <= 400}


def downgrade() -> None:
    op.drop_table("aft_run_labels")
    op.drop_index("ix_aft_faults_group", "aft_faults")
    op.drop_column("aft_faults", "group_id")
    op.drop_index("ix_aft_runs_owner", "aft_runs")
    op.drop_index("ix_aft_runs_flow", "aft_runs")
    op.drop_index("uq_aft_runs_key", "aft_runs")
    with op.batch_alter_table("aft_runs") as altered:
        altered.create_unique_constraint("uq_aft_runs_key", ["namespace", "flow", "key"])
