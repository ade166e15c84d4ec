"""The run's inbox: all others than its owner write here, and nowhere else. The owner reads it and acts.

An entry gets its number from ``inbox_seq`` of the run, raised in the same transaction: entries are totally ordered, and
the owner's next guarded write returns the new length.

Who may run at the same time: any number of senders, and the run's owner. A sender locks the run's row and then checks
it. If the run has an owner, nothing more is needed: the owner cannot release it without seeing the new entry, because
its last write names the number up to which it has read. If the run has no owner and awaits what is sent, the sender
wakes it in the same transaction. A crash leaves both, entry and wake, or neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from aft.ids import OrderId, RunId, StepPath
from aft.store import db_time
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import now
from aft.store.tables import inbox


class InboxVerb(StrEnum):
    """The kind of an inbox item."""

    SIGNAL = "signal"  #: a value that it awaits, or will
    CHILD = "child"  #: a child of it has ended
    CANCEL = "cancel"  #: undo everything, or just stop
    COMPENSATE = "compensate"  #: undo everything, though it has completed
    RESUME = "resume"  #: go on after having been suspended
    SUSPEND = "suspend"  #: stop at the next step
    RULING = "ruling"  #: an exlet has decided about one of its faults
    RETRY = "retry"  #: try again what it was parked for, or what is in its ladder
    COMPLETE = "complete"  #: take this as the result of a failed step
    FAIL = "fail"  #: let a failed step fail for good
    SKIP = "skip"  #: let the failed frame go, with a note
    DONE = "done"  #: the failed frame was undone by hand, with a note


#: Items that are values or results for a step, and do not change the course of the run.
MAIL = (InboxVerb.SIGNAL, InboxVerb.CHILD)
#: Items that only point at data in other rows.
HINTS = (InboxVerb.CHILD, InboxVerb.RULING)
#: Items that are no orders.
FINDS = frozenset((*MAIL, *HINTS))
_NO_ORDERS = sorted(verb.value for verb in FINDS)
#: Why an order that an owner has looked at is unread still.
PUT_OFF = "put off: a step of the run has to be told of it first"
#: Prefix of the note on a signal that an attempt of a step has taken, while the attempt's outcome is not recorded.
TAKEN_BY = "taken by a try of step "
#: What ``find_new_order`` returns, as an expression, with ``{run}`` as the expression of the run's id.
NEW_ORDER = (
    f"(SELECT i.id FROM {inbox.name} AS i WHERE i.run_id = {{run}} AND i.read_epoch IS NULL AND i.note IS NULL "
    f"AND i.kind NOT IN ({', '.join(repr(kind) for kind in _NO_ORDERS)}) ORDER BY i.seq DESC LIMIT 1)"
)


#: The columns of an item, in the order in which they are read.
_NAMES = ("seq", "id", "kind", "payload", "actor", "at", "read_epoch", "note")
_COLUMNS = [inbox.c[name] for name in _NAMES]
#: The items of several runs that no owner has acted on, each run's in order.
UNREAD = PreparedQuery.about(
    f"SELECT run_id, {', '.join(_NAMES)} FROM {inbox.name} "
    "WHERE run_id {among} AND read_epoch IS NULL ORDER BY run_id, seq"
)


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One entry of an inbox."""

    seq: int
    id: OrderId
    verb: InboxVerb
    payload: dict[str, Any] = field(repr=False)
    actor: str
    at: datetime
    #: Whether an owner has acted on it, or refused it: then ``note`` says why.
    read: bool = False
    note: str | None = field(default=None, repr=False)

    @property
    def taken_by(self) -> str | None:
        """The step whose attempt has taken this unread signal; None: the first step that waits for it may take it."""
        taken = not self.read and self.note is not None and self.note.startswith(TAKEN_BY)
        return self.note.removeprefix(TAKEN_BY) if taken and self.note else None


def append(
    connection: Connection,
    run_id: RunId,
    seq: int,
    order: OrderId,
    verb: InboxVerb,
    payload: dict[str, Any],
    actor: str,
    key: str | None = None,
) -> None:
    """Write an entry with a number that was taken from the run's row in this transaction."""
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


def unread(connection: Connection, run_id: RunId, after: int = 0) -> list[InboxItem]:
    """Return the items that no owner has acted on, in order; only those numbered above ``after``."""
    statement = (
        select(*_COLUMNS)
        .where(inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.seq > after)
        .order_by(inbox.c.seq)
    )
    return [read_item(row) for row in connection.execute(statement)]


def read_item(values: Sequence[Any]) -> InboxItem:
    """Read an entry: one ``UNREAD`` row without the run's id, with the driver's values or SQLAlchemy's."""
    seq, order, kind, payload, actor, at, read_epoch, note = values
    sent_at = cast(datetime, db_time.read_time(at))
    return InboxItem(seq, order, InboxVerb(kind), json.loads(payload), actor, sent_at, read_epoch is not None, note)


def of_run(connection: Connection, run_id: RunId) -> list[InboxItem]:
    """Return all items that were ever sent to a run, in order."""
    statement = select(*_COLUMNS).where(inbox.c.run_id == run_id).order_by(inbox.c.seq)
    return [read_item(row) for row in connection.execute(statement)]


def any_order(connection: Connection, run_id: RunId, after: int) -> bool:
    """Return whether there is an order, numbered above ``after``, that no owner has acted on."""
    statement = select(inbox.c.seq).where(
        inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.seq > after, inbox.c.kind.not_in(_NO_ORDERS)
    )
    return connection.execute(statement.limit(1)).first() is not None


def measure_signals(connection: Connection, run_id: RunId) -> tuple[int, int]:
    """Return how many signals no owner has taken, and the characters of them all; goes through all items of the run."""
    # PostgreSQL knows the octets of a large text without reading it; a payload is ASCII.
    size = func.octet_length if connection.dialect.name == "postgresql" else func.length
    statement = select(func.count(), func.coalesce(func.sum(size(inbox.c.payload)), 0))
    of_run = (inbox.c.run_id == run_id, inbox.c.kind == InboxVerb.SIGNAL.value, inbox.c.read_epoch.is_(None))
    number, characters = connection.execute(statement.where(*of_run)).one()
    return int(number), int(characters)


def find_new_order(connection: Connection, run_id: RunId) -> OrderId | None:
    """Return the last order that no owner has looked at; those that were put off do not count."""
    statement = select(inbox.c.id).where(
        inbox.c.run_id == run_id, inbox.c.read_epoch.is_(None), inbox.c.note.is_(None), inbox.c.kind.not_in(_NO_ORDERS)
    )
    return connection.execute(statement.order_by(inbox.c.seq.desc()).limit(1)).scalar()


def put_off(connection: Connection, run_id: RunId, number: int) -> None:
    """Mark an order as put off: it is carried out later, stays unread until then, and wakes no run."""
    _change(connection, run_id, inbox.c.seq == number, note=PUT_OFF)


def mark_taken(connection: Connection, run_id: RunId, item: InboxItem, path: StepPath) -> None:
    """Record, before the attempt begins, which step takes a signal: a later owner gives it to no other step."""
    unread = (inbox.c.seq == item.seq, inbox.c.read_epoch.is_(None))
    _change(connection, run_id, *unread, note=f"{TAKEN_BY}{path}")


def mark_pointers_read(connection: Connection, run_id: RunId, epoch: int, numbers: Iterable[int]) -> None:
    """Mark entries as read that only point at other rows: the owner of this epoch has read those rows."""
    _change(connection, run_id, inbox.c.seq.in_(list(numbers)), read_epoch=epoch)


def mark_unread(connection: Connection, run_id: RunId, name: str, value: str | None) -> None:
    """Mark the last taken signal of this name and value as unread, so that the next wait takes it."""
    taken = (inbox.c.kind == InboxVerb.SIGNAL.value, inbox.c.read_epoch.is_not(None), inbox.c.note.is_(None))
    statement = select(inbox.c.seq, inbox.c.payload).where(inbox.c.run_id == run_id, *taken)
    for seq, payload in connection.execute(statement.order_by(inbox.c.seq.desc())):
        given = json.loads(payload)
        if (given.get("name"), given.get("value")) == (name, value):
            _change(connection, run_id, inbox.c.seq == seq, read_epoch=None)
            return


def refuse_orders(connection: Connection, run_id: RunId, epoch: int, why: str) -> None:
    """Refuse every unread order, with the reason as its note."""
    orders = (inbox.c.read_epoch.is_(None), inbox.c.kind.not_in(_NO_ORDERS))
    _change(connection, run_id, *orders, read_epoch=epoch, note=f"refused: {why}")


def mark_read(
    connection: Connection, run_id: RunId, epoch: int, items: Iterable[InboxItem], note: str | None = None
) -> None:
    """Mark items as read, in the transaction in which the owner of this epoch acts; ``note``: why it does not."""
    numbers = [item.seq for item in items]
    if numbers:
        _change(connection, run_id, inbox.c.seq.in_(numbers), read_epoch=epoch, note=note)


def store_payload(connection: Connection, run_id: RunId, item: InboxItem) -> None:
    """Store a signal's payload as the flow declares it, so that a value it takes as a secret is never shown."""
    _change(connection, run_id, inbox.c.seq == item.seq, payload=json.dumps(item.payload))


def _change(connection: Connection, run_id: RunId, *which: ColumnElement[bool], **values: Any) -> None:
    connection.execute(update(inbox).where(inbox.c.run_id == run_id, *which).values(**values))
