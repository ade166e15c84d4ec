"""Finds the savepoint that an undo order names, and refuses orders whose savepoint the run has left.

The row of a run without an owner lists the savepoints that it is in: the order has a path then. Only the owner knows
those of a run that is being executed, so such an order has the name that a person gave, and the run's ``seq`` at that
time; the owner decides when it applies the order. By then the run may have left that savepoint for another one of the
same name: one that the code entered after an outcome which is newer than the order is not meant. Nothing is undone
then, and the order's note says so. Nor is anything undone if branches are in savepoints of that name side by side: the
order needs a path then.

If the flow's code stops for a mistake of its own, no step can be interrupted: an order that waits for one is refused.

Several orders may be read together. If they reach the same step, the one that undoes most interrupts it; the others
are done with it, and their notes say so.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from aft.fault import Fault
from aft.flows.session.blocks import is_of_step
from aft.runs.orders import steer
from aft.runs.ownership.owner import Owner
from aft.runs.records import inbox
from aft.runs.records.inbox import InboxItem
from aft.runs.records.journal import Entry, EntryKind, Outcome

#: The reach that an interrupted step's entry has: the first one's is the whole run, or everything under the path of
#: a savepoint; that of a step beside the first one is nowhere.
EVERYWHERE = "*"
NOWHERE = ""
#: Why an order to undo a savepoint was not carried out.
LEFT_SAVEPOINT = "the run is not in that savepoint any more"
#: Why an order that has interrupted a step already was not carried out.
STOPPED = "the run was cancelled, with all that it did left as it is, before that savepoint was undone"
#: Prefix of the note of an order that was done with another one.
DONE_WITH = "done with"
_UNDELIVERED = (
    "the flow's code raised {mistake} before a step in that savepoint could be interrupted; after the fix, give the "
    "order again, or undo the run as a whole"
)


def find_reached(owner: Owner, item: InboxItem) -> list[str]:
    """Return the paths of the savepoints that the run is in and that an order means, the outermost first."""
    to, seq = item.payload["to"], item.payload.get("seq")
    if seq is None:
        return [to] if to in (owner.savepoints or {}) else []
    found = _find_named(owner, item)
    return [] if steer.are_side_by_side(found) else found


def choose_order(owner: Owner, path: str) -> tuple[InboxItem, str] | None:
    """Return the order that interrupts a step, with its savepoint: of several the outermost, then the first."""
    reached = [(item, found) for item in owner.pending_orders if (found := _find_around(owner, item, path)) is not None]
    return min(reached, key=lambda one: len(one[1]), default=None)


def find_fulfilled(owner: Owner, order: InboxItem, savepoint: str, path: str) -> list[InboxItem]:
    """Return the other pending orders that this order also fulfils: their savepoints lie inside its savepoint."""
    others = [item for item in owner.pending_orders if item is not order]
    return [item for item in others if _is_within(_find_meant(owner, item, path), savepoint)]


def _find_around(owner: Owner, item: InboxItem, path: str) -> str | None:
    """Return the innermost savepoint around a step that an order means."""
    return next((found for found in find_reached(owner, item)[::-1] if is_under(path, found)), None)


def _find_meant(owner: Owner, item: InboxItem, path: str) -> str | None:
    found = find_reached(owner, item)
    return _find_around(owner, item, path) or (found[-1] if found else None)


def _is_within(inner: str | None, outer: str) -> bool:
    return inner is not None and (inner == outer or is_under(inner, outer))


def is_under(path: str, scope: str) -> bool:
    """Whether a step, or a savepoint, is under another one."""
    return path.startswith(f"{scope}.")


def is_interrupted(fault: Fault, entries: Iterable[Entry]) -> bool:
    """Whether a recorded interrupt reaches a parked step: the flow's code may have to see it first."""
    reaches = [entry.interrupt for entry in entries if entry.interrupt]
    return is_of_step(fault) and any(reach == EVERYWHERE or is_under(fault.path or "", reach) for reach in reaches)


def is_being_undone(entries: Iterable[Entry], undone: Iterable[str]) -> bool:
    """Whether a savepoint may be partly undone: by its order, or by steps in it whose effects were undone."""
    entries = list(entries)
    whole = [entry.path for entry in entries if _shows_undone(entry)]
    ordered = {entry.interrupt for entry in entries if entry.interrupt not in (None, NOWHERE, EVERYWHERE)}
    inside = [path for path in undone if "." in path]
    return bool(ordered.difference(whole)) or any(not any(is_under(path, one) for one in whole) for path in inside)


def find_stopped(items: Iterable[InboxItem], entries: Iterable[Entry], generation: int) -> list[InboxItem]:
    """Return the orders to undo a savepoint that have interrupted a step, and whose savepoint was not undone."""
    whole = [entry for entry in entries if _shows_undone(entry)]
    ours = [item for item in items if item.read and item.payload.get("generation") == generation]
    ours = [item for item in ours if "to" in item.payload and (item.note or DONE_WITH).startswith(DONE_WITH)]
    return [item for item in ours if not any(_is_undone_by(item, entry) for entry in whole)]


def _shows_undone(entry: Entry) -> bool:
    return entry.kind is EntryKind.SAVEPOINT and entry.outcome is Outcome.UNDONE


def _is_undone_by(item: InboxItem, entry: Entry) -> bool:
    """Whether the undone savepoint is the one that an order means, or one around it."""
    to, seq = item.payload["to"], item.payload.get("seq")
    if seq is None:
        return _is_within(to, entry.path)
    return entry.seq > seq and (to in (entry.path, entry.name) or item.note is not None)


def _find_named(owner: Owner, item: InboxItem) -> list[str]:
    to, seq = item.payload["to"], item.payload["seq"]
    inside = [path for path, name in (owner.savepoints or {}).items() if to in (path, name)]
    return [path for path in inside if owner.entered.get(path, 0) <= seq]


def find_ambiguity(owner: Owner, item: InboxItem) -> str | None:
    """Return why the name in an order is ambiguous; None if it is not."""
    found = _find_named(owner, item) if "seq" in item.payload else []
    ambiguous = steer.are_side_by_side(found)
    return f"the run {steer.format_side_by_side(item.payload['name'], found)}" if ambiguous else None


def refuse_pending_orders(
    owner: Owner, connection: Connection, *, ends: bool = False, mistake: Fault | None = None
) -> None:
    """Refuse the orders that cannot be carried out any more, in the transaction that shows it.

    The run is not in their savepoint any more, or its code has stopped for a ``mistake``, so that no step of it can be
    interrupted.
    """
    for item in owner.pending_orders:
        left = ends or not find_reached(owner, item)
        if left or mistake is not None:
            undelivered = None if left or mistake is None else _UNDELIVERED.format(mistake=mistake.short_type)
            why = find_ambiguity(owner, item) or undelivered or LEFT_SAVEPOINT
            inbox.mark_read(connection, owner.run_id, owner.epoch, [item], f"refused: {why}")
