"""Journal marks that have no effect of their own: a pivot, and the code changes (patches) that a run has."""

from __future__ import annotations

from sqlalchemy import Connection

from aft.compensation import stack
from aft.flows.declare.calls import Pivot
from aft.flows.session import release
from aft.flows.steps.request import OnRecorded, Returns, StepRequest
from aft.flows.steps.run_session import RunSession
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.store.db_time import FromNow


def pivot(session: RunSession, path: StepPath, scope: str) -> StepRequest:
    """Make the step after which nothing done before it is undone any more."""

    def perform(on_recorded: OnRecorded | None) -> Entry:
        session.release_or_read_inbox()
        owner = session.owner
        entry = Entry(path, scope, EntryKind.PIVOT, Pivot().name, Outcome.OK, session.deps.clock.now())

        def then(connection: Connection, seq: int) -> None:
            # A cancel sent before the pivot is carried out; one sent later sees the pivot in the row.
            release.check_orders(owner, connection)
            stack.mark_kept(connection, owner.run_id)

        recorded = session.record(entry, then, on_recorded, pivoted_at=FromNow())
        owner.change(pivoted_at=owner.run.pivoted_at or entry.recorded_at)
        return recorded

    return StepRequest(path, EntryKind.PIVOT, Pivot().name, perform, lambda _: Returns(None), quick=True)


def patch_path(change: str) -> StepPath:
    """Return the journal path of a patch: outside the step numbers, so that runs without it keep theirs."""
    return StepPath(f"patch/{change}")


def record_patch(session: RunSession, change: str) -> None:
    """Journal that a run has a patch."""
    entry = Entry(patch_path(change), "", EntryKind.PATCH, change, Outcome.OK, session.deps.clock.now())
    session.record(entry)
