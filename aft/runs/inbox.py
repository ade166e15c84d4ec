"""The run's inbox: what everybody but its owner may write. The owner reads it and acts.

An entry takes its number from ``inbox_seq`` of the run, raised in the same transaction: entries are in one order, and
the owner's next guarded write tells it that there is something to read.

Who may run at the same time: any number of senders, and the run's owner. A sender locks the run's row first and looks
at it then. If somebody owns the run, that is all: the owner cannot let go of it without seeing the new number, because
its last write names the number that it has read. If nobody does, and the run awaits what is sent, the sender wakes it
in the same transaction. A crash leaves both, entry and wake, or neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import Connection, Row, insert, select, update

from aft.ids import OrderId, RunId, StepPath
from aft.store import moments
from aft.store.moments import now
from aft.store.questions import PreparedQuery
from aft.store.tables import inbox


class Verb(StrEnum):
    """What is asked of a run."""

    SIGNAL = "signal"  #: a value that it awaits, or will
    CHILD = "child"  #: a child of it has ended
    CANCEL = "cancel"  #: undo everything, or just stop
    COMPENSATE = "compensate"  #: undo everything, though it has completed
    RESUME = "resume"  #: go on after having been suspended
    SUSPEND = "suspend"  #: stop at the next step
    RULING = "ruling"  #: an exlet has decided about one of its faults
    RETRY = "retry"  #: try again what it was parked for
    SKIP = "skip"  #: let the failed frame go, with a note
    DONE = "done"  #: the failed frame was undone by hand, with a note


#: What does not change the way a run takes, only what it finds.
MAIL = (Verb.SIGNAL, Verb.CHILD)
#: What only tells where to look: it lies in other rows.
HINTS = (Verb.CHILD, Verb.RULING)
#: What is no order: a run goes on with it in its turn.
FINDS = frozenset((*MAIL, *HINTS))
_NO_ORDERS = sorted(verb.value for verb in FINDS)
#: Why an order that an owner has looked at is unread still.
PUT_OFF = "put off: a step of the run has to be told of it first"
#: Of which step a try has taken a signal that is unread still: nobody has seen what came of that.
TAKEN_BY = "taken by a try of step "
#: The condition that a run, by its id as it is spelled there, has an order that no owner has looked at.
HAS_NEW_ORDER = (
    f"EXISTS (SELECT 1 FROM {inbox.name} AS i WHERE i.run_id = {{run}} AND i.read_epoch IS NULL AND i.note IS NULL "
    f"AND i.kind NOT IN ({', '.join(repr(kind) for kind in _NO_ORDERS)}))"
)


#: What no owner of several runs has acted on, each run's in order.
UNREAD = PreparedQuery.about(
    f"SELECT run_id, seq, id, kind, payload, actor, at, note FROM {inbox.name} "
    "WHERE run_id {among} AND read_epoch IS NULL ORDER BY run_id, seq"
)


@dataclass(frozen=True, slots=True)
class Letter:
    """One entry of an inbox."""

    seq: int
    id: OrderId
    verb: Verb
    payload: dict[str, Any]
    actor: str
    at: datetime
    #: Whether an owner has acted on it, or said in ``note`` why not.
    read: bool = False
    note: str | None = None

    @property
    def taken_by(self) -> str | None:
        """The step of which a try has taken it, though it is unread still; None: it is for whoever comes first."""
        taken = not self.read and self.note is not None and self.note.startswith(TAKEN_BY)
        return self.note.removeprefix(TAKEN_BY) if taken and self.note else None


def append(
    connection: Connection,
    run_id: RunId,
    seq: int,
    order: OrderId,
    verb: Verb,
    payload: dict[str, Any],
    actor: str,
    key: str | None = None,
) -> None:
    """Write an entry under a number that was taken in this transaction."""
    connection.execute(
        insert(inbox).values(
            key=key,
            run_id=run_id,
            seq=seq,
            id=order,
            kind=verb.value,
            payload=json.dumps(payload),
            actor=actor,
            at=now(),
        )
    )


def unread(connection: Connection, run_id: RunId, after: int = 0) -> list[Letter]:
    """Return what no owner has acted on, in order; ``after``: only what came later."""
    statement = (
        select(inbox)
        .where(inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.seq > after)
        .order_by(inbox.c.seq)
    )
    return [_letter(row) for row in connection.execute(statement)]


def read(values: Sequence[Any]) -> Letter:
    """Read an entry as the driver gives it, after its run's id, in answer to ``UNREAD``."""
    seq, order, kind, payload, actor, at, note = values
    return Letter(seq, order, Verb(kind), json.loads(payload), actor, cast(datetime, moments.read(at)), False, note)


def of_run(connection: Connection, run_id: RunId) -> list[Letter]:
    """Return all that was ever sent to a run, in order."""
    statement = select(inbox).where(inbox.c.run_id == run_id).order_by(inbox.c.seq)
    return [_letter(row) for row in connection.execute(statement)]


def _letter(row: Row[Any]) -> Letter:
    return Letter(
        row.seq,
        row.id,
        Verb(row.kind),
        json.loads(row.payload),
        row.actor,
        row.at,
        row.read_epoch is not None,
        row.note,
    )


def any_order(connection: Connection, run_id: RunId, after: int) -> bool:
    """Tell whether a person has asked something that no owner has read."""
    statement = select(inbox.c.seq).where(
        inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.seq > after, inbox.c.kind.not_in(_NO_ORDERS)
    )
    return connection.execute(statement.limit(1)).first() is not None


def find_new_order(connection: Connection, run_id: RunId) -> OrderId | None:
    """Return the last order that no owner has looked at; one that was put off is none."""
    statement = select(inbox.c.id).where(
        inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.note.is_(None), inbox.c.kind.not_in(_NO_ORDERS)
    )
    return connection.execute(statement.order_by(inbox.c.seq.desc()).limit(1)).scalar()


def put_off(connection: Connection, run_id: RunId, number: int) -> None:
    """Say that an order is carried out later, and nobody has to look at it now: it stays unread until then."""
    statement = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq == number)
    connection.execute(statement.values(note=PUT_OFF))


def mark_taken(connection: Connection, run_id: RunId, letter: Letter, path: StepPath) -> None:
    """Say of which step a try takes a signal, before it begins: whoever comes next gives it to no other."""
    statement = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq == letter.seq, inbox.c.read_epoch.is_(None))
    connection.execute(statement.values(note=f"{TAKEN_BY}{path}"))


def mark_heard(connection: Connection, run_id: RunId, epoch: int, numbers: Iterable[int]) -> None:
    """Say that an owner has looked at what these entries told it to look at."""
    statement = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq.in_(list(numbers)))
    connection.execute(statement.values(read_epoch=epoch))


def give_back(connection: Connection, run_id: RunId, name: str, value: str | None) -> None:
    """Let a signal be taken again by the next that waits for it: the last one of this name and value that was taken."""
    taken = (inbox.c.kind == Verb.SIGNAL.value, inbox.c.read_epoch.is_not(None), inbox.c.note.is_(None))
    statement = select(inbox.c.seq, inbox.c.payload).where(inbox.c.run_id == run_id, *taken)
    for seq, payload in connection.execute(statement.order_by(inbox.c.seq.desc())):
        given = json.loads(payload)
        if (given.get("name"), given.get("value")) == (name, value):
            letter = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq == seq)
            connection.execute(letter.values(read_epoch=None))
            return


def refuse_orders(connection: Connection, run_id: RunId, epoch: int, why: str) -> None:
    """Answer every order that is unread: none of them will be carried out."""
    left = (inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.kind.not_in(_NO_ORDERS))
    connection.execute(update(inbox).where(*left).values(read_epoch=epoch, note=f"refused: {why}"))


def mark_read(
    connection: Connection, run_id: RunId, epoch: int, letters: Iterable[Letter], note: str | None = None
) -> None:
    """Say that the owner of this epoch has acted, or why not; only in the transaction in which it does."""
    numbers = [letter.seq for letter in letters]
    if numbers:
        statement = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq.in_(numbers))
        connection.execute(statement.values(read_epoch=epoch, note=note))


def keep(connection: Connection, run_id: RunId, letter: Letter) -> None:
    """Keep what was sent as its reader has understood it."""
    statement = update(inbox).where(inbox.c.run_id == run_id, inbox.c.seq == letter.seq)
    connection.execute(statement.values(payload=json.dumps(letter.payload)))
