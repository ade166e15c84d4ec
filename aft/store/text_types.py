"""Columns of texts and of bytes that are read as such, even where SQLite has stored another type in them.

SQLite keeps a value of another type where a column says text. Who reads many rows must not fail for one of them: bytes
are read as text, and what is no UTF-8 in them is replaced; where bytes belong, anything else is read as its text's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import Dialect


def _read(value: Any) -> Any:
    return str(value, "utf-8", "replace") if value.__class__ is bytes else value


def _read_bytes(value: Any) -> Any:
    return value if value is None or value.__class__ is bytes else str(value).encode()


class String(sqlalchemy.String):
    """A text of limited length."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Return the function that reads its values."""
        return _read if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


class Text(sqlalchemy.Text):
    """A text of any length."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Return the function that reads its values."""
        return _read if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


class Binary(sqlalchemy.LargeBinary):
    """Bytes of any length."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Return the function that reads its values."""
        if dialect.name == "sqlite":
            return _read_bytes
        return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call,no-any-return]
