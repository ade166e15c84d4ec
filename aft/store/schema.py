"""Checks and migrates the database's schema.

An empty SQLite file is migrated automatically; PostgreSQL only by ``aft db upgrade``. Two processes that upgrade at
once do it one after the other: the second finds nothing to do. None waits for ever for a lock; one that gives up says
who holds it, and has changed nothing.
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
HEAD = "0020"
VERSION_TABLE = "aft_schema_version"

#: Seconds that a migration waits for the lock of migrations, and for each lock on a table.
LOCK_WAIT = 30.0
#: Sessions that are named when it has waited in vain.
MOST_HOLDERS = 3

_LOCK = 7_234_109_552
#: The sessions that hold the lock of migrations, or locks on tables of aft in the schema that is in use; of each kind
#: the longest transaction first.
_HOLDERS = """
SELECT a.pid, a.usename, a.application_name, host(a.client_addr) AS host, bool_or(l.locktype = 'advisory') AS migrates
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) LEFT JOIN pg_class AS c ON c.oid = l.relation
WHERE l.granted AND l.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (
        l.locktype = 'advisory' AND l.classid = :lock >> 32 AND l.objid = :lock & 4294967295 AND l.objsubid = 1
        OR l.locktype = 'relation' AND c.relname LIKE 'aft\\_%' AND pg_table_is_visible(c.oid)
    )
GROUP BY a.pid, a.usename, a.application_name, a.client_addr, a.xact_start
ORDER BY bool_or(l.locktype = 'advisory') DESC, a.xact_start
"""
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
    except StoreError as error:
        if not error.locked or store.dialect != "postgresql":
            raise
        why = f"the schema of {store.url!r} was not changed: after {LOCK_WAIT:g} s {_describe_holders(store)}"
        raise StoreError(why, transient=True, locked=True) from None


def _describe_holders(store: Store) -> str:
    """Return who holds the locks that a migration needs, and what to do about it."""
    with store.read() as connection:
        holders = connection.execute(text(_HOLDERS), {"lock": _LOCK}).all()
    if not holders:
        return "it had not got all locks, which nobody holds any more; run it again"
    shown = [
        f"session {one.pid} of {one.usename!r} ({one.application_name!r}, from {one.host or 'an unknown address'})"
        for one in holders[:MOST_HOLDERS]
    ]
    more = f" and {len(holders) - MOST_HOLDERS} more" if len(holders) > MOST_HOLDERS else ""
    what = "the lock of migrations" if holders[0].migrates else "locks on tables of aft"
    return (
        f"{', '.join(shown)}{more} held {what}; if that is another migration, wait until it has ended, else end the "
        f"session (SELECT pg_terminate_backend({holders[0].pid})), or stop the dispatchers; then run it again"
    )


def _run_migrations(store: Store, to: str, *, up: bool) -> None:
    from alembic import command

    with _migrating, store.write() as connection:
        if connection.dialect.name == "postgresql":
            # For all that follows, too: a table that waits to be locked keeps everybody else waiting.
            connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_WAIT * 1000:.0f}"))
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
