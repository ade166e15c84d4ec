"""The compensation stack: one per run, on disk, last in first out by the order in which outcomes were committed.

Frames are written only in transactions of the run's owner, with the sequence number of its guarded write. A frame
takes arguments and result from the journal's row of its step; one that exists before the journal has a row (armed)
or beside it (late) carries its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Row, distinct, func, insert, select, tuple_, update

from aft.ids import RunId, StepPath
from aft.runs.journal import RESTARTED
from aft.runs.states import FrameState as FrameState
from aft.store import moments
from aft.store.moments import now
from aft.store.questions import Question
from aft.store.tables import frames, journal, runs

#: What undoes a frame that is a child.
CHILD = "(child)"
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
    args: str | None
    value: str | None
    key_generation: int
    note: str | None
    pushed_at: datetime
    settled_at: datetime | None
    #: The run whose whole stack this frame stands for.
    child_id: str | None = None


_COLUMNS = [
    frames.c.seq,
    frames.c.path,
    frames.c.scope,
    frames.c.activity,
    frames.c.compensator,
    frames.c.state,
    func.coalesce(frames.c.args, journal.c.args).label("args"),
    func.coalesce(frames.c.value, journal.c.value).label("value"),
    frames.c.key_generation,
    frames.c.note,
    frames.c.pushed_at,
    frames.c.settled_at,
    frames.c.child_id,
]
_FRAMES = select(*_COLUMNS).select_from(
    frames.outerjoin(journal, (journal.c.run_id == frames.c.run_id) & (journal.c.path == frames.c.path))
)
_BEGUN = (FrameState.ARMED, FrameState.UNDONE, FrameState.DONE, FrameState.SKIPPED)
#: Armed frames of several runs, steps that were started whatever came of it; and those that were taken off. What was
#: undone while its run goes forward has its keys behind it: it would be begun anew under others.
BEGUN = Question.about(
    f"SELECT run_id, path, state, key_generation FROM {frames.name} WHERE run_id {{among}} "
    f"AND state IN ({', '.join(repr(state.value) for state in _BEGUN)}) AND child_id IS NULL"
)
_STATES = ", ".join(repr(state.value) for state in PENDING)
#: Frames that are read at once.
MOST_READ = 200
#: The undos that a run owes, the topmost first, as many as are read at once; to be read by ``read``.
OWED = Question.about(
    # Not a join: planned while the journal was small, it might go through all of it once it is large.
    f"""
SELECT f.seq, f.path, f.scope, f.activity, f.compensator, f.state,
    coalesce(f.args, (SELECT j.args FROM {journal.name} AS j WHERE j.run_id = f.run_id AND j.path = f.path)),
    coalesce(f.value, (SELECT j.value FROM {journal.name} AS j WHERE j.run_id = f.run_id AND j.path = f.path)),
    f.key_generation, f.note, f.pushed_at, f.settled_at, f.child_id
FROM {frames.name} AS f
WHERE f.run_id {{among}} AND f.state IN ({_STATES}) ORDER BY f.seq DESC LIMIT {MOST_READ}
"""
)
#: Whether a person let a frame of a run go: then it was not fully undone.
SKIPPED = Question.about(
    f"SELECT 1 FROM {frames.name} WHERE run_id {{among}} AND state = '{FrameState.SKIPPED.value}' LIMIT 1"
)
_PENDING = frames.c.state.in_([state.value for state in PENDING])
_INSERT = insert(frames)


def _frame(row: Row[Any]) -> Frame:
    values = dict(row._mapping)
    values["state"] = FrameState(values["state"])
    return Frame(**values)


def read(values: Sequence[Any]) -> Frame:
    """Read a frame as the driver gives it, in answer to ``OWED``."""
    seq, path, scope, activity, compensator, state, args, value, generation, note, pushed, settled, child = values
    pushed_at, settled_at = cast(datetime, moments.read(pushed)), moments.read(settled)
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
    """A frame as it lies in its row; ``args`` and ``value`` only where the journal has no row to take them from."""
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
    """Put a frame on top."""
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
    state: FrameState = FrameState.OWED,
    note: str | None = None,
) -> None:
    """Put a completed child on top: undoing this frame means undoing that run."""
    values = {"run_id": run_id, "seq": seq, "path": path, "scope": scope, "activity": flow, "compensator": CHILD}
    connection.execute(
        insert(frames).values(**values, child_id=child, state=state.value, note=note, key_generation=0, pushed_at=at)
    )


def complete(connection: Connection, run_id: RunId, path: StepPath, seq: int) -> None:
    """Turn an armed frame into an owed one, on top of what completed before it."""
    connection.execute(
        update(frames)
        .where(frames.c.run_id == run_id, frames.c.path == path, frames.c.state == FrameState.ARMED.value)
        .values(state=FrameState.OWED.value, seq=seq)
    )


def learn(connection: Connection, run_id: RunId, path: StepPath, value: str) -> None:
    """Let an armed frame know the result of its activity, which has none in the journal yet."""
    connection.execute(
        update(frames)
        .where(frames.c.run_id == run_id, frames.c.path == path, frames.c.state == FrameState.ARMED.value)
        .values(value=value)
    )


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
    """Return frames that are owed, the topmost first: of all, under a savepoint, of one step, or of the late ones.

    A step of a run that has begun anew is one of a ``generation``: an earlier one's may have had the same path.
    """
    statement = _FRAMES.where(frames.c.run_id == run_id, _PENDING).order_by(frames.c.seq.desc()).limit(limit)
    if scope:
        statement = statement.where((frames.c.scope == scope) | frames.c.scope.startswith(scope + ".", autoescape=True))
    if path:
        statement = statement.where(frames.c.path == path)
    if generation is not None:
        statement = statement.where(_is_of(generation))
    if late:
        statement = statement.where(frames.c.state == FrameState.LATE.value)
    return [_frame(row) for row in connection.execute(statement)]


def is_of(frame: int, generation: int) -> bool:
    """Tell whether a frame with these keys is of a run's generation, of whichever beginning of its step."""
    return frame % RESTARTED == generation


def _is_of(generation: int) -> ColumnElement[bool]:
    return frames.c.key_generation % RESTARTED == generation


def settle(connection: Connection, run_id: RunId, seq: int, state: FrameState, note: str | None = None) -> None:
    """Take a frame off: undone, or settled by a person."""
    connection.execute(
        update(frames)
        .where(frames.c.run_id == run_id, frames.c.seq == seq)
        .values(state=state.value, note=note, settled_at=now())
    )


def keep_all(connection: Connection, run_id: RunId) -> None:
    """Let everything stand that a run has done so far: nothing of it is undone any more."""
    connection.execute(
        update(frames).where(frames.c.run_id == run_id, _PENDING).values(state=FrameState.KEPT.value, settled_at=now())
    )


def carry_over(connection: Connection, run_id: RunId) -> None:
    """Give frames arguments and results of their own, because the journal that has them begins anew."""
    of_step = (journal.c.run_id == frames.c.run_id) & (journal.c.path == frames.c.path)
    for column, source in ((frames.c.args, journal.c.args), (frames.c.value, journal.c.value)):
        found = select(source).where(of_step).scalar_subquery()
        connection.execute(
            update(frames).where(frames.c.run_id == run_id, _PENDING, column.is_(None)).values({column: found})
        )


def settle_step(connection: Connection, run_id: RunId, path: str, state: FrameState, note: str | None) -> None:
    """Take the topmost frame of a step off, as a person asked."""
    topmost = select(func.max(frames.c.seq)).where(frames.c.run_id == run_id, frames.c.path == path, _PENDING)
    connection.execute(
        update(frames)
        .where(frames.c.run_id == run_id, frames.c.seq == topmost.scalar_subquery())
        .values(state=state.value, note=note, settled_at=now())
    )


def owed_kinds(connection: Connection, namespace: str, known: Sequence[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Return which compensators of which activities runs of these flows may still need, and how many runs."""
    root = runs.alias()  # a completed child is undone with its parent
    statement = (
        select(frames.c.activity, frames.c.compensator, func.count(distinct(frames.c.run_id)))
        .join(runs, runs.c.id == frames.c.run_id)
        .join(root, root.c.id == runs.c.root_id)
        .where(
            runs.c.namespace == namespace,
            root.c.ended_as.is_(None),
            tuple_(runs.c.flow, runs.c.version).in_(known),
            frames.c.child_id.is_(None),
            _PENDING,
        )
        .group_by(frames.c.activity, frames.c.compensator)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(statement)]


def of_run(connection: Connection, run_id: RunId) -> list[Frame]:
    """Return every frame of a run, the top first."""
    statement = _FRAMES.where(frames.c.run_id == run_id).order_by(frames.c.seq.desc())
    return [_frame(row) for row in connection.execute(statement)]
