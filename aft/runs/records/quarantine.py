"""Quarantine for poison messages: refused messages are kept with the reason, and can be released after a fix.

Who may run at the same time: any number of admissions and relays that add, and any number of people. A message is
released, or discarded, by one UPDATE that checks that it is still held: the second person finds no row and gets
OrderRefused. Mark and outbox row are written in the caller's one transaction: a message is never released twice, and
never marked without being sent.

These are only wake-ups for work that is in the database. That is why a flood may push out the oldest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from aft import durations, envelope, names
from aft.errors import OrderRefused, UnknownFault, UnknownRun
from aft.ids import new_id
from aft.runs import run_rows
from aft.runs.records import audit
from aft.store import outbox
from aft.store.batch.row_format import has_part
from aft.store.db_time import now
from aft.store.tables import quarantine
from aft.texts import escape_unstorable, find_choice, format_value

#: Bytes of a refused message that are kept.
MOST_KEPT = envelope.MOST_KEPT
#: Characters of a reason that are kept.
MOST_REASON = 1_000
#: Messages that a namespace keeps, and a few of those that came since the last pruning: 160 MB at the very most.
MOST_ROWS = 10_000
#: One in this many additions prunes.
PRUNE_ONE_IN = 100
#: Characters of a person's name that its column takes.
_MOST_NAME = 200

_PART_OF_AN_ID = re.compile(r"[0-9a-f-]{1,36}")


class QuarantineState(StrEnum):
    """The state of a refused message."""

    HELD = "held"  #: waits for a person
    RELEASED = "released"  #: published again, after a fix
    DISCARDED = "discarded"  #: not needed any more; its note says why


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused message of ``size`` bytes; ``body`` is its beginning if it is larger than ``MOST_KEPT``."""

    id: str
    queue: str
    reason: str
    size: int
    body: bytes = field(repr=False)
    at: datetime
    state: QuarantineState = QuarantineState.HELD
    settled_at: datetime | None = None
    settled_by: str | None = None
    note: str | None = None

    @property
    def whole(self) -> bool:
        """Whether all of it was kept."""
        return self.size == len(self.body)


_COLUMNS = [quarantine.c[name] for name in Refusal.__slots__]
_HELD = quarantine.c.state == QuarantineState.HELD.value


# Keeping --------------------------------------------------------------------------------------------------------


def add(
    connection: Connection, namespace: str, refused: Sequence[tuple[str, bytes, str]], sizes: Sequence[int] = ()
) -> None:
    """Keep refused messages: the queue, the body and the reason of each; ``sizes`` if bodies were cut before.

    Bounded: a flood costs ``MOST_ROWS`` messages of disk, and pushes out the oldest.

    Counting before each addition would make a flood dearer the longer it lasts. So one addition in ``PRUNE_ONE_IN``
    prunes, chosen by the random end of the new id: there is no counter that a process's death could reset.
    """
    kept = [
        {
            "id": new_id(),
            "namespace": namespace,
            "queue": queue,
            "reason": escape_unstorable(reason)[:MOST_REASON],
            "size": size,
            "body": body[:MOST_KEPT],
            "at": now(),
        }
        for (queue, body, reason), size in zip(refused, sizes or [len(body) for _, body, _ in refused], strict=True)
    ]
    connection.execute(insert(quarantine).values(kept))
    if any(int(str(one["id"])[-12:], 16) % PRUNE_ONE_IN == 0 for one in kept):
        _prune(connection, namespace)


def _prune(connection: Connection, namespace: str) -> None:
    mine = quarantine.c.namespace == namespace
    newest = select(quarantine.c.id).where(mine).order_by(quarantine.c.id.desc())
    surplus = (
        select(quarantine.c.id)
        .where(mine, quarantine.c.id <= newest.offset(MOST_ROWS).limit(1).scalar_subquery())
        # Rows that another transaction prunes or releases are skipped: two could wait for each other.
        .with_for_update(skip_locked=True)
    )
    connection.execute(delete(quarantine).where(quarantine.c.id.in_(surplus)))


# Looking --------------------------------------------------------------------------------------------------------


def listing(connection: Connection, namespace: str, limit: int = 50, *, closed: bool = False) -> list[Refusal]:
    """Return the newest refused messages, newest first; ``closed``: also the released and discarded ones."""
    statement = select(*_COLUMNS).where(quarantine.c.namespace == namespace)
    if not closed:
        statement = statement.where(_HELD)
    found = connection.execute(statement.order_by(quarantine.c.id.desc()).limit(limit))
    return [_from_row(row) for row in found]


def find_refusal(connection: Connection, namespace: str, part: str) -> Refusal:
    """Return the one refused message whose id matches what a person typed; raises UnknownFault."""
    found = search(connection, namespace, part)
    if found is None:
        raise UnknownFault(
            f"no refused message has the id {part!r} in namespace {namespace!r}; "
            "`aft faults list --quarantined --all` shows what there is"
        )
    return found


def search(connection: Connection, namespace: str, part: str) -> Refusal | None:
    """Return what :func:`find_refusal` does, or None if there is none; raises UnknownFault if there are several."""
    if not _PART_OF_AN_ID.fullmatch(part):
        return None
    statement = select(*_COLUMNS).where(quarantine.c.namespace == namespace, has_part(quarantine.c.id, part))
    found = connection.execute(statement.limit(2)).all()
    if len(found) > 1:
        raise UnknownFault(f"several refused messages match {part!r}; give more of the id")
    return _from_row(found[0]) if found else None


def _from_row(row: Row[Any]) -> Refusal:
    """Read a row; a damaged one says so, and hides no other."""
    values, state = dict(row._mapping), find_choice(row.state, QuarantineState)
    if state is None:
        values["reason"] = (
            f"its state in the database cannot be read: {format_value(row.state)}; it was refused: {row.reason}"
        )
    return Refusal(**{**values, "state": state or QuarantineState.DISCARDED})


# By hand --------------------------------------------------------------------------------------------------------


def objection(connection: Connection, namespace: str, refusal: Refusal) -> str | None:
    """Return why a message would still be refused; None if nothing is known against it.

    Other problems show later: a queue that is missing when the message is published, a fault that does not belong to
    its run when it is consumed. Then it is quarantined again.
    """
    if not refusal.whole:
        return f"only the first {len(refusal.body)} of its {refusal.size} bytes were kept"
    if not _is_ours(namespace, refusal.queue):
        return f"{refusal.queue!r} is not a queue of namespace {namespace!r}"
    try:
        run_rows.get_run(connection, namespace, envelope.decode(refusal.body).run)
    except (envelope.MessageRefused, UnknownRun) as reason:
        return str(reason)
    return None


def requeue(connection: Connection, namespace: str, refusal: Refusal, by: str, note: str | None = None) -> None:
    """Publish a message again after a fix; raises OrderRefused if it would be refused again, or is not held."""
    if refusal.state is not QuarantineState.HELD:
        raise OrderRefused(_why_not(connection, namespace, refusal))
    reason = objection(connection, namespace, refusal)
    if reason is not None:
        raise OrderRefused(
            f"message {refusal.id} cannot be let in: {reason}; "
            "release it after the fix, or discard it with a note that says why"
        )
    _close(connection, namespace, refusal, QuarantineState.RELEASED, by, note)
    outbox.put(connection, namespace, [(_address(connection, namespace, refusal), refusal.body.decode())])


def discard(connection: Connection, namespace: str, refusal: Refusal, by: str, note: str) -> None:
    """Discard a message; it stays on record with who and why. Raises OrderRefused if it is not held any more."""
    if not note.strip():
        raise OrderRefused(f"to discard message {refusal.id} needs a note that says why")
    _close(connection, namespace, refusal, QuarantineState.DISCARDED, by, note)


def _close(
    connection: Connection, namespace: str, refusal: Refusal, state: QuarantineState, by: str, note: str | None
) -> None:
    held = update(quarantine).where(quarantine.c.id == refusal.id, quarantine.c.namespace == namespace, _HELD)
    closed = held.values(
        state=state.value,
        settled_at=now(),
        settled_by=escape_unstorable(by)[:_MOST_NAME],
        note=None if note is None else escape_unstorable(note),
    )
    if connection.execute(closed.returning(quarantine.c.id)).first() is None:
        raise OrderRefused(_why_not(connection, namespace, refusal))
    verb = "message release" if state is QuarantineState.RELEASED else "message discard"
    audit.write_about(connection, escape_unstorable(by)[:_MOST_NAME], verb, refusal.id)


def _why_not(connection: Connection, namespace: str, refusal: Refusal) -> str:
    found = search(connection, namespace, refusal.id)
    if found is None:
        return f"message {refusal.id} is gone: newer ones have pushed it out; its run goes on without it"
    return f"message {refusal.id} was {found.state.value} already, by {found.settled_by}; nothing is left to be done"


def _address(connection: Connection, namespace: str, refusal: Refusal) -> str:
    """Return the address of a released message; a wake-up goes to workers that have its run's flow."""
    if refusal.queue == names.faults(namespace):
        return refusal.queue
    run = run_rows.get_run(connection, namespace, envelope.decode(refusal.body).run)
    return names.address(refusal.queue, names.key(run.flow, run.version))


def _is_ours(namespace: str, queue: str) -> bool:
    """Return whether a namespace has such a queue: a work queue, or a delay queue."""
    if queue in (names.faults(namespace), names.resume(namespace), names.compensate(namespace)):
        return True
    wait = queue.removeprefix(f"{namespace}.delay.").removesuffix(f".{names.TOPOLOGY}")
    try:
        return queue == names.delay(namespace, durations.parse(wait))
    except ValueError:
        return False
