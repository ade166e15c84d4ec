"""Claims runs for this worker: those that messages wake, and those that are due.

Any number of workers claim at the same time; each run goes to one of them. A row that is locked, or that the database
refuses to change, is left out, and the others are claimed. A crash before the commit claims nothing; after it, the run
names this worker.
"""

from __future__ import annotations

from aft.errors import StoreError
from aft.flows.session.dependencies import Dependencies
from aft.ids import RunId
from aft.runs.ownership import claims
from aft.runs.ownership.claims import Due
from aft.runs.ownership.executing_runs import Expect
from aft.runs.run_rows import RunRow
from aft.store.refusals import is_about_rows
from aft.telemetry import logger


class RunClaimer:
    """Claims runs whose flows this process has. Thread-safe."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._known = deps.registry.known

    def claim_woken(self, wakes: list[tuple[RunId, str]], *, timed: bool = False) -> list[RunRow]:
        """Claim the runs that these wakes name; one that cannot be claimed now is left to the timer, and logged."""
        deps = self._deps
        try:
            return claims.claim_now(deps.store, deps.namespace, deps.lease.worker, wakes, self._known, timed=timed)
        except Exception as error:
            if not (isinstance(error, StoreError) and error.locked) and not is_about_rows(error):
                raise
            # Another session has locked one of them, and may be paused, or the database refuses to change it: the
            # others do not wait for that. It is left to the timer.
            if len(wakes) == 1:
                logger.warning("run cannot be claimed: run=%s why=%s", wakes[0][0], error)
                return []
        half = len(wakes) // 2
        return [*self.claim_woken(wakes[:half], timed=timed), *self.claim_woken(wakes[half:], timed=timed)]

    def read_due(self, patient: bool = False) -> Due:
        """Return what is due; ``patient``: what messages will bring soon is left to them."""
        return claims.read_due(self._deps.store, self._deps.namespace, self._known, patient=patient)

    def claim_due(self, limit: int, expect: Expect, *, alone: bool = False, **how: bool) -> list[RunRow]:
        """Claim up to ``limit`` due runs, ``how`` says which (``claims.find_due``)."""
        deps, wanted = self._deps, {"alone": alone, **how}
        try:
            with deps.store.write() as connection:
                due = claims.find_due(connection, deps.namespace, self._known, limit, **wanted)
                expect({run for run, _ in due})
                if not due:
                    return []
                return claims.claim(connection, deps.namespace, deps.lease.worker, due, self._known, alone=alone)
        except Exception as error:
            if alone or not is_about_rows(error):
                raise
        # The database refuses to change one of them, which stays the first that is due: others are claimed beside it.
        with deps.store.read() as connection:
            due = claims.find_due(connection, deps.namespace, self._known, claims.WINDOW, **wanted)
        claimed: list[RunRow] = []
        for wake in due:
            if len(claimed) < limit:
                expect({wake[0]})
                claimed += self.claim_woken([wake], timed=True)
        return claimed
