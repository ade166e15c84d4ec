"""Reads PostgreSQL's times that are outside Python's range: infinity, and those before the year 1 or after 9999.

aft never writes them. If others did, one such row must not fail the reading of other rows, so it is read as a time
that is far away. On a connection that is lent to an activity, psycopg's own reading applies.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from aft.store.db_time import FAR_AHEAD, LONG_AGO

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Loader
    from psycopg.adapt import AdaptersMap

_TYPE = "timestamptz"


def read_far_times(connection: psycopg.Connection[Any]) -> None:
    """Make a connection read times outside Python's range as far-away times."""
    connection.adapters.register_loader(_TYPE, _make_loader(_find_own()))


def refuse_far_times(adapters: AdaptersMap) -> None:
    """Restore psycopg's own reading, which raises for such times."""
    adapters.register_loader(_TYPE, _find_own())


@cache
def _find_own() -> type[Loader]:
    """Return psycopg's own loader of times in text format."""
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
