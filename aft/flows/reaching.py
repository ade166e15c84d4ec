"""Which savepoint does an order mean that undoes a run to one, and what if the run is not in it any more?

A run that nobody executes says in its row which savepoints it is in: the order has the path of one then. Only its owner
knows those of a run that is being executed, so such an order has the name that a person gave, and the run's ``seq`` of
then; the owner judges when it obeys. By then the run may have left that savepoint for another one of the same name: one
that the code entered after it had heard an outcome which was not there yet, when the order came, is not meant. Nothing
is undone then, and the order's note says so.
"""

from __future__ import annotations

from sqlalchemy import Connection

from aft.runs import inbox
from aft.runs.inbox import Letter
from aft.runs.owner import Owner

#: Why an order to undo a savepoint was not carried out.
LEFT_SAVEPOINT = "the run is not in that savepoint any more"


def find_reached(owner: Owner, letter: Letter) -> list[str]:
    """The paths of the savepoints that the run is in and that an order means, the outermost first."""
    to, seq = letter.payload["to"], letter.payload.get("seq")
    if seq is None:
        return [to] if to in owner.savepoints else []
    inside = [path for path, name in owner.savepoints.items() if to in (path, name)]
    return [path for path in inside if owner.entered.get(path, 0) <= seq]


def refuse_left(owner: Owner, connection: Connection, *, ends: bool = False) -> None:
    """Say that an order is not carried out, if the run is not in that savepoint, in the transaction that shows it."""
    if owner.unheeded is not None and (ends or not find_reached(owner, owner.unheeded)):
        inbox.mark_read(connection, owner.run_id, owner.epoch, [owner.unheeded], f"refused: {LEFT_SAVEPOINT}")
