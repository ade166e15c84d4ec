"""Frames of late effects, and markers of failed steps that outlive the journal."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.ids import RunId
from aft.runs.records import journal, late_effects
from aft.runs.records.journal import EntryKind
from aft.runs.records.late_effects import FoundEffect, LateDecision


def push_late_frame(connection: Connection, found: FoundEffect, seq: int, at: datetime) -> None:
    """Push the frame of a late effect and close the effect; ``seq`` is of a write that has locked the run's row."""
    effect = found.effect
    frame = stack.fields(
        effect.path,
        effect.scope,
        effect.activity,
        effect.compensator or "",
        at=at,
        state=FrameState.LATE,
        key_generation=effect.key_generation,
        args=effect.args,
        value=effect.value,
    )
    stack.push(connection, effect.run_id, seq, frame)
    late_effects.close(connection, found.id, LateDecision.UNDO)


def mark_failures(connection: Connection, run_id: RunId) -> None:
    """Mark the activities that failed for good by popped frames, because the journal is about to be emptied.

    Otherwise a late effect of such a step without compensator would be taken for the recorded one.
    """
    failed = journal.failed(connection, run_id)
    framed = {(frame.path, frame.key_generation) for frame in stack.of_run(connection, run_id)} if failed else ()
    for entry in failed:
        if entry.kind is EntryKind.ACTIVITY and (entry.path, entry.key_generation) not in framed:
            stack.add_marker(
                connection, run_id, entry, FrameState.UNDONE, "it had failed when the run continued as new"
            )
