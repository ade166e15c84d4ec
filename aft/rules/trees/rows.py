"""Rows of rule trees and exlets: one row for each revision, the latest in force.

Who may run at the same time: several editors, and every process that asks rules. An editor locks the namespace's row of
``rule_books`` by raising its version, so edits are serialized; one that began from a revision that is not the latest
any more is refused. Readers read the version first: it rises with the edit's own commit, so a reader that sees a new
version sees the edit. Revisions are immutable; undoing one writes the earlier one again, as a new revision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from aft.errors import RuleRefused
from aft.rules.rule_types import RuleType
from aft.rules.trees.tree import Tree
from aft.store.db_time import now
from aft.store.tables import exlets, rule_books, rule_trees

#: Flow, rule type, activity.
Key = tuple[str, RuleType, str]


#: The number of changes where the row holds no number: SQLite stores any type. Then they may have changed at any time.
UNREADABLE = -1


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a tree or an exlet, not decoded yet."""

    #: Of a tree: flow, exception, activity; of an exlet its name.
    key: tuple[str, ...]
    number: int
    text: str = field(repr=False)
    made_by: str
    made_at: datetime
    note: str | None


def version(connection: Connection, namespace: str) -> int:
    """Return how often the rules have changed, or UNREADABLE if its row does not tell."""
    found = connection.execute(select(rule_books.c.version).where(rule_books.c.namespace == namespace)).scalar()
    return found or 0 if isinstance(found, int | None) else UNREADABLE


def begin_edit(connection: Connection, namespace: str) -> None:
    """Lock the rules against other editors until the transaction ends; readers see the edit after its commit."""
    insert_ = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    raised = {"version": rule_books.c.version + 1}
    connection.execute(
        insert_(rule_books)
        .values(namespace=namespace, version=1)
        .on_conflict_do_update(index_elements=["namespace"], set_=raised)
    )


def latest_trees(connection: Connection, namespace: str) -> list[Revision]:
    """Return the latest revision of every tree."""
    return _latest(connection, namespace, rule_trees, ("flow", "exception", "activity"))


def latest_exlets(connection: Connection, namespace: str) -> list[Revision]:
    """Return the latest revision of every exlet."""
    return _latest(connection, namespace, exlets, ("name",))


def tree_history(connection: Connection, namespace: str, key: Key | None = None, limit: int = 50) -> list[Revision]:
    """Return the newest revisions, of one tree or of all, newest first."""
    statement = select(rule_trees).where(rule_trees.c.namespace == namespace)
    if key is not None:
        statement = statement.where(_is_tree(key))
    statement = statement.order_by(rule_trees.c.made_at.desc(), rule_trees.c.revision.desc()).limit(limit)
    return [_revision(rule_trees, ("flow", "exception", "activity"), row) for row in connection.execute(statement)]


def tree_revision(connection: Connection, namespace: str, key: Key, number: int | None = None) -> Revision | None:
    """Return one revision of a tree, or its latest; None if there is none."""
    statement = select(rule_trees).where(rule_trees.c.namespace == namespace, _is_tree(key))
    if number is not None:
        statement = statement.where(rule_trees.c.revision == number)
    row = connection.execute(statement.order_by(rule_trees.c.revision.desc()).limit(1)).one_or_none()
    return None if row is None else _revision(rule_trees, ("flow", "exception", "activity"), row)


def exlet_history(connection: Connection, namespace: str, name: str) -> list[Revision]:
    """Return the revisions of an exlet, newest first."""
    statement = select(exlets).where(exlets.c.namespace == namespace, exlets.c.name == name)
    return [
        _revision(exlets, ("name",), row) for row in connection.execute(statement.order_by(exlets.c.revision.desc()))
    ]


def add_tree(
    connection: Connection, namespace: str, key: Key, text: str, by: str, note: str | None, base: int | None
) -> int:
    """Put a new revision of a tree in force; only after ``begin_edit``. ``base`` is the one that it was made from.

    Raises RuleRefused if the tree has been changed since.
    """
    found = tree_revision(connection, namespace, key)
    _check_base(" × ".join(part or "(run)" for part in key), found, base)
    number = 1 if found is None else found.number + 1
    flow, on, activity = key
    connection.execute(
        insert(rule_trees).values(
            namespace=namespace,
            flow=flow,
            exception=on.value,
            activity=activity,
            revision=number,
            tree=text,
            made_by=by[:200],
            made_at=now(),
            note=note,
        )
    )
    return number


def add_exlet(
    connection: Connection, namespace: str, name: str, text: str, by: str, note: str | None, base: int | None
) -> int:
    """Put a new revision of an exlet in force; only after ``begin_edit``. Raises RuleRefused as ``add_tree`` does."""
    history = exlet_history(connection, namespace, name)
    found = history[0] if history else None
    _check_base(f"exlet {name!r}", found, base)
    number = 1 if found is None else found.number + 1
    connection.execute(
        insert(exlets).values(
            namespace=namespace, name=name, revision=number, exlet=text, made_by=by[:200], made_at=now(), note=note
        )
    )
    return number


def _check_base(what: str, found: Revision | None, base: int | None) -> None:
    latest = 0 if found is None else found.number
    if base is not None and base != latest:
        since = f"revision {latest} by {found.made_by}" if found is not None else "it is gone"
        raise RuleRefused(
            f"{what} has changed since you looked at revision {base}: {since}; look again, then repeat your change"
        )


def _is_tree(key: Key) -> Any:
    flow, on, activity = key
    return and_(rule_trees.c.flow == flow, rule_trees.c.exception == on.value, rule_trees.c.activity == activity)


def _latest(connection: Connection, namespace: str, table: Table, names: tuple[str, ...]) -> list[Revision]:
    columns = [table.c[name] for name in names]
    newest = (
        select(*columns, func.max(table.c.revision).label("revision"))
        .where(table.c.namespace == namespace)
        .group_by(*columns)
        .subquery()
    )
    same = and_(*(table.c[name] == newest.c[name] for name in (*names, "revision")))
    statement = select(table).join(newest, same).where(table.c.namespace == namespace).order_by(*columns)
    return [_revision(table, names, row) for row in connection.execute(statement)]


def _revision(table: Table, names: tuple[str, ...], row: Row[Any]) -> Revision:
    values = row._mapping
    text = values[table.c.tree] if "tree" in table.c else values[table.c.exlet]
    key = tuple(values[table.c[name]] for name in names)
    return Revision(key, row.revision, text, row.made_by, row.made_at, row.note)


def read_tree(revision: Revision) -> Tree:
    """Decode a tree; raises ValueError if that fails."""
    return replace(Tree.decode(revision.text), revision=revision.number)


def decode_key(key: tuple[str, ...]) -> Key:
    """Decode the key of a tree's row."""
    flow, on, activity = key
    return flow, RuleType(on), activity
