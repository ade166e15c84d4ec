"""How is a row of ours spelled for the driver itself? From the tables as they are declared, for each database.

PostgreSQL takes rows as JSON: one parameter, whatever their number, and one prepared statement. SQLite takes them one
by one, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import to_json
from sqlalchemy import BigInteger, Boolean, ColumnElement, Float, Integer, String, Table, func
from sqlalchemy.types import TypeEngine

from aft.store.moments import Moment

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
    """Spell rows as a JSON array; times as PostgreSQL reads them."""
    return to_json(rows)


def as_record(table: Table, names: Sequence[str]) -> str:
    """Say what PostgreSQL shall make of the fields of a JSON object: ``path text, seq bigint``."""
    return ", ".join(f"{name} {_type(table, name)}" for name in names)


def insert_one(table: Table, names: Sequence[str]) -> str:
    """The statement that inserts one row into a SQLite table, by name."""
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


def for_sqlite(row: Fields, names: Sequence[str]) -> dict[str, Any]:
    """Spell a row as SQLite takes it: what is not given is null, times are seconds."""
    return {name: plain(row.get(name)) for name in names}


def plain(value: Any) -> Any:
    """Spell a value as SQLite takes it."""
    return value.timestamp() if isinstance(value, datetime) else value


def _type(table: Table, name: str) -> str:
    found = table.c[name].type
    return next(spelled for kind, spelled in _TYPES if isinstance(found, kind))


def has_part(id_column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """Whether an id is one that a person may have meant: it begins or ends so, or its last group, as listed, begins so.

    The ends of ids differ sooner than their beginnings, which are times.
    """
    listed = func.substr(id_column, 25, 12).startswith(part, autoescape=True)
    return id_column.startswith(part, autoescape=True) | id_column.endswith(part, autoescape=True) | listed
