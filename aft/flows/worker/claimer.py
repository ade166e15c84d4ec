"""Claims runs for this worker: those that messages wake, and those that are due.

Any number of workers claim at the same time; each run goes to one of them. A row that is locked, or that the database
refuses to change, is left out, and the others are claimed; one whose epoch cannot rise is parked. A crash before the
commit claims nothing; after it, the run names this worker.
"""

from __future__ import annotations

from aft.errors import StoreError
from aft.flows.session.dependencies import Dependencies
from aft.ids import RunId
from aft.runs import park
from aft.runs.ownership import claims
from aft.runs.ownership.claims import Due, Known, Wake
from aft.runs.ownership.executing_runs import Expect
from aft.runs.run_rows import RunRow
from aft.store.refusals import is_about_rows, is_locked
from aft.telemetry import RunParked, logger


class RunClaimer:
    """Claims runs whose flows this process has, or those in ``known``. Thread-safe."""

    def __init__(self, deps: Dependencies, known: Known | None = None) -> None:
        self._deps = deps
        self._known = deps.registry.known if known is None else known

    def claim_woken(self, wakes: list[Wake], *, timed: bool = False, alone: bool = False) -> list[RunRow]:
        """Claim the runs that these wakes name; one that cannot be claimed now is left to the timer, and logged."""
        deps, how = self._deps, {"timed": timed, "alone": alone}
        try:
            return claims.claim_now(deps.store, deps.namespace, deps.lease.worker, wakes, self._known, **how)
        except Exception as error:
            if not is_locked(error) and not is_about_rows(error):
                raise
            # Another session has locked one of them, and may be paused, or the database refuses to change it: the
            # others do not wait for that. It is left to the timer.
            if len(wakes) == 1:
                self._put_aside(wakes[0][0], error)
                return []
        half = len(wakes) // 2
        return [*self.claim_woken(wakes[:half], **how), *self.claim_woken(wakes[half:], **how)]

    def _put_aside(self, run_id: RunId, error: Exception) -> None:
        """Park a run that no worker can ever own; leave another one to the timer. Emits: RunParked."""
        deps = self._deps
        try:
            with deps.store.write(patient=False) as connection:
                parked = park.park_unownable(connection, run_id)
        except StoreError as refused:
            parked, error = False, refused
        if parked:
            deps.telemetry.emit(RunParked(run=run_id, reason=park.NO_EPOCH))
        else:
            logger.warning("run cannot be claimed: run=%s why=%s", run_id, error)

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
            if not is_about_rows(error):
                raise
        # The database refuses to change one of them, which stays the first that is due: others are claimed beside it.
        with deps.store.read() as connection:
            due = claims.find_due(connection, deps.namespace, self._known, claims.WINDOW, **wanted)
        claimed: list[RunRow] = []
        for wake in due:
            if len(claimed) < limit:
                expect({wake[0]})
                claimed += self.claim_woken([wake], timed=True, alone=alone)
        return claimed
