"""What would be undone if a run were compensated now, in order, and what could not be? Reads only.

The order is that of the unwinding: the top of the stack first; a child, where its frame lies, as a whole. What has no
compensator, or lies before a pivot, is named too: it would stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from aft.codec import decode_untyped
from aft.compensation import stack
from aft.compensation.stack import PENDING, Frame, FrameState
from aft.errors import CodecError
from aft.flows.registry import Registry
from aft.ids import RunId
from aft.runs import families, journal
from aft.runs.journal import EntryKind, Outcome


@dataclass(frozen=True, slots=True)
class Undo:
    """One thing that a run did: what undoes it, with which arguments; ``obstacle`` is what keeps it from doing so."""

    run_id: RunId
    path: str
    activity: str
    compensator: str | None
    arguments: Any = None
    result: Any = None
    obstacle: str | None = None


def plan(connection: Connection, run_id: RunId, registry: Registry | None = None, scope: str = "") -> list[Undo]:
    """List what would be undone, in order, then what would stand; ``registry`` is asked whether the code is there.

    ``scope``: only what lies under that savepoint.
    """
    found = list(_owed(connection, run_id, registry, scope))
    return [*found, *(undo for undo in _standing(connection, run_id) if _is_under(undo.path, scope))]


def _is_under(path: str, scope: str) -> bool:
    return not scope or path.startswith(f"{scope}.")


def _owed(connection: Connection, run_id: RunId, registry: Registry | None, scope: str = "") -> Iterator[Undo]:
    for frame in stack.of_run(connection, run_id):
        if frame.state not in PENDING or not _is_under(frame.path, scope):
            continue
        if frame.child_id is not None:
            yield from _owed(connection, RunId(frame.child_id), registry)
        else:
            yield _undo(run_id, frame, _missing(registry, frame))
    for child in families.running(connection, families.namespace_of(connection, run_id), run_id, scope):
        yield from _owed(connection, child.id, registry)


def _undo(run_id: RunId, frame: Frame, obstacle: str | None) -> Undo:
    return Undo(run_id, frame.path, frame.activity, frame.compensator, _read(frame.args), _read(frame.value), obstacle)


def _missing(registry: Registry | None, frame: Frame) -> str | None:
    if registry is None or registry.compensator(frame.activity, frame.compensator) is not None:
        return None
    return f"this code has no compensator {frame.compensator!r} of activity {frame.activity!r}: it would park there"


def _standing(connection: Connection, run_id: RunId) -> Iterator[Undo]:
    """What stands whatever happens: done before a pivot, or without a compensator."""
    frames = {frame.path: frame for frame in stack.of_run(connection, run_id)}
    for frame in frames.values():
        if frame.state is FrameState.KEPT:
            yield _undo(run_id, frame, "done before the pivot: it stands")
    for entry in reversed(journal.load(connection, run_id)):
        if entry.kind is EntryKind.ACTIVITY and entry.outcome is Outcome.OK and entry.path not in frames:
            args, value = _read(entry.args), _read(entry.value)
            yield Undo(run_id, entry.path, entry.name, None, args, value, "has no undo: it stands")


def _read(text: str | None) -> Any:
    try:
        return None if text is None else decode_untyped(text)
    except CodecError:
        return text
