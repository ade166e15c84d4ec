"""The compensation stack: one per run, on disk, last in first out by the order in which outcomes were committed.

Frames are written only in transactions of the run's owner, with the sequence number of its guarded write. A frame
takes arguments and result from the journal's row of its step; one that exists before the journal has a row (armed)
or beside it (late) carries its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, distinct, func, insert, select, tuple_, update

from aft.ids import RunId, StepPath
from aft.store.moments import now
from aft.store.tables import frames, journal, runs


class FrameState(StrEnum):
    """What has become of an owed undo."""

    ARMED = "armed"  #: pushed before its activity was called; owed whatever comes of that
    OWED = "owed"  #: its activity completed
    LATE = "late"  #: its effect arrived after the run had lost sight of it
    UNDONE = "undone"  #: its compensator ran
    SKIPPED = "skipped"  #: a person let it go
    DONE = "done"  #: a person undid it by hand
    KEPT = "kept"  #: the run went past its pivot: what it did stands


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
_PENDING = frames.c.state.in_([state.value for state in PENDING])
_INSERT = insert(frames)


def _frame(row: Row[Any]) -> Frame:
    values = dict(row._mapping)
    values["state"] = FrameState(values["state"])
    return Frame(**values)


def push(
    connection: Connection,
    run_id: RunId,
    seq: int,
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
) -> None:
    """Put a frame on top; ``args`` and ``value`` only where the journal has no row to take them from."""
    connection.execute(
        _INSERT,
        {
            "run_id": run_id,
            "seq": seq,
            "path": path,
            "scope": scope,
            "activity": activity,
            "compensator": compensator,
            "state": state.value,
            "key_generation": key_generation,
            "args": args,
            "value": value,
            "pushed_at": at,
        },
    )


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


def top(connection: Connection, run_id: RunId, scope: str = "", *, path: str = "", late: bool = False) -> Frame | None:
    """Return the topmost frame that is owed: of all, under a savepoint, of one step, or of the late ones."""
    statement = _FRAMES.where(frames.c.run_id == run_id, _PENDING).order_by(frames.c.seq.desc()).limit(1)
    if scope:
        statement = statement.where((frames.c.scope == scope) | frames.c.scope.startswith(scope + ".", autoescape=True))
    if path:
        statement = statement.where(frames.c.path == path)
    if late:
        statement = statement.where(frames.c.state == FrameState.LATE.value)
    row = connection.execute(statement).one_or_none()
    return None if row is None else _frame(row)


def armed(connection: Connection, run_id: RunId) -> set[str]:
    """Return the paths of armed frames: steps that were started, whatever came of it."""
    statement = select(frames.c.path).where(frames.c.run_id == run_id, frames.c.state == FrameState.ARMED.value)
    return set(connection.execute(statement).scalars())


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
    """Take the frame of a step off, as a person asked."""
    connection.execute(
        update(frames)
        .where(frames.c.run_id == run_id, frames.c.path == path, _PENDING)
        .values(state=state.value, note=note, settled_at=now())
    )


def any_skipped(connection: Connection, run_id: RunId) -> bool:
    """Tell whether a person let a frame go: then the run was not fully undone."""
    statement = select(frames.c.seq).where(frames.c.run_id == run_id, frames.c.state == FrameState.SKIPPED.value)
    return connection.execute(statement.limit(1)).first() is not None


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
