"""Checks and migrates the database's schema.

An empty SQLite file is migrated automatically; PostgreSQL only by ``aft db upgrade``. Two processes that upgrade at
once do it one after the other: the second finds nothing to do.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from aft.errors import NotMigrated, StoreError
from aft.store.engine import Store

if TYPE_CHECKING:
    from alembic.config import Config

#: The newest migration; a test holds it against the files.
HEAD = "0016"
VERSION_TABLE = "aft_schema_version"

_LOCK = 7_234_109_552
#: Alembic keeps what it is doing in globals: one migration at a time in a process.
_migrating = threading.Lock()


def _forget_in_child() -> None:
    """After a fork: replace the lock, which a thread of the parent may hold."""
    global _migrating
    _migrating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def current(store: Store) -> str | None:
    """Return the schema version of the database; None if it has no aft tables."""
    with store.read() as connection:
        return _version(connection)


def check(store: Store) -> None:
    """Raise NotMigrated unless the schema is the one that this aft needs; migrates an empty SQLite file."""
    found = current(store)
    if found is None and store.dialect == "sqlite":
        upgrade(store)
        found = current(store)
    if found == HEAD:
        return
    raise NotMigrated(
        f"the database {store.url!r} {'has no aft tables' if found is None else f'is at schema {found}'}; "
        f"this aft needs schema {HEAD}: run `aft db upgrade`"
        + ("" if found is None or found < HEAD else ", or use the newer aft that made it")
    )


def upgrade(store: Store, to: str = "head") -> None:
    """Bring the schema up to a version. Idempotent; one process at a time."""
    _migrate(store, to, up=True)


def downgrade(store: Store, to: str) -> None:
    """Take the schema down to a version, ``base`` for none. The data of newer tables is lost."""
    _migrate(store, to, up=False)


def alembic_config(connection: Connection | None = None) -> Config:
    """Make alembic's configuration."""
    # Alembic is slow to import and needed only when something is to migrate.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_find_migrations()))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _find_migrations() -> Path:
    """Return the folder of the migrations: in the package of a wheel, at the top of the repository in a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "migrations"
    return shipped if shipped.is_dir() else package.parent / "migrations"


def _migrate(store: Store, to: str, *, up: bool) -> None:
    from alembic.util import CommandError

    try:
        _run_migrations(store, to, up=up)
    except CommandError as error:
        raise StoreError(f"the schema of {store.url!r} cannot be brought to {to!r}: {error}") from None


def _run_migrations(store: Store, to: str, *, up: bool) -> None:
    from alembic import command

    with _migrating, store.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config = alembic_config(connection)
        if up:
            command.upgrade(config, to)
        else:
            command.downgrade(config, to)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)
