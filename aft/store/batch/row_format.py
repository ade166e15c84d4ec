"""Encodes rows for the driver of each database, by the column types of the declared tables.

PostgreSQL takes several rows as JSON: one parameter, whatever their number, and one prepared statement; one row may
also be given as texts. SQLite takes rows one by one, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import to_json
from sqlalchemy import BigInteger, Boolean, ColumnElement, Float, Integer, String, Table, case, func
from sqlalchemy.types import TypeEngine

from aft.store.db_time import Moment

#: A row, by the names of its columns.
Fields = Mapping[str, Any]

_TYPES: list[tuple[type[TypeEngine[Any] | Moment], str]] = [
    (Moment, "timestamptz"),
    (String, "text"),
    (BigInteger, "bigint"),
    (Integer, "integer"),
    (Float, "double precision"),
    (Boolean, "boolean"),
]


def as_json(rows: Sequence[Fields]) -> bytes:
    """Encode rows as a JSON array, with times as PostgreSQL reads them."""
    return to_json(rows)


def as_texts(values: Iterable[Any]) -> list[str | None]:
    """Encode values as the texts of PostgreSQL's parameters."""
    # Most are texts, and there are dozens in each step of each run.
    return [value if value is None or value.__class__ is str else _as_text(value) for value in values]


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def type_of(table: Table, name: str) -> str:
    """Return the type of a column in PostgreSQL."""
    found = table.c[name].type
    return next(formatted for kind, formatted in _TYPES if isinstance(found, kind))


def as_record(table: Table, names: Sequence[str]) -> str:
    """Format the column definitions of a JSON object for PostgreSQL: ``path text, seq bigint``."""
    return ", ".join(f"{name} {type_of(table, name)}" for name in names)


def insert_one(table: Table, names: Sequence[str]) -> str:
    """Format the statement that inserts one row into a SQLite table, with named parameters."""
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


def for_sqlite(row: Fields, names: Sequence[str]) -> dict[str, Any]:
    """Encode a row for SQLite: missing columns are null, times are seconds."""
    return {name: encode_value(row.get(name)) for name in names}


def encode_value(value: Any) -> Any:
    """Encode a value for SQLite: times as seconds since 1970."""
    return value.timestamp() if isinstance(value, datetime) else value


def has_part(id_column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """Return the condition that an id begins or ends with ``part``, or its last group, which lists show, begins so.

    The ends of ids differ sooner than their beginnings, which are times.
    """
    listed = func.substr(id_column, 25, 12).startswith(part, autoescape=True)
    return id_column.startswith(part, autoescape=True) | id_column.endswith(part, autoescape=True) | listed


#: The greatest number that a column of counts can hold.
MOST_COUNT = 2**31 - 1


def next_count(column: ColumnElement[int]) -> ColumnElement[int]:
    """Return the expression of a count plus one, saturated at the column's maximum: one row must not fail a batch."""
    return case((column < MOST_COUNT, column + 1), else_=column)
