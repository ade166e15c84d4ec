"""Which runs does this process execute? And are there runs that the database says it owns, and nobody executes?

The second must not be: such a run would wait for a lease that never ends. It comes about when the COMMIT of a claim
happened but its answer was lost, or when a run's thread ended without being able to write. So after each heartbeat the
two are compared, and what is owned but not executed is rescued as if its owner had died.

A run is *expected* before the claim can commit, and let go only after its last write: so one that is owned is held.
The database is asked between two looks at what is held; a run that is in neither look is an orphan, or its epoch is
over by now. The rescue names the epoch that was seen, so in the latter case it finds nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from sqlalchemy import Connection, select

from aft.ids import RunId, WorkerId
from aft.runs.rows import RunRow
from aft.store.tables import runs

#: To be told which runs a claim may bring, before it commits.
Expect = Callable[[Iterable[RunId]], None]


class Holdings:
    """The runs that this process executes. Thread-safe; no lock is held while the database is asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Counted: a run that was let go may be claimed again, here, before the thread that let it go has ended.
        self._held: Counter[RunId] = Counter()

    def claim(self, claim: Callable[[Expect], list[RunRow]]) -> list[RunRow]:
        """Claim runs and hold them; ``let_go`` of each must follow."""
        expected: list[RunId] = []

        def expect(ids: Iterable[RunId]) -> None:
            more = set(ids).difference(expected)  # each counts once, though it may be named again
            expected.extend(more)
            with self._lock:
                self._held.update(more)

        claimed: list[RunRow] = []
        try:
            claimed = claim(expect)
        finally:
            brought = {row.id for row in claimed}
            for run_id in expected:
                if run_id not in brought:
                    self.let_go(run_id)
        return claimed

    def let_go(self, run_id: RunId) -> None:
        """Say that a run is no longer executed here."""
        with self._lock:
            self._held[run_id] -= 1
            if self._held[run_id] <= 0:
                del self._held[run_id]

    def orphans(self, connection: Connection, worker: WorkerId) -> list[tuple[RunId, int]]:
        """Return the runs, with their epochs, that the database says we own and nobody here executes."""
        before = self._look()
        owned = connection.execute(select(runs.c.id, runs.c.epoch).where(runs.c.worker_id == worker)).all()
        held = before | self._look()
        return [(RunId(row.id), row.epoch) for row in owned if row.id not in held]

    def _look(self) -> set[RunId]:
        with self._lock:
            return set(self._held)
