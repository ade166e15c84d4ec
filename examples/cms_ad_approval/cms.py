"""The content management system: ad slots, the audit of each decision about one, notices to advertisers, reminders.

A decision changes its three tables in one transaction, under the caller's idempotency key: deciding again under the
same key changes nothing and returns what was decided. Undoing a decision takes away exactly what it added; undoing it
again changes nothing. A reminder, which lies on the list of the person who has to decide, is written and withdrawn in
the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, Connection, ForeignKey, Row, String, Table, delete, insert, select, update

from . import trouble
from .database import database, metadata
from .trouble import PolicyViolation


class State(StrEnum):
    """How far a slot has come."""

    SUBMITTED = "submitted"  #: the advertiser has asked for it
    CLEARED = "cleared"  #: the system administrator has approved it; the reviewer decides
    APPROVED = "approved"
    REJECTED = "rejected"


slots = Table(
    "cms_slots",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("advertiser", String(80), nullable=False),
    Column("state", String(20), nullable=False),
    Column("decided_by", String(80)),
)

audits = Table(
    "cms_audits",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("slot_id", ForeignKey(slots.c.id), nullable=False, index=True),
    Column("decided_by", String(80), nullable=False),
    Column("state", String(20), nullable=False),
    Column("earlier_state", String(20), nullable=False),
    Column("earlier_decided_by", String(80)),
)

notices = Table(
    "cms_notices",
    metadata,
    Column("key", ForeignKey(audits.c.key), primary_key=True),
    Column("slot_id", ForeignKey(slots.c.id), nullable=False, index=True),
    Column("addressee", String(80), nullable=False),
    Column("text", String(400), nullable=False),
)

reminders = Table(
    "cms_reminders",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("slot_id", ForeignKey(slots.c.id), nullable=False, index=True),
    Column("addressee", String(80), nullable=False),
    Column("text", String(400), nullable=False),
)


@dataclass(frozen=True)
class Decision:
    """What was decided about a slot; ``audit`` is the key of its audit row."""

    state: State
    slot_id: str
    audit: str


@dataclass(frozen=True)
class Reminder:
    """A reminder that was written; ``key`` is that of its row."""

    slot_id: str
    key: str


@dataclass(frozen=True)
class Contents:
    """Everything that the tables hold about one slot."""

    slot: dict[str, Any]
    audits: list[dict[str, Any]]
    notices: list[dict[str, Any]]
    reminders: list[dict[str, Any]]


def submit_slot(slot_id: str, advertiser: str) -> None:
    """Take in an advertiser's request for a slot."""
    row = {"id": slot_id, "advertiser": advertiser, "state": State.SUBMITTED.value, "decided_by": None}
    with database().write() as connection:
        connection.execute(insert(slots), row)


def decide(slot_id: str, by: str, earlier: State, state: State, key: str) -> Decision:
    """Bring a slot from one state to another, with its audit and its notice.

    Raises CmsBusy if it cannot now, PolicyViolation if it must not.
    """
    decision = Decision(state, slot_id, key)
    if not _is_written(audits, key):
        trouble.meet(slot_id)
    with database().write() as connection:
        slot = _get_slot(connection, slot_id, lock=True)
        # Looked up under the lock: whoever decided under this key before, alive or dead, has committed by now.
        if _find(connection, audits, key) is None:
            _check_follows(slot, earlier, state)
            _write(connection, slot, by, decision)
    trouble.hang(slot_id)
    return decision


def undo(decision: Decision) -> None:
    """Take a decision back: the slot as it was, the audit and the notice gone. Raises CmsBusy if it cannot now."""
    if _is_written(audits, decision.audit):
        trouble.meet(decision.slot_id)
    with database().write() as connection:
        _get_slot(connection, decision.slot_id, lock=True)
        audit = _find(connection, audits, decision.audit)
        if audit is not None:
            _take_back(connection, audit)
    trouble.hang(decision.slot_id)


def remind(slot_id: str, person: str, key: str) -> Reminder:
    """Put a slot on a person's list. Raises CmsBusy if it cannot now."""
    if not _is_written(reminders, key):
        trouble.meet(slot_id)
    with database().write() as connection:
        _get_slot(connection, slot_id, lock=True)
        if _find(connection, reminders, key) is None:
            text = f"Ad slot {slot_id} waits for your verdict."
            row = {"key": key, "slot_id": slot_id, "addressee": person, "text": text}
            connection.execute(insert(reminders), row)
    trouble.hang(slot_id)
    return Reminder(slot_id, key)


def withdraw(reminder: Reminder) -> None:
    """Take a reminder off its person's list. Raises CmsBusy if it cannot now."""
    if _is_written(reminders, reminder.key):
        trouble.meet(reminder.slot_id)
    with database().write() as connection:
        connection.execute(delete(reminders).where(reminders.c.key == reminder.key))
    trouble.hang(reminder.slot_id)


def contents(slot_id: str) -> Contents:
    """Read everything that the tables hold about a slot."""
    with database().read() as connection:
        return Contents(
            dict(_get_slot(connection, slot_id)._mapping),
            _rows(connection, audits, slot_id),
            _rows(connection, notices, slot_id),
            _rows(connection, reminders, slot_id),
        )


def _is_written(table: Table, key: str) -> bool:
    with database().read() as connection:
        return _find(connection, table, key) is not None


def _find(connection: Connection, table: Table, key: str) -> Row[Any] | None:
    return connection.execute(select(table).where(table.c.key == key)).one_or_none()


def _get_slot(connection: Connection, slot_id: str, *, lock: bool = False) -> Row[Any]:
    statement = select(slots).where(slots.c.id == slot_id)
    slot = connection.execute(statement.with_for_update() if lock else statement).one_or_none()
    if slot is None:
        raise LookupError(f"the CMS has no slot {slot_id!r}")
    return slot


def _check_follows(slot: Row[Any], earlier: State, state: State) -> None:
    if slot.state != earlier:
        raise PolicyViolation(f"slot {slot.id!r} is {slot.state}; only {earlier.value} ones can be {state.value}")


def _write(connection: Connection, slot: Row[Any], by: str, decision: Decision) -> None:
    state = decision.state.value
    connection.execute(update(slots).where(slots.c.id == slot.id).values(state=state, decided_by=by))
    connection.execute(
        insert(audits),
        {
            "key": decision.audit,
            "slot_id": slot.id,
            "decided_by": by,
            "state": state,
            "earlier_state": slot.state,
            "earlier_decided_by": slot.decided_by,
        },
    )
    connection.execute(
        insert(notices),
        {
            "key": decision.audit,
            "slot_id": slot.id,
            "addressee": slot.advertiser,
            "text": f"Your ad slot {slot.id} was {state} by the {by}.",
        },
    )


def _take_back(connection: Connection, audit: Row[Any]) -> None:
    earlier = {"state": audit.earlier_state, "decided_by": audit.earlier_decided_by}
    connection.execute(delete(notices).where(notices.c.key == audit.key))
    connection.execute(delete(audits).where(audits.c.key == audit.key))
    connection.execute(update(slots).where(slots.c.id == audit.slot_id).values(earlier))


def _rows(connection: Connection, table: Table, slot_id: str) -> list[dict[str, Any]]:
    found = connection.execute(select(table).where(table.c.slot_id == slot_id).order_by(table.c.key))
    return [dict(row._mapping) for row in found]
