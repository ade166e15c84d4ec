"""What happened to a run, in order: its rows put together into one story. Reads only.

The rows are the truth; the live stream only says when to look again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import RunId
from aft.runs import audit, faults, journal, rows
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.rows import RunRow
from aft.runs.states import Status


class What(StrEnum):
    """The kinds of things that happen to a run."""

    STARTED = "started"
    ACTIVITY = "activity"  #: an activity completed
    PUSHED = "pushed"  #: its undo was put on the stack
    FAULT = "fault"  #: something raised
    WAIT = "wait"  #: the fault was put into a level
    FINAL = "final"  #: the failure was found to be final
    ABORTED = "aborted"  #: the worker was lost
    POPPED = "popped"  #: a compensator ran, and its frame came off
    SETTLED = "settled"  #: a person took a frame off
    UNDONE = "undone"  #: a savepoint was undone
    DEED = "deed"  #: a person did something
    PARKED = "parked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened; ``detail`` is for people."""

    at: datetime
    what: What
    path: str | None
    name: str
    detail: str = ""
    level: int | None = None
    wait: timedelta | None = None
    queue: str | None = None


def read(connection: Connection, namespace: str, run_id: RunId) -> tuple[RunRow, list[Happening]]:
    """Tell a run's story so far, oldest first."""
    row = rows.get(connection, namespace, run_id)
    story = [Happening(row.created_at, What.STARTED, None, row.flow, row.args)]
    for entry in journal.load(connection, run_id):
        story += _of_entry(entry)
    for frame in stack.of_run(connection, run_id):
        story += _of_frame(frame)
    for fault in faults.of_run(connection, run_id):
        story += _of_fault(fault)
    for deed in audit.of_run(connection, run_id):
        story.append(Happening(deed.at, What.DEED, None, deed.action, f"by {deed.actor}: {deed.note or 'no note'}"))
    story += _of_end(row, told=any(happening.what is What.PARKED for happening in story))
    # The sort is stable: what happened in one transaction stays in the order in which it is told here.
    return row, sorted(story, key=lambda happening: happening.at)


def _of_entry(entry: Entry) -> list[Happening]:
    if entry.kind is EntryKind.SAVEPOINT:
        return [Happening(entry.recorded_at, What.UNDONE, entry.path, entry.name or "savepoint")]
    if entry.outcome is Outcome.OK:
        return [Happening(entry.recorded_at, What.ACTIVITY, entry.path, entry.name, entry.value or "")]
    return []  # the fault tells it


def _of_frame(frame: Frame) -> list[Happening]:
    story = [Happening(frame.pushed_at, What.PUSHED, frame.path, frame.compensator)]
    if frame.settled_at is not None and frame.state is FrameState.UNDONE:
        story.append(Happening(frame.settled_at, What.POPPED, frame.path, frame.compensator))
    elif frame.settled_at is not None:
        story.append(Happening(frame.settled_at, What.SETTLED, frame.path, frame.compensator, frame.state.value))
    return story


def _of_fault(fault: Fault) -> list[Happening]:
    if fault.kind is FaultKind.ABORT:
        return [Happening(fault.raised_at, What.ABORTED, None, fault.name, fault.message)]
    story = [Happening(fault.raised_at, What.FAULT, fault.path, fault.name, str(fault))]
    if fault.kind is FaultKind.FLOW and fault.state is not FaultState.FINAL:
        return [Happening(fault.raised_at, What.PARKED, None, fault.name, str(fault))]
    if fault.decided_at is None:
        return story
    # Two clocks, the worker's and the database's: a decision is never told before its fault.
    at = max(fault.decided_at, fault.raised_at)
    if fault.level is not None:
        told = f"level {fault.level}, try {fault.try_in_level}: {fault.verdict}"
        story.append(Happening(at, What.WAIT, fault.path, fault.name, told, fault.level, fault.wait, fault.queue))
    elif fault.kind is FaultKind.COMPENSATOR:
        story.append(Happening(at, What.PARKED, fault.path, fault.name, fault.verdict or ""))
    elif fault.state is FaultState.FINAL:
        story.append(Happening(at, What.FINAL, fault.path, fault.name, fault.verdict or "", queue=fault.queue))
    return story


def _of_end(row: RunRow, *, told: bool) -> list[Happening]:
    if row.status is Status.PARKED and not told:
        return [Happening(row.updated_at, What.PARKED, None, row.flow, row.reason or "")]
    if row.ended_at is not None:
        return [Happening(row.ended_at, What.ENDED, None, row.status.value, row.result or "")]
    return []
