"""Transactions of the embedded broker: one whose connection was lost is run once more on a new connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from sqlalchemy import Connection, exc

from aft.errors import BrokerError, StoreError
from aft.store.batch.statements import PreparedQuery, Rows
from aft.store.engine import Store

T = TypeVar("T")


class Transactions:
    """Runs pieces of work, each in a transaction of its own. Thread-safe.

    Work whose connection turns out to be lost is run once more, on a new one: a pool detects only then that the server
    was away in the meantime. If the connection was lost during the commit, the first run may have committed; so work
    must be idempotent, as everything is that takes, renews or deletes by name. Publishing may store its batch twice,
    which the port allows. Every other error of the store becomes a BrokerError.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads."""
        return self._run(self._store.read, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run work that writes; it has committed when this returns."""
        return self._run(self._store.write, work)

    def query(self, query: PreparedQuery, given: str) -> Rows:
        """Execute a query; if that fails for a while only, it is tried once more, on another connection."""
        try:
            try:
                return self._store.query([(query, given)])[0]
            except StoreError as error:
                if not error.transient:
                    raise
            return self._store.query([(query, given)])[0]
        except StoreError as error:
            raise BrokerError(str(error)) from error

    def _run(
        self,
        begin: Callable[[], AbstractContextManager[Connection]],
        work: Callable[[Connection], T],
    ) -> T:
        try:
            try:
                with begin() as connection:
                    return work(connection)
            except StoreError as error:
                if not _was_lost(error):
                    raise
            with begin() as connection:
                return work(connection)
        except StoreError as error:
            raise BrokerError(str(error)) from error


def _was_lost(error: StoreError) -> bool:
    cause = error.__cause__
    return isinstance(cause, exc.DBAPIError) and cause.connection_invalidated
