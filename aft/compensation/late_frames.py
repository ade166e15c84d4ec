"""The frames of effects that arrive late: how they are made, and what tells later that a step had failed before."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, insert

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.ids import RunId
from aft.runs import journal, late
from aft.runs.journal import EntryKind
from aft.runs.late import Fate, Found
from aft.store.moments import now
from aft.store.tables import frames


def owe(connection: Connection, found: Found, seq: int, at: datetime) -> None:
    """Let an effect be undone: put its frame on top, under the number of a write that has locked the run's row."""
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
    late.settle(connection, found.id, Fate.UNDO)


def keep_failures(connection: Connection, run_id: RunId) -> None:
    """Keep which activities have failed for good, because the journal that tells so begins anew.

    Else an effect of such a step that arrives later would be taken for the recorded one, if nothing undoes it.
    """
    failed = journal.failed(connection, run_id)
    framed = {(frame.path, frame.key_generation) for frame in stack.of_run(connection, run_id)} if failed else ()
    for entry in failed:
        if entry.kind is EntryKind.ACTIVITY and (entry.path, entry.key_generation) not in framed:
            gone = stack.fields(
                *(entry.path, entry.scope, entry.name, stack.NOTHING),
                at=entry.recorded_at,
                state=FrameState.UNDONE,
                key_generation=entry.key_generation,
            )
            # Below everything: it is never undone.
            note = "it had failed when the run began anew"
            values = {**gone, "run_id": run_id, "seq": -entry.seq, "note": note, "settled_at": now()}
            connection.execute(insert(frames).values(**values))
