"""Tracks the runs that this process executes, and finds orphans: runs that it owns but does not execute.

An orphan would wait for a lease that never ends. It arises when the COMMIT of a claim happened but its answer was lost,
or when a run's thread ended without being able to write. So after each heartbeat the two sets are compared, and what is
owned but not executed is rescued.

A run is registered (*expected*) before its claim can commit, and removed only after its last write: so a run that is
owned is registered. The database is read between two snapshots of the registered runs; a run that is in neither is an
orphan, or its epoch is over by now. The rescue names the epoch that was seen, so in the latter case it finds nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from sqlalchemy import Connection, select

from aft.ids import RunId, WorkerId
from aft.runs.run_rows import RunRow
from aft.store.tables import runs

#: Registers the runs that a claim may bring, before it commits.
Expect = Callable[[Iterable[RunId]], None]


class ExecutingRuns:
    """The runs that this process executes. Thread-safe; no lock is held while the database is queried."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Counted: a released run may be claimed again, here, before the thread that released it has ended.
        self._held: Counter[RunId] = Counter()

    def claim(self, claim: Callable[[Expect], list[RunRow]]) -> list[RunRow]:
        """Claim runs and register them; the caller calls ``unregister`` for each when its execution has ended."""
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
                    self.unregister(run_id)
        return claimed

    def unregister(self, run_id: RunId) -> None:
        """Record that a run is no longer executed here."""
        with self._lock:
            self._held[run_id] -= 1
            if self._held[run_id] <= 0:
                del self._held[run_id]

    def orphans(self, connection: Connection, worker: WorkerId) -> list[tuple[RunId, int]]:
        """Return the runs, with their epochs, that ``worker`` owns in the database and that are not executed here."""
        before = self._copy()
        owned = connection.execute(select(runs.c.id, runs.c.epoch).where(runs.c.worker_id == worker)).all()
        held = before | self._copy()
        return [(RunId(row.id), row.epoch) for row in owned if row.id not in held]

    def _copy(self) -> set[RunId]:
        with self._lock:
            return set(self._held)
