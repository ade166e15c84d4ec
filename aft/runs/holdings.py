"""Which runs does this process execute? And are there runs that the database says it owns, and nobody executes?

The second must not be: such a run would wait for a lease that never ends. It comes about when the COMMIT of a claim
happened but its answer was lost, or when a run's thread ended without being able to write. So after each heartbeat the
two are compared, and what is owned but not executed is rescued as if its owner had died.

Claiming and remembering are one critical section, and so is the comparison: a run that is claimed is never taken for
an orphan. Letting go needs no lock: by then the run's row names another owner, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, select

from aft.ids import RunId, WorkerId
from aft.runs.rows import RunRow
from aft.store.tables import runs


class Holdings:
    """The runs that this process executes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executing: set[RunId] = set()

    def claim(self, claim: Callable[[], list[RunRow]]) -> list[RunRow]:
        """Claim runs and remember them; ``let_go`` of each must follow."""
        with self._lock:
            claimed = claim()
            self._executing.update(row.id for row in claimed)
            return claimed

    def let_go(self, run_id: RunId) -> None:
        """Say that a run is no longer executed here."""
        with self._lock:
            self._executing.discard(run_id)

    @contextmanager
    def orphans(self, connection: Connection, worker: WorkerId) -> Iterator[list[RunId]]:
        """Give the runs that the database says we own and nobody here executes; nothing is claimed meanwhile."""
        with self._lock:
            owned = connection.execute(select(runs.c.id).where(runs.c.worker_id == worker)).scalars()
            yield [run_id for run_id in owned if run_id not in self._executing]
