"""Executes a batch of writes: on the driver itself, in a transaction of its own, or in one that a caller has begun.

Both execute the same statements. On the driver itself PostgreSQL prepares each of them once.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection

from aft.store.batch.committer import BatchWrite
from aft.store.postgres import libpq

if TYPE_CHECKING:
    import psycopg

Item = TypeVar("Item")


def write_sqlite(connection: sqlite3.Connection, batch_write: BatchWrite[Item], items: Sequence[Item]) -> list[Any]:
    """Write items in one transaction; returns their answers."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        answers = batch_write.write_sqlite(connection, items)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answers


def write_postgresql(
    connection: psycopg.Connection[Any], prepared: set[bytes], batch_write: BatchWrite[Item], items: Sequence[Item]
) -> list[Any]:
    """Execute the statement of a batch, which is a transaction; returns the answers of the items."""
    found = libpq.execute(connection, prepared, *batch_write.for_postgresql(items))
    answers: list[Any] = [None] * len(items)
    for row in range(found.ntuples):
        place, *answer = (found.get_value(row, column) for column in range(found.nfields))
        answers[int(place or b"")] = answer
    return answers


def write_within(connection: Connection, batch_write: BatchWrite[Item], items: Sequence[Item]) -> list[Any]:
    """Write items in a transaction that the caller has begun; returns their answers. Raises errors of SQLAlchemy."""
    if connection.dialect.name == "sqlite":
        return batch_write.write_sqlite(_Executor(connection), items)
    answers: list[Any] = [None] * len(items)
    statement, given = batch_write.for_postgresql(items)
    texts = {f"p{number}": each.decode() if isinstance(each, bytes) else each for number, each in enumerate(given, 1)}
    for place, *answer in connection.exec_driver_sql(_named(statement), texts):
        answers[place] = answer
    return answers


class _Executor:
    """Executes a driver's statements through SQLAlchemy, which knows the transaction and converts errors."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, given: Any = (), /) -> Any:
        return self._connection.exec_driver_sql(statement, given)


@cache
def _named(statement: str) -> str:
    """Convert libpq's numbered placeholders to psycopg's."""
    return re.sub(r"\$(\d+)", r"%(p\1)s", statement.replace("%", "%%"))
