"""Loads what earlier owners of a run have recorded, before a pass over its code begins.

The records are read in one statement for several runs, by the worker that claimed them, or here. No other process
writes them meanwhile: this one owns the run, and its inbox only grows.
"""

from __future__ import annotations

from dataclasses import replace

from aft.fault import FaultKind
from aft.flows.orders.apply import OrderHandler
from aft.flows.session import run_records
from aft.flows.session.blocks import Blocked, is_of_step, stay_parked
from aft.flows.session.journal_replay import BegunSteps
from aft.flows.session.run_records import RunRecords
from aft.flows.session.unknown_outcomes import UNDO
from aft.flows.steps.children import child_of
from aft.flows.steps.run_constraints import PATHS
from aft.flows.steps.run_session import RunSession
from aft.ids import RunId
from aft.runs.records.inbox import HINTS, MAIL
from aft.runs.records.journal import Entry
from aft.runs.waits import WaitKind
from aft.runs.wakes import child_runs


def load_records(session: RunSession) -> RunRecords:
    """Read the run's records as of now; waits while the database is unreachable."""
    owner = session.owner
    owner.write_held()
    row = replace(owner.run, seq=owner.seq, inbox_seq=owner.inbox_seq)
    return owner.retry_while_leased(lambda: run_records.load(session.deps.store, [row], session.deps.clock)[row.id])


def load_session(session: RunSession, recorded: RunRecords) -> list[Entry]:
    """Load the records of earlier owners into a session, and apply unread orders; return the journal.

    Raises Blocked, RunOver or InboxChanged if the orders end the pass.
    """
    owner, entries, live, items = session.owner, recorded.entries, recorded.live, recorded.items
    seen = owner.inbox_seq
    session.step_states.load(live, recorded.armed, recorded.undone, (entry.path for entry in entries))
    session.step_states.owes_late_effects = recorded.late
    session.run_inbox.fill(items)
    session.run_inbox.measured = recorded.measured
    # Waits that have their outcome are over, though the last owner died before it stored that.
    if owner.run.waits:
        done = {entry.path for entry in entries}
        owner.change(waits=tuple(wait for wait in owner.run.waits if wait.path not in done))
    session.step_states.begun = BegunSteps(_find_begun(recorded), _find_children(session, entries))
    owner.read_to = max([seen, *(item.seq for item in items)])
    orders = [item for item in items if item.verb not in (*MAIL, *HINTS)]
    if orders:
        OrderHandler(session.deps, session).apply_orders(orders, live, entries)
    elif stepless := [fault for fault in recorded.corrupt if fault.path is None]:
        raise Blocked(*map(stay_parked, stepless))  # no step would come to them
    return entries


def _find_children(session: RunSession, entries: list[Entry]) -> set[str]:
    """Return the steps that have begun a child and have no outcome; a dead owner may not have stored the wait.

    A child of a step that a retry has rewound is not among them: the step's next child has another id.
    """
    owner = session.owner
    waits = [wait for wait in owner.run.waits if wait.kind is WaitKind.CHILD and not wait.path.endswith(UNDO)]
    found = {RunId(wait.name): wait.path for wait in waits}
    if session.step_states.unknown.before_journal_end:
        generation = owner.run.key_generation
        found |= owner.read(lambda connection: child_runs.find_begun(connection, owner.run_id, generation))
    begun = {str(path) for child, path in found.items() if child == child_of(session, path)}
    return begun.difference(entry.path for entry in entries) if begun else begun


def _find_begun(recorded: RunRecords) -> dict[str, str]:
    """Return the steps that have begun and have no outcome, with the names of their activities."""
    others = {*(entry.path for entry in recorded.entries), *PATHS.values()}
    faults = [fault for fault in recorded.live if fault.kind in (FaultKind.ACTIVITY, FaultKind.CONSTRAINT)]
    failed = {str(fault.path): fault.name for fault in faults if is_of_step(fault)}
    return {path: name for path, name in (failed | recorded.armed).items() if path not in others}
