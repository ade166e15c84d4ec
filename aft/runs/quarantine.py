"""Messages that were refused at the door: kept with the reason, so that nothing is lost and nothing loops."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

from aft.ids import new_id
from aft.store.moments import now
from aft.store.tables import quarantine

#: Bytes of a refused message that are kept.
MOST_KEPT = 65_536


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused message."""

    id: str
    queue: str
    reason: str
    size: int
    body: bytes
    at: datetime


def add(connection: Connection, namespace: str, queue: str, body: bytes, reason: str) -> None:
    """Keep a refused message."""
    connection.execute(
        insert(quarantine).values(
            id=new_id(),
            namespace=namespace,
            queue=queue,
            reason=reason.replace("\x00", "\\x00"),
            size=len(body),
            body=body[:MOST_KEPT],
            at=now(),
        )
    )


def listing(connection: Connection, namespace: str, limit: int = 50) -> list[Refusal]:
    """Return the newest refused messages, newest first."""
    statement = (
        select(quarantine).where(quarantine.c.namespace == namespace).order_by(quarantine.c.id.desc()).limit(limit)
    )
    return [Refusal(row.id, row.queue, row.reason, row.size, row.body, row.at) for row in connection.execute(statement)]
