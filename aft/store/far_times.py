"""Times of PostgreSQL that Python has none for: infinity, and what lies before the year 1 or after 9999.

aft never writes them. Where somebody else did, one must not stop whoever reads other rows with it, so it is read as a
time that is far away. What an activity reads on a connection that it was lent is read as psycopg does by itself.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from aft.store.moments import FAR_AHEAD, LONG_AGO

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Loader
    from psycopg.adapt import AdaptersMap

_TYPE = "timestamptz"


def read_far_times(connection: psycopg.Connection[Any]) -> None:
    """Let a connection read times that are far away."""
    connection.adapters.register_loader(_TYPE, _make_loader(_find_own()))


def refuse_far_times(adapters: AdaptersMap) -> None:
    """Let values be read as psycopg does."""
    adapters.register_loader(_TYPE, _find_own())


@cache
def _find_own() -> type[Loader]:
    """How psycopg reads times, as text."""
    import psycopg
    from psycopg.adapt import PyFormat

    kind = psycopg.adapters.types[_TYPE]
    found = psycopg.adapters.get_loader(kind.oid, PyFormat.as_pq(PyFormat.TEXT))
    assert found is not None
    return found


@cache
def _make_loader(own: type[Loader]) -> type[Loader]:
    from psycopg import DataError, adapt

    class FarLoader(adapt.Loader):
        def __init__(self, oid: int, connection: Any = None) -> None:
            super().__init__(oid, connection)
            self._own = own(oid, connection)

        def load(self, data: Any) -> Any:
            try:
                return self._own.load(data)
            except DataError:
                text = bytes(data)
                return LONG_AGO if text.startswith(b"-") or text.endswith(b"BC") else FAR_AHEAD

    return FarLoader
