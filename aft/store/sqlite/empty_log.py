"""Empties SQLite's ``-wal`` file, so that values that were erased are gone from it, too."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from aft.errors import StoreError
from aft.store.sqlite.connection import SqliteConnection

if TYPE_CHECKING:
    from aft.store.engine import Store

#: Milliseconds to wait for others that read or write just now.
_PATIENCE = 1000


def empty_log(store: Store) -> None:
    """Move the log into the database and empty it; does nothing on PostgreSQL.

    Raises nothing, and waits a second at most, if others read or write just now: a later checkpoint does it.
    """
    if store.file is None:
        return
    with suppress(StoreError, sqlite3.Error), store.turn():
        lent = store.checkout()
        try:
            driver = cast(SqliteConnection, lent.driver_connection)
            driver.access.take()
            ((busy,),) = driver.execute("PRAGMA busy_timeout").fetchall()
            for pragma in (f"busy_timeout = {_PATIENCE}", "wal_checkpoint(TRUNCATE)", f"busy_timeout = {busy}"):
                driver.execute(f"PRAGMA {pragma}").fetchall()
        finally:
            lent.close()
