"""Which savepoint does an order mean that undoes a run to one, and what if the run is not in it any more?

A run that nobody executes says in its row which savepoints it is in: the order has the path of one then. Only its owner
knows those of a run that is being executed, so such an order has the name that a person gave, and the run's ``seq`` of
then; the owner judges when it obeys. By then the run may have left that savepoint for another one of the same name: one
that the code entered after it had heard an outcome which was not there yet, when the order came, is not meant. Nothing
is undone then, and the order's note says so. Nor is anything undone if branches are in savepoints of that name side by
side: which one is meant, a path says.
"""

from __future__ import annotations

from sqlalchemy import Connection

from aft.runs import inbox, steering
from aft.runs.inbox import Letter
from aft.runs.owner import Owner

#: Why an order to undo a savepoint was not carried out.
LEFT_SAVEPOINT = "the run is not in that savepoint any more"


def find_reached(owner: Owner, letter: Letter) -> list[str]:
    """The paths of the savepoints that the run is in and that an order means, the outermost first."""
    to, seq = letter.payload["to"], letter.payload.get("seq")
    if seq is None:
        return [to] if to in owner.savepoints else []
    found = _find_named(owner, letter)
    return [] if steering.are_side_by_side(found) else found


def _find_named(owner: Owner, letter: Letter) -> list[str]:
    to, seq = letter.payload["to"], letter.payload["seq"]
    inside = [path for path, name in owner.savepoints.items() if to in (path, name)]
    return [path for path in inside if owner.entered.get(path, 0) <= seq]


def find_ambiguity(owner: Owner, letter: Letter) -> str | None:
    """Say why the name in an order does not tell which savepoint is meant; None: it does."""
    found = _find_named(owner, letter) if "seq" in letter.payload else []
    ambiguous = steering.are_side_by_side(found)
    return f"the run {steering.spell_side_by_side(letter.payload['name'], found)}" if ambiguous else None


def refuse_left(owner: Owner, connection: Connection, *, ends: bool = False) -> None:
    """Say that an order is not carried out, if the run is not in that savepoint, in the transaction that shows it."""
    if owner.unheeded is None:
        return
    if ends or not find_reached(owner, owner.unheeded):
        why = find_ambiguity(owner, owner.unheeded) or LEFT_SAVEPOINT
        inbox.mark_read(connection, owner.run_id, owner.epoch, [owner.unheeded], f"refused: {why}")
