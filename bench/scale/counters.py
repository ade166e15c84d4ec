"""Counts CPU, transactions and WAL, as the kernel, the pool and PostgreSQL report them.

Only processes on this machine can be watched. Backends are told apart by their database, so others on the same server
do not count; those that ended meanwhile are lost, and PostgreSQL's own helpers (checkpointer, WAL writer, autovacuum)
are left out. A transaction is a connection that was lent out by the pool, or what was done at once on the driver
itself. WAL is counted by ``pg_walinspect`` where the server has it; else all of the server's counts.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from sqlalchemy import event

from aft.store import Store
from bench.cpu import cpu_of_thread
from bench.scale.costs import Op

_OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_KEEP = "SELECT pg_create_physical_replication_slot(%s, immediately_reserve => true, temporary => true)"
_WAL = """
    SELECT coalesce(sum(record_length), 0) FROM pg_get_wal_records_info(%s, pg_current_wal_flush_lsn())
    WHERE block_ref LIKE '%%/' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '/%%'
"""


@dataclass(frozen=True)
class Reading:
    """The counters at one moment."""

    python: float
    backends: dict[int, float]
    transactions: int
    wal: str


class Watch:
    """Reads the counters of this process and of one database."""

    def __init__(self, database: str, store: Store) -> None:
        self._transactions = 0
        event.listen(store.engine, "checkout", self._count)
        watched: Any = store
        self._drive, watched._drive = watched._drive, self._count_driven
        self._connection = psycopg.connect(database, autocommit=True)
        try:
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            # Until this session ends, what was written is kept: a checkpoint would remove it before it is looked at.
            self._connection.execute(_KEEP, (f"aft_scale_{os.getpid()}",))
            self._inspects = True
        except psycopg.Error:
            self._inspects = False

    def read(self) -> Reading:
        """Read all counters."""
        wal = self._one("SELECT pg_current_wal_flush_lsn()")
        return Reading(time.process_time(), self.backends(), self._transactions, wal)

    def since(self, before: Reading) -> Op:
        """Return what was used since ``before``."""
        python, backends = time.process_time(), self.backends()
        database = sum(cpu - before.backends.get(pid, 0.0) for pid, cpu in backends.items())
        return Op(
            python_ms=(python - before.python) * 1e3,
            database_ms=database * 1e3,
            transactions=self._transactions - before.transactions,
            wal_bytes=self._wal(before.wal),
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def backends(self) -> dict[int, float]:
        """Return the CPU of each session of this database."""
        return {pid: cpu_of_thread(pid) for (pid,) in self._connection.execute(_OURS)}

    def _count(self, *_: object) -> None:
        self._transactions += 1

    def _count_driven(self, *given: Any) -> Any:
        self._transactions += 1
        return self._drive(*given)

    def _wal(self, since: str) -> float:
        all_of_it = float(self._one("SELECT pg_current_wal_flush_lsn() - %s::pg_lsn", since))
        # To look into what is not there is refused.
        return float(self._one(_WAL, since)) if self._inspects and all_of_it > 0 else all_of_it

    def _one(self, statement: LiteralString, *given: str) -> str:
        row = self._connection.execute(statement, given).fetchone()
        assert row is not None
        return str(row[0])
