"""Undoes runs of flows that no live worker has, and recalls postponed runs whose code this worker has.

``runs.wakes.unserved_runs`` decides when.
"""

from __future__ import annotations

from aft.compensation.stack import PENDING
from aft.flows.session.dependencies import Dependencies
from aft.flows.worker.claimer import RunClaimer
from aft.ids import WorkerId
from aft.runs.ownership.executing_runs import Expect
from aft.runs.run_rows import RunRow
from aft.runs.wakes import unserved_runs
from aft.runs.wakes.unserved_runs import Undoable

#: Seconds between two checks whether this process has begun a new lease.
PAUSE = 1.0


class UnservedRecall:
    """Makes runs due that were postponed because no worker had their flow, which this one has. For one thread."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._worker: WorkerId | None = None

    def step(self) -> float:
        """Recall once per worker id: while the last lease was expired, such runs may have been postponed."""
        deps = self._deps
        if (worker := deps.lease.worker) != self._worker:
            found = unserved_runs.BATCH
            while found == unserved_runs.BATCH:
                with deps.store.write() as connection:
                    found = unserved_runs.bring_forward(connection, deps.namespace, deps.registry.known)
            self._worker = worker
        return PAUSE


def find_undoable(deps: Dependencies, limit: int) -> list[Undoable]:
    """Return runs that only need undoing, with this process's compensators, and whose flow no live worker has."""
    if not deps.store.query([(unserved_runs.ANY_TO_UNDO, deps.namespace)])[0]:
        return []
    compensators, pending = deps.registry.compensators, [state.value for state in PENDING]
    grace = deps.grace.total_seconds()
    with deps.store.read() as connection:
        served = unserved_runs.served_flows(connection, deps.namespace)
        return unserved_runs.find_undoable(connection, deps.namespace, served, compensators, pending, grace, limit)


def claim_undoable(deps: Dependencies, found: list[Undoable], expect: Expect, *, alone: bool = False) -> list[RunRow]:
    """Claim them as if their flows were known here: unwinding does not use the flow's code."""
    wakes = [one.wake for one in found]
    expect({run for run, _ in wakes})
    claimer = RunClaimer(deps, known=sorted({one.flow for one in found}))
    return claimer.claim_woken(wakes, timed=True, alone=alone)
