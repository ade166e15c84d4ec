"""What a worker does about runs of flows that no live worker has (``runs.unserved``): undo them, bring its own back."""

from __future__ import annotations

from aft.compensation.stack import PENDING
from aft.flows.tools import Tools
from aft.ids import WorkerId
from aft.recovery.keeper import LOOK
from aft.runs import claiming, unserved
from aft.runs.holdings import Expect
from aft.runs.rows import RunRow
from aft.runs.unserved import Undoable


class Recall:
    """Makes runs due that were put off because nobody had their flow, which this process has; belongs to one thread."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._worker: WorkerId | None = None

    def step(self) -> float:
        """Do so once for each worker that this process becomes: while its lease was over, nobody may have had them."""
        tools = self._tools
        if (worker := tools.lease.worker) != self._worker:
            found = unserved.BATCH
            while found == unserved.BATCH:
                with tools.store.write() as connection:
                    found = unserved.bring_forward(connection, tools.namespace, tools.registry.known)
            self._worker = worker
        return LOOK


def find_undoable(tools: Tools, limit: int) -> list[Undoable]:
    """Find runs that are only to be undone, with this process's compensators, and whose flow no live worker has."""
    compensators, pending = tools.registry.compensators, [state.value for state in PENDING]
    grace = tools.grace.total_seconds()
    with tools.store.read() as connection:
        served = unserved.served_flows(connection, tools.namespace)
        return unserved.find_undoable(connection, tools.namespace, served, compensators, pending, grace, limit)


def claim_undoable(tools: Tools, found: list[Undoable], expect: Expect, *, alone: bool = False) -> list[RunRow]:
    """Claim them as if their flows were known here: unwinding does not use them."""
    wakes = [one.wake for one in found]
    expect({run for run, _ in wakes})
    with tools.store.write() as connection:
        known = sorted({one.flow for one in found})
        return claiming.claim(connection, tools.namespace, tools.lease.worker, wakes, known, alone=alone)
