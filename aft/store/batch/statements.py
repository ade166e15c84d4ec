"""Prepared queries: fixed statements that are prepared once, and of which several cost one round trip.

A statement that is built for each number of ids is compiled, parsed and planned for each; at some thousand reads a
second that is most of their cost. So a query takes its ids as one JSON text, and goes to the driver itself, under
SQLAlchemy's pool.

On PostgreSQL each query sees what has committed when it is executed (READ COMMITTED); on SQLite all see one snapshot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Select, String, literal_column
from sqlalchemy.dialects import postgresql, sqlite

from aft.store.postgres import libpq

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

#: The rows of one query, with the raw values of the driver.
Rows = list[tuple[Any, ...]]
#: The condition that a column is among the ids of a query's JSON array.
AMONG_POSTGRESQL = "= ANY (ARRAY(SELECT json_array_elements_text(%s::json)))"
AMONG_SQLITE = "IN (SELECT value FROM json_each(?))"
_GIVEN = ":given"
#: Stands for the parameter of a query that is made from a statement of SQLAlchemy; once in each.
GIVEN = literal_column(_GIVEN, String)


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A statement in the SQL of each database; it takes one text parameter, usually JSON."""

    postgresql: str
    sqlite: str

    @classmethod
    def about(cls, words: str) -> PreparedQuery:
        """Make a query from SQL that both databases share; ``{among}`` is the condition on a column to be an id."""
        return cls(words.format(among=AMONG_POSTGRESQL), words.format(among=AMONG_SQLITE))

    @classmethod
    def of(cls, statement: Select[Any]) -> PreparedQuery:
        """Make a query from a statement of SQLAlchemy, with :data:`GIVEN` for its parameter; all else is written out.

        For what is executed again and again: to build and look up a statement costs more than a small query.
        """
        literally = {"literal_binds": True}
        on_postgresql = statement.compile(dialect=postgresql.psycopg.dialect(), compile_kwargs=literally)  # type: ignore[no-untyped-call]
        on_sqlite = statement.compile(dialect=sqlite.dialect(), compile_kwargs=literally)
        return cls(str(on_postgresql).replace(_GIVEN, "%s"), str(on_sqlite).replace(_GIVEN, "?"))


def query_sqlite(connection: sqlite3.Connection, questions: Sequence[tuple[PreparedQuery, str]]) -> list[Rows]:
    """Execute queries one after the other, in one transaction."""
    connection.execute("BEGIN")
    try:
        return [connection.execute(question.sqlite, (given,)).fetchall() for question, given in questions]
    finally:
        connection.execute("COMMIT")


def execute_sqlite(connection: sqlite3.Connection, words: PreparedQuery, given: str) -> Rows:
    """Execute one statement that writes, in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows = connection.execute(words.sqlite, (given,)).fetchall()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return rows


def query_postgresql(
    connection: psycopg.Connection[Any], prepared: set[bytes], questions: Sequence[tuple[PreparedQuery, str]]
) -> list[Rows]:
    """Execute queries in one round trip."""
    asked = [(_numbered(question.postgresql), [given]) for question, given in questions]
    if len(asked) == 1:
        found = [libpq.execute(connection, prepared, *asked[0])]
    else:
        found = libpq.execute_all(connection, prepared, asked)
    return [_rows(connection, each) for each in found]


@cache
def _numbered(words: str) -> str:
    """Convert psycopg's placeholder to libpq's numbered one."""
    return words.replace("%s", "$1").replace("%%", "%")


def _rows(connection: psycopg.Connection[Any], found: PGresult) -> Rows:
    from psycopg.adapt import Transformer

    reader = Transformer.from_context(connection)
    reader.set_pgresult(found)
    return cast(Rows, reader.load_rows(0, found.ntuples, tuple))
