"""Explains the errors of a database: what went wrong in one line, whether it may pass, whether a value was refused."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import cast

from sqlalchemy import Dialect, exc

from aft.errors import NotMigrated, StoreError

#: Parts of SQLite's messages about transient errors.
_SQLITE_PASSES = ("locked", "busy", "disk I/O error", "is full", "unable to open")
#: PostgreSQL's state for a lock timeout.
LOCKED = "55P03"
#: PostgreSQL's classes of states for values that it does not take: data, a constraint, a limit, a trigger that raises.
_REFUSES = ("22", "23", "44", "54", "P0")
#: PostgreSQL's state for a server that is a standby, for now.
_READ_ONLY = "25006"
#: PostgreSQL's message when the database does not exist; it comes without a state.
_NO_DATABASE = re.compile(r'FATAL: +database ".*" does not exist')


def explain(error: exc.SQLAlchemyError, url: str, file: str | None) -> StoreError:
    """Convert an error to a StoreError: one line that says what went wrong, and whether it is transient.

    ``url`` is the database as it is shown to people; ``file`` is its SQLite file, if it is one.
    """
    cause = getattr(error, "orig", None) or error
    text = " ".join(str(cause).split()) or type(cause).__name__
    if "no such table: aft_" in text or (_sqlstate(error) == "42P01" and 'relation "aft_' in text):
        return NotMigrated(f"the database {url!r} has no aft tables; run `aft db upgrade`")
    if file is not None and not (folder := Path(file).parent).is_dir():
        text += f"; there is no directory {str(folder)!r}"
    elif _NO_DATABASE.search(text):
        text += "; create it, or correct the URL (AFT_DATABASE_URL)"
    return StoreError(
        f"the database {url!r} refused: {text}",
        transient=is_transient(error),
        locked=_sqlstate(error) == LOCKED,
        refused=is_refusal(error),
    )


def wrap(error: Exception, dialect: Dialect, *, lost: bool = False) -> exc.SQLAlchemyError:
    """Return the exception that SQLAlchemy would have raised for a driver's; ``lost``: the connection was lost."""
    base: type[Exception] = dialect.loaded_dbapi.Error
    wrapped = exc.DBAPIError.instance(None, None, error, base, connection_invalidated=lost, dialect=dialect)
    return cast(exc.SQLAlchemyError, wrapped)


def explain_text(error: UnicodeEncodeError, url: str) -> StoreError:
    """Make the error about a text that no driver can encode."""
    return StoreError(f"the database {url!r} takes no text with half a character: {error}", refused=True)


def is_transient(error: exc.SQLAlchemyError) -> bool:
    """Return whether the same statement may succeed later: lost connections, locks, a full pool, a full disk."""
    if isinstance(error, exc.TimeoutError):
        return True
    if not isinstance(error, exc.DBAPIError):
        return False
    if error.connection_invalidated or _sqlstate(error) == _READ_ONLY:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return any(word in str(error.orig) for word in _SQLITE_PASSES)
    return isinstance(error, exc.OperationalError | exc.InterfaceError)


def is_refusal(error: exc.SQLAlchemyError) -> bool:
    """Return whether the database refused the values of a statement, not the statement or the connection."""
    if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
        return True  # a value that SQLAlchemy cannot convert for its column
    if is_transient(error) or not isinstance(error, exc.DBAPIError):
        return False
    if isinstance(error, exc.DataError | exc.IntegrityError):
        return True
    return (_sqlstate(error) or "").startswith(_REFUSES)


def _sqlstate(error: exc.SQLAlchemyError) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)
