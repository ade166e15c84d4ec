"""Times in the database and the database's own clock, with one interface for PostgreSQL and SQLite."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import REAL, BindParameter, Dialect, bindparam
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

#: SQLite's clock, for literal SQL.
SQLITE_NOW = "((julianday('now') - 2440587.5) * 86400.0)"


#: These replace times outside Python's range: far enough from both of its ends to be added to.
LONG_AGO, FAR_AHEAD = datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


class FromNow(float):
    """A time as seconds from now by the database's clock, in the input of a statement that is written out."""


class Moment(TypeDecorator[datetime]):
    """An aware time: ``timestamptz`` on PostgreSQL, seconds since 1970 on SQLite, always UTC in Python."""

    impl = REAL
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(TIMESTAMP(timezone=True) if dialect.name == "postgresql" else REAL())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.timestamp()

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        try:
            return read_time(value)
        except TypeError:
            return LONG_AGO  # no time at all: must not stop whoever reads other rows with it


def read_time(value: Any) -> datetime | None:
    """Read a time from the raw value of either driver; a datetime is converted to UTC."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    try:
        return datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        return FAR_AHEAD if value > 0 else LONG_AGO


class _Now(FunctionElement[datetime]):
    type = Moment()
    inherit_cache = True
    name = "now_here"


class _Later(FunctionElement[datetime]):
    type = Moment()
    inherit_cache = True
    name = "later"


def now() -> FunctionElement[datetime]:
    """Return the database's clock at this statement, not at the transaction's beginning.

    PostgreSQL's ``statement_timestamp`` and not ``clock_timestamp``: the latter may change from row to row, so that no
    index can bound a search by it.
    """
    return _Now()


def later(seconds: float | BindParameter[float]) -> FunctionElement[datetime]:
    """Return the database's clock plus this many seconds; a negative number means earlier."""
    parameter = bindparam(None, float(seconds)) if isinstance(seconds, int | float) else seconds
    return _Later(parameter)


@compiles(_Now, "postgresql")
def _now_postgresql(element: _Now, compiler: SQLCompiler, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(_Now, "sqlite")
def _now_sqlite(element: _Now, compiler: SQLCompiler, **kw: Any) -> str:
    return SQLITE_NOW


@compiles(_Later, "postgresql")
def _later_postgresql(element: _Later, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(_Later, "sqlite")
def _later_sqlite(element: _Later, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({SQLITE_NOW} + {compiler.process(element.clauses, **kw)})"
