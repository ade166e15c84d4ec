"""How does a deed get to the database? On the driver itself, in one transaction; PostgreSQL prepares each kind once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from aft.store import libpq
from aft.store.committer import BatchWrite

if TYPE_CHECKING:
    import psycopg

Item = TypeVar("Item")


def write_sqlite(connection: sqlite3.Connection, deed: BatchWrite[Item], items: Sequence[Item]) -> list[Any]:
    """Write deeds in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        answers = deed.write_sqlite(connection, items)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answers


def write_postgresql(
    connection: psycopg.Connection[Any], prepared: set[bytes], deed: BatchWrite[Item], items: Sequence[Item]
) -> list[Any]:
    """Execute a deed's statement, which is a transaction."""
    found = libpq.execute(connection, prepared, deed.statement(items), deed.spell(items))
    answers: list[Any] = [None] * len(items)
    for row in range(found.ntuples):
        place, *answer = (found.get_value(row, column) for column in range(found.nfields))
        answers[int(place or b"")] = answer
    return answers
