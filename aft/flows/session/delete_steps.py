"""Deletes the journal entries of steps that a retry executes again; part of the write that parks the run.

Their effects are undone before the run goes on, signals that they took are unread
again, and their final faults are parked (same key) or resolved, so that they are executed again. A crash before the
commit changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from aft.compensation import stack
from aft.fault import FaultState
from aft.flows.session.blocks import DroppedStep
from aft.ids import RunId
from aft.runs.records import faults, inbox, journal
from aft.runs.records.journal import EntryKind, Outcome


def delete_steps(connection: Connection, run_id: RunId, steps: Sequence[DroppedStep]) -> None:
    """Delete these steps; call it in a guarded write of the run's owner."""
    for step in steps:
        entry = step.entry
        stack.make_late(connection, run_id, entry, same_key=step.same_key)
        if entry.kind is EntryKind.SIGNAL and entry.outcome is Outcome.OK:
            inbox.mark_unread(connection, run_id, entry.name, entry.value)
    journal.drop(connection, run_id, [step.entry.path for step in steps])
    # Faults of steps that keep their key are parked, for a person who may let them start again; the others are closed.
    for again, state in ((True, FaultState.PARKED), (False, FaultState.RESOLVED)):
        paths = [step.entry.path for step in steps if step.same_key is again]
        faults.close_final(connection, run_id, paths, state)
