"""Previews the undo of a run: what would be undone now, in order, and what could not be.

Reads only. The order is that of the unwinding: children that have not ended, then the stack from its top; a completed
child, where its frame lies, as a whole. Effects that would remain are listed, too, in the run and in all runs below:
those without a compensator, before a pivot, or dropped by hand, and what a child owes that cannot be undone. A frame
whose compensator has failed for good, so that the run is parked for it, has that as its obstacle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from aft.codec import decode_untyped
from aft.compensation import stack
from aft.compensation.stack import PENDING, Frame, FrameState
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.declare.registry import Registry
from aft.flows.steps.children import describe_remaining
from aft.ids import RunId
from aft.runs import run_rows
from aft.runs.orders import steer
from aft.runs.records import faults, journal
from aft.runs.records.journal import EntryKind, Outcome
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import child_runs
from aft.security.redaction import redact


@dataclass(frozen=True, slots=True)
class Undo:
    """One effect of a run: its compensator and arguments; ``obstacle`` is what prevents its undo."""

    run_id: RunId
    path: str
    activity: str
    compensator: str | None
    arguments: Any = field(default=None, repr=False)
    result: Any = field(default=None, repr=False)
    obstacle: str | None = None


def plan(connection: Connection, run: RunRow, registry: Registry | None = None, scope: str = "") -> list[Undo]:
    """List what would be undone, in order, then what would remain; ``registry`` is checked for the code, if given.

    ``scope``: only what lies under that savepoint of the run's current generation. If compensating the run would be
    refused, nothing is undone, and each obstacle says why; a run that is being undone already continues with the list.
    """
    preview = _Preview(connection, registry)
    generation = run.key_generation if scope else None
    owed = list(preview.owed(run, scope, generation))
    found = [*owed, *preview.step_states(run, scope, generation)]
    objection = None if scope or steer.is_being_undone(run) else steer.find_objection(run)
    if objection is None:
        return found
    return [undo if undo.obstacle else replace(undo, obstacle=f"{objection}: its effect remains") for undo in found]


class _Preview:
    """Walks through the stacks of a run and of its children, as the unwinding would."""

    def __init__(self, connection: Connection, registry: Registry | None) -> None:
        self._connection = connection
        self._registry = registry
        #: The runs whose stacks would be unwound.
        self._visited: list[RunRow] = []

    def owed(self, run: RunRow, scope: str = "", generation: int | None = None) -> Iterator[Undo]:
        """Yield what a run owes: of children that have not ended first, then its frames from the top."""
        self._visited.append(run)
        frames = [
            frame
            for frame in stack.of_run(self._connection, run.id)
            if frame.state in PENDING and _is_under(frame.path, frame.key_generation, scope, generation)
        ]
        framed = {frame.child_id for frame in frames}
        for child in child_runs.running(self._connection, run.namespace, run.id, scope, generation):
            if child.pivoted_at is None and child.id not in framed:
                yield from self.owed(child)
        parked = self._parked_fault(run)
        for found in self._in_order(run, frames, scope, generation):
            if isinstance(found, RunRow):
                yield from self._child(run.id, found.parent_path or "", found)
            elif found.child_id is not None:
                yield from self._child_of_frame(run.id, found)
            elif parked is not None and found.path == (parked.path or "").removesuffix("/undo"):
                yield _undo(run.id, found, _missing(self._registry, found) or _parked_for(parked))
                parked = None  # further frames of the path are of earlier generations
            else:
                yield _undo(run.id, found, _missing(self._registry, found))

    def _in_order(
        self, run: RunRow, frames: list[Frame], scope: str, generation: int | None
    ) -> Iterator[Frame | RunRow]:
        """Yield frames from the top, and among them children that have ended, or cannot be stopped, without a frame."""
        unframed = child_runs.unframed(self._connection, run.id, scope, generation)
        if not unframed:
            yield from frames
            return
        positions = stack.positions(self._connection, run.id)
        placed: list[tuple[tuple[float, float], Frame | RunRow]] = [(positions[frame.seq], frame) for frame in frames]
        for child in unframed:
            seq = math.inf if child.parent_seq is None else child.parent_seq
            placed.append(((seq, child.parent_inbox_seq or 0), child))
        yield from (found for _, found in sorted(placed, key=lambda pair: pair[0], reverse=True))

    def _child_of_frame(self, run_id: RunId, frame: Frame) -> Iterator[Undo]:
        child = run_rows.get_all(self._connection, [frame.child_id or ""]).get(RunId(frame.child_id or ""))
        if child is None:
            why = f"child {frame.child_id} was deleted: nothing of it can be undone"
            yield Undo(run_id, frame.path, frame.activity, None, obstacle=why)
        else:
            yield from self._child(run_id, frame.path, child)

    def _child(self, run_id: RunId, path: str, child: RunRow) -> Iterator[Undo]:
        if child.ended_as in (Status.FAILED, Status.CANCELLED):
            yield Undo(run_id, path, child.flow, None, obstacle=f"{describe_remaining(child)}: its effect remains")
        elif child.pivoted_at is not None:
            why = f"child {child.id} has gone past its pivot and only goes forward: it would park there"
            yield Undo(run_id, path, child.flow, None, obstacle=why)
        else:
            yield from self.owed(child)

    def _parked_fault(self, run: RunRow) -> Fault | None:
        """Return the fault of the compensator that a run is parked for, if no order has been given since."""
        if run.status is not Status.PARKED or run.wake_id is not None:
            return None
        parked = [
            fault
            for fault in faults.of_run(self._connection, run.id)
            if fault.state is FaultState.PARKED and fault.kind is FaultKind.COMPENSATOR
        ]
        return parked[-1] if parked else None

    def step_states(self, run: RunRow, scope: str = "", generation: int | None = None) -> Iterator[Undo]:
        """Yield what would remain of a run and of all runs below it; ``scope`` is one of the run's."""
        yield from self._remaining_of(run, scope, generation)
        visited = {each.id for each in self._visited}
        for child in self._below(run, scope, generation):
            if child.id not in visited:
                yield from self._left_in(child)
            yield from self._remaining_of(child, "", None)

    def _below(self, run: RunRow, scope: str, generation: int | None) -> Iterator[RunRow]:
        """Yield the children of a run that were started in a scope, newest first, each with its own."""
        for child in reversed(child_runs.of(self._connection, run.id)):
            if _is_under(child.parent_path or "", child.parent_generation or 0, scope, generation):
                yield child
                yield from self._below(child, "", None)

    def _left_in(self, run: RunRow) -> Iterator[Undo]:
        """Yield what a run owes that would not be undone: it was abandoned, or is past its pivot."""
        for frame in stack.of_run(self._connection, run.id):
            if frame.state in PENDING and frame.child_id is None:
                yield _undo(run.id, frame, f"run {run.id} is not undone: its effect remains")

    def _remaining_of(self, run: RunRow, scope: str, generation: int | None) -> Iterator[Undo]:
        """Yield what would remain in any case: done before a pivot, skipped by hand, or without a compensator."""
        frames = stack.of_run(self._connection, run.id)
        framed = {(frame.path, frame.key_generation) for frame in frames}
        others = {(frame.path, frame.key_generation) for frame in frames if frame.compensator != stack.NOTHING}
        for frame in frames:
            if not _is_under(frame.path, frame.key_generation, scope, generation):
                continue
            if frame.compensator == stack.NOTHING and (frame.path, frame.key_generation) in others:
                continue  # only counts how often the path was used; the other frame has what it owes
            if frame.state is FrameState.KEPT:
                yield _undo(run.id, frame, "done before the pivot: its effect remains")
            elif frame.state is FrameState.SKIPPED:
                yield _undo(run.id, frame, f"was skipped ({frame.note or 'no note'}): its effect remains")
        for entry in reversed(journal.load(self._connection, run.id)):
            stands = entry.kind is EntryKind.ACTIVITY and entry.outcome is Outcome.OK
            if not stands or (entry.path, entry.key_generation) in framed:
                continue
            if _is_under(entry.path, entry.key_generation, scope, generation):
                args, value = _read(entry.args), _read(entry.value)
                yield Undo(run.id, entry.path, entry.name, None, args, value, "has no undo: its effect remains")


def _is_under(path: str, key_generation: int, scope: str, generation: int | None) -> bool:
    if generation is None:
        return True
    return path.startswith(f"{scope}.") and stack.is_of(key_generation, generation)


def _undo(run_id: RunId, frame: Frame, obstacle: str | None) -> Undo:
    compensator = None if frame.compensator in (stack.NOTHING, stack.CHILD) else frame.compensator
    return Undo(run_id, frame.path, frame.activity, compensator, _read(frame.args), _read(frame.value), obstacle)


def _missing(registry: Registry | None, frame: Frame) -> str | None:
    """Return why the code in this process could not undo a frame; None if it could, or if there is no code here."""
    if registry is None:
        return None
    activity = registry.activity(frame.activity)
    if activity is None or registry.compensator(frame.activity, frame.compensator) is None:
        return f"this code has no compensator {frame.compensator!r} of activity {frame.activity!r}: it would park there"
    try:
        activity.arguments.with_defaults(activity.arguments.decode(frame.args or "{}"))
        if frame.value is not None:
            activity.result.decode(frame.value)
    except CodecError as error:
        return f"what is stored no longer fits the code: {error}: it would park there"
    return None


def _parked_for(fault: Fault) -> str:
    return (
        f"compensator {fault.name!r} failed, and the run is parked for it: {redact(str(fault))}; the undoing stops "
        "here until it succeeds when it is tried again, or the frame is closed by `frame-done` or `skip-frame`"
    )


def _read(text: str | None) -> Any:
    try:
        return None if text is None else decode_untyped(text)
    except CodecError:
        return text
