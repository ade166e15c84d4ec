"""The names of those who give orders, for the audit."""

from __future__ import annotations

import getpass

from aft.errors import OrderRefused
from aft.texts import MOST_BY, check_storable


def name_of(by: str | None, error: type[Exception] = OrderRefused) -> str:
    """Return the actor's name, for the audit; this user's if none is given. Raises ``error`` if it cannot be stored."""
    check_storable("by", by, error, most=MOST_BY)
    return by or current_user()


def current_user() -> str:
    """Return the name of the current user, for the audit."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
