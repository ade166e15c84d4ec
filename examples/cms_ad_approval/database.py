"""Where do the tables of the CMS lie? Beside aft's own, in the database that ``AFT_DATABASE_URL`` names."""

from __future__ import annotations

import functools

from sqlalchemy import MetaData

import aft
from aft.store import Store

metadata = MetaData()


def database() -> Store:
    """Give this process's connections to the database of the CMS. Thread-safe."""
    return _connect(aft.Settings.load().database_url)


def prepare() -> None:
    """Make the tables of the CMS exist. Idempotent."""
    with database().write() as connection:
        metadata.create_all(connection)


@functools.cache
def _connect(url: str) -> Store:
    return Store(url)
