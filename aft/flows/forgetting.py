"""Forgetting steps that a retry goes back before: in the transaction in which their run is parked.

The journal forgets them, what they owe is undone before the run goes on, signals that they took are there again, and
what stood against them is settled, so that they are executed anew. A crash before the commit leaves them as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from aft.compensation import stack
from aft.fault import FaultState
from aft.flows.leaving import Forgotten
from aft.ids import RunId
from aft.runs import faults, inbox, journal
from aft.runs.journal import EntryKind, Outcome


def forget(connection: Connection, run_id: RunId, steps: Sequence[Forgotten]) -> None:
    """Forget steps; in a guarded write of the run's owner."""
    for step in steps:
        entry = step.entry
        stack.take_back(connection, run_id, entry, same_key=step.same_key)
        if entry.kind is EntryKind.SIGNAL and entry.outcome is Outcome.OK:
            inbox.give_back(connection, run_id, entry.name, entry.value)
    journal.drop(connection, run_id, [step.entry.path for step in steps])
    # Those of steps that are tried again are parked for a person, who may let them begin anew; the others are over.
    for again, state in ((True, FaultState.PARKED), (False, FaultState.RESOLVED)):
        paths = [step.entry.path for step in steps if step.same_key is again]
        faults.settle_final(connection, run_id, paths, state)
