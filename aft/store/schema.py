"""Is the database's schema the one this aft needs, and how does it get there?

An empty SQLite file migrates itself; PostgreSQL never does without ``aft db upgrade``. Two processes that upgrade
at once do it one after the other: the second finds nothing to do.
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
HEAD = "0015"
VERSION_TABLE = "aft_schema_version"

_LOCK = 7_234_109_552
#: Alembic keeps what it is doing in globals: one migration at a time in a process.
_migrating = threading.Lock()


def _forget_in_child() -> None:
    """After a fork: whoever migrates does so in the parent."""
    global _migrating
    _migrating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def current(store: Store) -> str | None:
    """Tell the version the database is at; None if it has no aft tables."""
    with store.read() as connection:
        return _version(connection)


def check(store: Store) -> None:
    """Return if the schema is right; an empty SQLite file is made right; else raise NotMigrated."""
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
    """Take the schema down to a version, ``base`` for none. What the newer tables held is lost."""
    _migrate(store, to, up=False)


def alembic_config(connection: Connection | None = None) -> Config:
    """Make alembic's configuration; the migrations lie beside this file, in the wheel too."""
    # Alembic is slow to import and needed only when something is to migrate.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


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
