"""Which savepoint does an order mean that undoes a run to one, and what if the run is not in it any more?

A run that nobody executes says in its row which savepoints it is in: the order has the path of one then. Only its owner
knows those of a run that is being executed, so such an order has the name that a person gave, and the run's ``seq`` of
then; the owner judges when it obeys. By then the run may have left that savepoint for another one of the same name: one
that the code entered after it had heard an outcome which was not there yet, when the order came, is not meant. Nothing
is undone then, and the order's note says so. Nor is anything undone if branches are in savepoints of that name side by
side: which one is meant, a path says.

Where the flow's code stops for a mistake of its own, no step can be told: an order that waits for one is refused.

Several orders may be read together. Where they reach the same step, it is told of the one that undoes most; the others
are done with that, and their notes say so.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from aft.fault import Fault
from aft.flows.leaving import is_of_step
from aft.runs import inbox, steering
from aft.runs.inbox import Letter
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.owner import Owner

#: What the journal says of an interrupted step: it was the first, and its interrupt reaches the whole run, or
#: everything under the path of a savepoint; or it stood beside that first one, and tells nobody else.
EVERYWHERE = "*"
NOWHERE = ""
#: Why an order to undo a savepoint was not carried out.
LEFT_SAVEPOINT = "the run is not in that savepoint any more"
#: Why one was not that a step had been told of already.
STOPPED = "the run was cancelled, with all that it did left as it is, before that savepoint was undone"
#: How the note of an order begins that was done with another one.
DONE_WITH = "done with"
_UNHEARD = (
    "the flow's code raised {mistake} before a step in that savepoint could be told; after the fix, give the order "
    "again, or undo the run as a whole"
)


def find_reached(owner: Owner, letter: Letter) -> list[str]:
    """The paths of the savepoints that the run is in and that an order means, the outermost first."""
    to, seq = letter.payload["to"], letter.payload.get("seq")
    if seq is None:
        return [to] if to in (owner.savepoints or {}) else []
    found = _find_named(owner, letter)
    return [] if steering.are_side_by_side(found) else found


def choose_order(owner: Owner, path: str) -> tuple[Letter, str] | None:
    """The order that a step is told of, with the savepoint that it means: of several the outermost, then the first."""
    reached = [(letter, found) for letter in owner.unheeded if (found := _find_around(owner, letter, path)) is not None]
    return min(reached, key=lambda one: len(one[1]), default=None)


def find_done_with(owner: Owner, told: Letter, savepoint: str, path: str) -> list[Letter]:
    """The other orders that are done when a step was told of one that undoes a savepoint: what they mean is in it."""
    others = [letter for letter in owner.unheeded if letter is not told]
    return [letter for letter in others if _is_within(_find_meant(owner, letter, path), savepoint)]


def _find_around(owner: Owner, letter: Letter, path: str) -> str | None:
    """The innermost savepoint around a step that an order means."""
    return next((found for found in find_reached(owner, letter)[::-1] if is_under(path, found)), None)


def _find_meant(owner: Owner, letter: Letter, path: str) -> str | None:
    found = find_reached(owner, letter)
    return _find_around(owner, letter, path) or (found[-1] if found else None)


def _is_within(inner: str | None, outer: str) -> bool:
    return inner is not None and (inner == outer or is_under(inner, outer))


def is_under(path: str, scope: str) -> bool:
    """Tell whether a step, or a savepoint, is under another one."""
    return path.startswith(f"{scope}.")


def is_interrupted(fault: Fault, entries: Iterable[Entry]) -> bool:
    """Tell whether a recorded interrupt reaches a parked step: the flow's code may have to hear of it first."""
    reaches = [entry.interrupt for entry in entries if entry.interrupt]
    return is_of_step(fault) and any(reach == EVERYWHERE or is_under(fault.path or "", reach) for reach in reaches)


def is_being_undone(entries: Iterable[Entry], undone: Iterable[str]) -> bool:
    """Tell whether a savepoint may be undone in part: by its order, or by steps in it whose effects were undone."""
    entries = list(entries)
    whole = [entry.path for entry in entries if _tells_undone(entry)]
    ordered = {entry.interrupt for entry in entries if entry.interrupt not in (None, NOWHERE, EVERYWHERE)}
    inside = [path for path in undone if "." in path]
    return bool(ordered.difference(whole)) or any(not any(is_under(path, one) for one in whole) for path in inside)


def find_stopped(letters: Iterable[Letter], entries: Iterable[Entry], generation: int) -> list[Letter]:
    """The orders to undo a savepoint that a step has been told of, and whose savepoint was not undone."""
    whole = [entry for entry in entries if _tells_undone(entry)]
    told = [letter for letter in letters if letter.read and letter.payload.get("generation") == generation]
    told = [letter for letter in told if "to" in letter.payload and (letter.note or DONE_WITH).startswith(DONE_WITH)]
    return [letter for letter in told if not any(_is_undone_by(letter, entry) for entry in whole)]


def _tells_undone(entry: Entry) -> bool:
    return entry.kind is EntryKind.SAVEPOINT and entry.outcome is Outcome.UNDONE


def _is_undone_by(letter: Letter, entry: Entry) -> bool:
    """Whether it is the savepoint that an order means, or one around it."""
    to, seq = letter.payload["to"], letter.payload.get("seq")
    if seq is None:
        return _is_within(to, entry.path)
    return entry.seq > seq and (to in (entry.path, entry.name) or letter.note is not None)


def _find_named(owner: Owner, letter: Letter) -> list[str]:
    to, seq = letter.payload["to"], letter.payload["seq"]
    inside = [path for path, name in (owner.savepoints or {}).items() if to in (path, name)]
    return [path for path in inside if owner.entered.get(path, 0) <= seq]


def find_ambiguity(owner: Owner, letter: Letter) -> str | None:
    """Say why the name in an order does not tell which savepoint is meant; None: it does."""
    found = _find_named(owner, letter) if "seq" in letter.payload else []
    ambiguous = steering.are_side_by_side(found)
    return f"the run {steering.spell_side_by_side(letter.payload['name'], found)}" if ambiguous else None


def refuse_unheeded(owner: Owner, connection: Connection, *, ends: bool = False, mistake: Fault | None = None) -> None:
    """Answer the orders that cannot be carried out any more, in the transaction that shows it.

    The run is not in their savepoint any more, or its code has stopped for a ``mistake``, and cannot hear of them.
    """
    for letter in owner.unheeded:
        left = ends or not find_reached(owner, letter)
        if left or mistake is not None:
            unheard = None if left or mistake is None else _UNHEARD.format(mistake=mistake.short_type)
            why = find_ambiguity(owner, letter) or unheard or LEFT_SAVEPOINT
            inbox.mark_read(connection, owner.run_id, owner.epoch, [letter], f"refused: {why}")
