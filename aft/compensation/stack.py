"""The compensation stack: one per run, durable, last in first out by the order in which outcomes were committed.

Frames are written only in transactions of the run's owner, with the sequence number of its guarded write. A frame
reads arguments and result from the journal's entry of its step; one that exists before that entry (armed) or beside it
(late) has its own.

A frame belongs to the generation of its run in which it was pushed: later generations use the same paths again. So a
path or a scope identifies a frame only together with a generation; without one only the whole stack is unwound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    case,
    delete,
    distinct,
    func,
    insert,
    select,
    text,
    tuple_,
    union_all,
    update,
)

from aft.ids import RunId, StepPath
from aft.runs.records.journal import RESTARTED, Entry, EntryKind, Outcome
from aft.runs.states import FrameState as FrameState
from aft.runs.states import Status
from aft.store import db_time
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import now
from aft.store.tables import frames, journal, runs

#: The compensator of a frame that is a child run.
CHILD = "(child)"
#: The compensator of a frame that only marks a step.
NOTHING = "(nothing)"
#: States of a frame that still has to be unwound.
PENDING = (FrameState.ARMED, FrameState.OWED, FrameState.LATE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One owed undo; ``value`` is the encoded result of its activity, None if that is unknown."""

    seq: int
    path: StepPath
    scope: str
    activity: str
    compensator: str
    state: FrameState
    args: str | None = field(repr=False)
    value: str | None = field(repr=False)
    key_generation: int
    note: str | None = field(repr=False)
    pushed_at: datetime
    settled_at: datetime | None
    #: The child run whose whole stack this frame represents.
    child_id: str | None = None


_OF_STEP = " AND ".join(f"j.{name} = {frames.name}.{name}" for name in ("run_id", "path", "key_generation"))
_ENTRY = f"FROM {journal.name} AS j WHERE {_OF_STEP}"
#: A frame's columns, to be read by ``read_frame``; the value of a failed entry is no result. Not a join: planned while
#: the journal was small, it might scan all of it once it is large.
_COLUMNS = f"""
    seq, path, scope, activity, compensator, state, coalesce(args, (SELECT j.args {_ENTRY})),
    coalesce(value, (SELECT j.value {_ENTRY} AND j.outcome = '{Outcome.OK.value}')),
    key_generation, note, pushed_at, settled_at, child_id
"""
#: The top of the stack first. A child's frame is ordered by the child's end, which may be before it was pushed.
_FROM_THE_TOP = "coalesce(after_seq, seq) DESC, coalesce(after_inbox_seq, 0) DESC, seq DESC"
_FRAMES = select(text(_COLUMNS)).select_from(frames).order_by(text(_FROM_THE_TOP))
_BEGUN = (FrameState.ARMED, FrameState.LATE, FrameState.UNDONE, FrameState.DONE, FrameState.SKIPPED)
#: Armed and late frames of several runs (steps that were started, whatever their outcome), and popped ones. A step that
#: was undone while its run goes forward has used its idempotency keys: it would be restarted with others. A child has
#: keys of its own, so its frame is included only if it is late.
BEGUN = PreparedQuery.about(
    f"SELECT run_id, path, state, key_generation, activity FROM {frames.name} WHERE run_id {{among}} "
    f"AND state IN ({', '.join(repr(state.value) for state in _BEGUN)}) "
    f"AND (child_id IS NULL OR state = '{FrameState.LATE.value}')"
)
_STATES = ", ".join(repr(state.value) for state in PENDING)
#: The most frames that are read at once.
MOST_READ = 200
#: The frames that a run owes, topmost first, up to ``MOST_READ``; to be read by ``read_frame``.
OWED = PreparedQuery.about(
    f"SELECT {_COLUMNS} FROM {frames.name} WHERE run_id {{among}} AND state IN ({_STATES}) "
    f"ORDER BY {_FROM_THE_TOP} LIMIT {MOST_READ}"
)
#: Whether a person skipped a frame of a run: then the run was not fully undone.
SKIPPED = PreparedQuery.about(
    f"SELECT 1 FROM {frames.name} WHERE run_id {{among}} AND state = '{FrameState.SKIPPED.value}' "
    f"AND compensator <> '{NOTHING}' LIMIT 1"
)
#: The most families (root runs with their descendants) whose owed frames are counted.
MOST_FAMILIES = 10_000
_PENDING = frames.c.state.in_([state.value for state in PENDING])
_INSERT = insert(frames)


def read_frame(values: Sequence[Any]) -> Frame:
    """Read a frame: one ``OWED`` row, with the driver's values or SQLAlchemy's."""
    seq, path, scope, activity, compensator, state, args, value, generation, note, pushed, settled, child = values
    pushed_at, settled_at = cast(datetime, db_time.read_time(pushed)), db_time.read_time(settled)
    made = (seq, path, scope, activity, compensator, FrameState(state), args, value, generation, note)
    return Frame(*made, pushed_at, settled_at, child)


def fields(
    path: StepPath,
    scope: str,
    activity: str,
    compensator: str,
    *,
    at: datetime,
    state: FrameState = FrameState.OWED,
    key_generation: int = 0,
    args: str | None = None,
    value: str | None = None,
) -> dict[str, Any]:
    """Return a frame as the columns of its row; ``args`` and ``value`` only if the journal has no entry with them."""
    return {
        "path": path,
        "scope": scope,
        "activity": activity,
        "compensator": compensator,
        "state": state.value,
        "args": args,
        "value": value,
        "key_generation": key_generation,
        "pushed_at": at,
    }


def push(connection: Connection, run_id: RunId, seq: int, frame: dict[str, Any]) -> None:
    """Push a frame."""
    connection.execute(_INSERT, {**frame, "run_id": run_id, "seq": seq})


def push_child(
    connection: Connection,
    run_id: RunId,
    seq: int,
    path: StepPath,
    scope: str,
    flow: str,
    child: RunId,
    *,
    at: datetime,
    key_generation: int,
    after: tuple[int | None, int | None] = (None, None),
    state: FrameState = FrameState.OWED,
    note: str | None = None,
) -> None:
    """Push the frame of a child: undoing it means undoing that run. Does nothing if the child has a frame already.

    ``after`` are the run's ``seq`` and ``inbox_seq`` when the child ended: the frame is ordered by these.
    """
    known = select(frames.c.seq).where(frames.c.run_id == run_id, frames.c.child_id == child).limit(1)
    if connection.execute(known).first() is not None:
        return
    values: dict[str, Any] = {"path": path, "scope": scope, "activity": flow}
    values |= {"compensator": CHILD, "child_id": child, "state": state.value, "note": note, "pushed_at": at}
    values |= {"key_generation": key_generation, "after_seq": after[0], "after_inbox_seq": after[1]}
    push(connection, run_id, seq, values)


def complete(connection: Connection, run_id: RunId, path: StepPath, key_generation: int, seq: int) -> None:
    """Turn an armed frame into an owed one, on top of what completed before it."""
    armed = update(frames).where(*_armed(run_id, path, key_generation))
    connection.execute(armed.values(state=FrameState.OWED.value, seq=seq))


def store_result(connection: Connection, run_id: RunId, path: StepPath, key_generation: int, value: str) -> None:
    """Store the result of an activity in its armed frame, because the journal does not have it yet."""
    connection.execute(update(frames).where(*_armed(run_id, path, key_generation)).values(value=value))


def disarm(connection: Connection, run_id: RunId, path: StepPath, key_generation: int) -> None:
    """Remove an armed frame: the outcome of its activity is known, and its ``only_if`` says that no undo is owed."""
    connection.execute(delete(frames).where(*_armed(run_id, path, key_generation)))


def _armed(run_id: RunId, path: StepPath, key_generation: int) -> tuple[ColumnElement[bool], ...]:
    of_step = (frames.c.run_id == run_id, frames.c.path == path, frames.c.key_generation == key_generation)
    return (*of_step, frames.c.state == FrameState.ARMED.value)


def owed(
    connection: Connection,
    run_id: RunId,
    scope: str = "",
    *,
    path: str = "",
    generation: int | None = None,
    late: bool = False,
    limit: int = 1,
) -> list[Frame]:
    """Return owed frames, topmost first: all, those under a savepoint, of one step, or the late ones.

    A savepoint or a step needs its ``generation``: an earlier generation may have used the same path.
    """
    assert generation is not None or not (scope or path), "a path names a step only within a generation"
    statement = _FRAMES.where(frames.c.run_id == run_id, _PENDING).limit(limit)
    if scope:
        statement = statement.where((frames.c.scope == scope) | frames.c.scope.startswith(scope + ".", autoescape=True))
    if path:
        statement = statement.where(frames.c.path == path)
    if generation is not None:
        statement = statement.where(_is_of(generation))
    if late:
        statement = statement.where(frames.c.state == FrameState.LATE.value)
    return [read_frame(row) for row in connection.execute(statement)]


def is_of(frame: int, generation: int) -> bool:
    """Return whether a frame's key generation is of a run's generation, whatever restart of its step it is."""
    return frame % RESTARTED == generation


def _is_of(generation: int) -> ColumnElement[bool]:
    return frames.c.key_generation % RESTARTED == generation


def pop_child_frame(
    connection: Connection, run_id: RunId, seq: int, state: FrameState, note: str | None = None
) -> None:
    """Pop a frame: it was undone, or a person skipped it or undid it by hand."""
    _pop(connection, run_id, frames.c.seq == seq, state, note)


def _pop(
    connection: Connection, run_id: RunId, which: ColumnElement[bool], state: FrameState, note: str | None
) -> None:
    popped = {"state": state.value, "note": note, "settled_at": now()}
    connection.execute(update(frames).where(frames.c.run_id == run_id, which).values(**popped))


def mark_skipped(connection: Connection, run_id: RunId, child: RunId, note: str) -> None:
    """Mark an undone child's frame as skipped: the child was not fully undone, after all."""
    undone = update(frames).where(frames.c.run_id == run_id, frames.c.child_id == child)
    undone = undone.where(frames.c.state == FrameState.UNDONE.value)
    connection.execute(undone.values(state=FrameState.SKIPPED.value, note=note))


def mark_kept(connection: Connection, run_id: RunId) -> None:
    """Keep all effects of a run so far: its owed frames are not unwound any more.

    Armed frames are excluded, because their activities are still at work, and late ones, which are no part of the run.
    """
    done = update(frames).where(frames.c.run_id == run_id, frames.c.state == FrameState.OWED.value)
    connection.execute(done.values(state=FrameState.KEPT.value, settled_at=now()))


def make_late(connection: Connection, run_id: RunId, entry: Entry, *, same_key: bool) -> None:
    """Make a step's owed frame late, so that it is undone before its run goes on: its journal entry is deleted.

    Its path may be another step's then. Popped frames count how often a path was used, so a step without any gets one
    that says that it stands, or has failed; unless it is executed again with the ``same_key``.
    """
    if entry.kind not in (EntryKind.ACTIVITY, EntryKind.CHILD):
        return  # it has no frame: one at its path is another step's, of an earlier generation
    of_step = (
        frames.c.run_id == run_id,
        frames.c.path == entry.path,
        frames.c.key_generation == entry.key_generation,
    )
    owed = update(frames).where(*of_step, frames.c.state == FrameState.OWED.value)
    values = {"args": func.coalesce(frames.c.args, entry.args), "value": func.coalesce(frames.c.value, entry.value)}
    connection.execute(owed.values(state=FrameState.LATE.value, **values))
    if same_key:
        return
    found = {row.child_id for row in connection.execute(select(frames.c.child_id).where(*of_step))}
    if None in found:
        return  # once it is popped, it counts as a use of this path
    failed = entry.outcome is Outcome.FAILED
    note = "a retry went back before it" + ("" if found or failed else "; nothing undoes it, so it stands")
    state = FrameState.UNDONE if failed else FrameState.SKIPPED
    add_marker(connection, run_id, entry, state, note, args=entry.args, value=entry.value)


def add_marker(
    connection: Connection,
    run_id: RunId,
    entry: Entry,
    state: FrameState,
    note: str,
    *,
    args: str | None = None,
    value: str | None = None,
) -> None:
    """Insert a popped frame for a step whose journal entry is deleted, so that the step still counts as executed."""
    gone = fields(
        *(entry.path, entry.scope, entry.name, NOTHING),
        at=entry.recorded_at,
        state=state,
        key_generation=entry.key_generation,
        args=args,
        value=value,
    )
    # Not its own number, which a child's frame may have: at the bottom, as it is never unwound.
    connection.execute(insert(frames).values(**gone, run_id=run_id, seq=-entry.seq, note=note, settled_at=now()))


def copy_from_journal(connection: Connection, run_id: RunId) -> None:
    """Copy arguments and results from the journal to owed frames, because the journal is about to be emptied."""
    of_step = (
        (journal.c.run_id == frames.c.run_id)
        & (journal.c.path == frames.c.path)
        & (journal.c.key_generation == frames.c.key_generation)
    )
    # The value of a failed entry is no result.
    result = case((journal.c.outcome == Outcome.OK.value, journal.c.value))
    for column, source in ((frames.c.args, journal.c.args), (frames.c.value, result)):
        found = select(source).where(of_step).scalar_subquery()
        connection.execute(
            update(frames).where(frames.c.run_id == run_id, _PENDING, column.is_(None)).values({column: found})
        )


def pop_step(
    connection: Connection, run_id: RunId, path: str, generation: int | None, state: FrameState, note: str | None
) -> None:
    """Pop the topmost frame of a step, on a person's order.

    ``generation`` is that of the savepoint or step being undone; None: the whole stack is being unwound, and its frames
    of this path from the newest generation to the oldest.
    """
    topmost = select(frames.c.seq).where(frames.c.run_id == run_id, frames.c.path == path, _PENDING)
    if generation is not None:
        # A late effect of any generation is undone before its run goes on.
        topmost = topmost.where(_is_of(generation) | (frames.c.state == FrameState.LATE.value))
    found = topmost.order_by(text(_FROM_THE_TOP)).limit(1).scalar_subquery()
    _pop(connection, run_id, frames.c.seq == found, state, note)


def compensators_in_use(
    connection: Connection, namespace: str, known: Sequence[tuple[str, int]]
) -> list[tuple[str, str, int]]:
    """Return (activity, compensator, runs) for the compensators that runs of these flows may still need.

    Reads only families whose root has not ended, by the index of states, and at most ``MOST_FAMILIES`` of them: ended
    ones, which may be millions, are not scanned.
    """
    # One query for each state: for all together, SQLite expects most of the rows, and scans the table.
    root_ids = [
        select(runs.c.id).where(
            runs.c.namespace == namespace,
            runs.c.status == status.value,
            runs.c.ended_as.is_(None),
            runs.c.parent_id.is_(None),
        )
        for status in Status
        if not status.ended
    ]
    live = select(union_all(*root_ids).subquery().c.id).limit(MOST_FAMILIES)
    # By the root: a completed child is undone with its parent.
    is_known = tuple_(runs.c.flow, runs.c.version).in_(known)
    members = union_all(
        select(runs.c.id).where(runs.c.id.in_(live), is_known),
        select(runs.c.id).where(runs.c.root_id.in_(live), runs.c.parent_id.is_not(None), is_known),
    )
    statement = (
        select(frames.c.activity, frames.c.compensator, func.count(distinct(frames.c.run_id)))
        .where(frames.c.run_id.in_(members), frames.c.child_id.is_(None), _PENDING)
        .group_by(frames.c.activity, frames.c.compensator)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(statement)]


def positions(connection: Connection, run_id: RunId) -> dict[int, tuple[float, float]]:
    """Return the position of each frame in a run's stack, by its ``seq``; higher is nearer to the top."""
    place = (func.coalesce(frames.c.after_seq, frames.c.seq), func.coalesce(frames.c.after_inbox_seq, 0))
    found = connection.execute(select(frames.c.seq, *place).where(frames.c.run_id == run_id))
    return {seq: (after, inbox) for seq, after, inbox in found}


def of_run(connection: Connection, run_id: RunId) -> list[Frame]:
    """Return every frame of a run, the top first."""
    return [read_frame(row) for row in connection.execute(_FRAMES.where(frames.c.run_id == run_id))]
