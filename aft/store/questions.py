"""How is much read at once? With questions whose words are fixed, so that they are prepared once and travel together.

A statement that is built anew for each number of ids is compiled, parsed and planned anew for each; at some thousand
reads a second that is most of what they cost. So a question takes its ids as one JSON text, and goes to the driver
itself, under SQLAlchemy's pool. Several questions cost one round trip.

On PostgreSQL each sees what has committed when it is answered, as in any transaction of ours; on SQLite all see the
same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from aft.store import libpq

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

#: The rows of one answer, as the driver gives them.
Answer = list[tuple[Any, ...]]
#: A condition that a column is among the ids of a question's JSON array.
AMONG_POSTGRESQL = "= ANY (ARRAY(SELECT json_array_elements_text(%s::json)))"
AMONG_SQLITE = "IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """Something that is read, in each database's own words; each statement takes one text, JSON as a rule."""

    postgresql: str
    sqlite: str

    @classmethod
    def about(cls, words: str) -> PreparedQuery:
        """Make one that both databases understand; ``{among}`` is the condition that a column is one of the ids."""
        return cls(words.format(among=AMONG_POSTGRESQL), words.format(among=AMONG_SQLITE))


def ask_sqlite(connection: sqlite3.Connection, questions: Sequence[tuple[PreparedQuery, str]]) -> list[Answer]:
    """Ask them one after the other, in one transaction."""
    connection.execute("BEGIN")
    try:
        return [connection.execute(question.sqlite, (given,)).fetchall() for question, given in questions]
    finally:
        connection.execute("COMMIT")


def tell_sqlite(connection: sqlite3.Connection, words: PreparedQuery, given: str) -> Answer:
    """Execute one that writes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows = connection.execute(words.sqlite, (given,)).fetchall()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return rows


def ask_postgresql(
    connection: psycopg.Connection[Any], prepared: set[bytes], questions: Sequence[tuple[PreparedQuery, str]]
) -> list[Answer]:
    """Send all of them, then read all answers."""
    asked = [(_numbered(question.postgresql), given.encode()) for question, given in questions]
    if len(asked) == 1:
        found = [libpq.execute(connection, prepared, *asked[0])]
    else:
        found = libpq.execute_all(connection, prepared, asked)
    return [_rows(connection, each) for each in found]


@cache
def _numbered(words: str) -> str:
    """The words as libpq wants them, which counts parameters."""
    return words.replace("%s", "$1").replace("%%", "%")


def _rows(connection: psycopg.Connection[Any], found: PGresult) -> Answer:
    from psycopg.adapt import Transformer

    reader = Transformer.from_context(connection)
    reader.set_pgresult(found)
    return cast(Answer, reader.load_rows(0, found.ntuples, tuple))
