"""Distinguishes a row that the database refuses from a failure of the database.

Several rows are often written in one transaction. If the database refuses one of them it refuses all: the writer then
writes each alone, and keeps only the refused one back.
"""

from __future__ import annotations

from aft.errors import AftError, StoreError


def is_about_rows(error: Exception) -> bool:
    """Return whether a write failed because of one of its rows, not because of the database: others can be written."""
    return error.refused if isinstance(error, StoreError) else not isinstance(error, AftError)


def is_locked(error: Exception) -> bool:
    """Return whether a write failed because somebody else has locked one of its rows: others can be written."""
    return isinstance(error, StoreError) and error.locked
