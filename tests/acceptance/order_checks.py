"""What must hold of a run that people have given orders to: while it rests, and when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import aft
from aft.compensation import stack
from aft.compensation.stack import Frame, FrameState
from aft.fault import FaultState
from aft.runs.records import faults, inbox, journal
from aft.runs.records.inbox import HINTS, MAIL, InboxItem, InboxVerb
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import WaitKind

STOPPED = (Status.PARKED, Status.SUSPENDED)
#: How an order to undo a savepoint is answered where all was left as it is before that was done.
_ABANDONED = "refused: the run was cancelled, with all that it did left as it is, before"


def rests(row: RunRow) -> bool:
    """Whether nothing happens to a run until somebody does something, or a child of it has ended."""
    if row.worker_id is not None:
        return False
    if row.ended_as is not None or row.status in STOPPED:
        return row.wake_id is None
    return row.status is Status.WAITING and row.due_at is None


def orders_of(app: aft.Aft, run: aft.Run[Any]) -> list[InboxItem]:
    """All that people have asked of a run."""
    with app.store.read() as connection:
        found = inbox.of_run(connection, run.id)
    return [item for item in found if item.verb not in (*MAIL, *HINTS)]


def check_rest(app: aft.Aft, run: aft.Run[Any]) -> list[str]:
    """Say what is wrong with a run that rests; nothing, if it does not rest any more."""
    row, orders = run.row, orders_of(app, run)
    with app.store.read() as connection:
        parked = [fault for fault in faults.of_run(connection, run.id) if fault.state is FaultState.PARKED]
    wrong = list(_find_wrong_at_rest(row, orders, [str(fault.path) for fault in parked]))
    return wrong if rests(row) and run.row == row else []


def _find_wrong_at_rest(row: RunRow, orders: list[InboxItem], parked: list[str]) -> Iterator[str]:
    unread = [item for item in orders if not item.read]
    if any(item.note is None for item in unread):
        yield f"rests {row.status} with an order that nobody has looked at"
    undoing = row.status is Status.PARKED and any(path.endswith("/undo") for path in parked)
    stopping = row.status is Status.WAITING and any(wait.kind is WaitKind.CHILD for wait in row.waits)
    if unread and row.status is not Status.SUSPENDED and not undoing and not stopping:
        yield f"rests {row.status} with an order that is put off"
    if parked and row.status not in STOPPED and row.ended_as is None and not stopping:
        yield f"is {row.status}, and faults are parked: {parked}"
    stops = [item for item in orders if item.verb in (InboxVerb.SUSPEND, InboxVerb.RESUME)]
    suspended = bool(stops) and stops[-1].verb is InboxVerb.SUSPEND and stops[-1].read and stops[-1].note is None
    if suspended and row.status is not Status.SUSPENDED and row.cause is None and row.ended_as is None:
        yield f"was suspended, and is {row.status}"


def check_end(app: aft.Aft, run: aft.Run[Any], did: list[str], *, again: bool, released: bool) -> list[str]:
    """Say what is wrong with a run that has ended.

    ``again``: its steps may have been executed more than once. ``released``: it was taken from its worker, which may
    have been executing a compensator; then that is executed again, with the same key.
    """
    with app.store.read() as connection:
        entries = journal.load(connection, run.id)
        frames = stack.of_run(connection, run.id)
        known = {fault.id: fault for fault in faults.of_run(connection, run.id)}
    # Whoever gives an order has a name of one word, with which its fault begins.
    told = {known[entry.fault_id].message.partition(" ")[0] for entry in entries if entry.interrupt and entry.fault_id}
    status = run.status
    return [
        *_find_wrong_answers(orders_of(app, run), told, status),
        *_find_wrong_effects(Counter(did), status, again or released, released),
        *_find_wrong_frames(frames, entries, status),
    ]


def _find_wrong_answers(orders: list[InboxItem], told: set[str], status: Status) -> Iterator[str]:
    for item in orders:
        what = f"{item.verb} of {item.actor}"
        if not item.read:
            yield f"{what} was never read: {item.note}"
        elif item.note is not None and not item.note.startswith(("refused: ", "done with ")):
            yield f"{what} is answered {item.note!r}"
        elif item.note is not None and item.note.startswith(_ABANDONED):
            continue  # its branches may have been told, while others were still to come to their end
        elif "to" in item.payload and (item.note is None) != (item.actor in told):
            yield f"{what} is answered {item.note!r}; {'a' if item.actor in told else 'no'} step was told"
        elif item.verb is InboxVerb.CANCEL and item.note is None and status is Status.COMPLETED:
            yield f"{what} was carried out, and the run has completed"


def _find_wrong_effects(did: Counter[str], status: Status, again: bool, undone_again: bool) -> Iterator[str]:
    for what, count in did.items():
        if what.startswith("un"):
            done = did[what.removeprefix("un")]
            if not done or (done < count and not undone_again):
                yield f"{what} {count} times"
        elif count > 1 and not again:
            yield f"{what} {count} times"
        elif status is Status.COMPENSATED and not what.startswith("~") and not did[f"un{what}"]:
            yield f"{what} stands in a run that is compensated"


def _find_wrong_frames(frames: list[Frame], entries: list[Entry], status: Status) -> Iterator[str]:
    undone = [f"{entry.path}." for entry in entries if entry.kind is EntryKind.SAVEPOINT]
    completed = {entry.path for entry in entries if entry.outcome is Outcome.OK}
    for frame in frames:
        within = any(frame.path.startswith(scope) for scope in undone)
        owed = frame.state in (FrameState.OWED, FrameState.ARMED, FrameState.LATE)
        if owed and (status is Status.COMPENSATED or (status is Status.COMPLETED and within)):
            yield f"frame {frame.path} of {frame.activity} is owed, and the run is {status}"
        if status is Status.COMPLETED and not within and frame.path in completed and frame.state is FrameState.UNDONE:
            yield f"frame {frame.path} of {frame.activity} was undone in no savepoint"
