"""Messages saved with the state that they announce, so that neither exists without the other.

Who may run at the same time: any number of writers, relays and publishers. A writer that publishes its rows itself
holds them for a while (``taken_until``); if it dies before they are confirmed and deleted, the hold runs out and a
relay takes them. Rows are picked by that state, never by ``id > last``: ids are handed out before the commit, so a
lower id may appear after a higher one. A crash between the broker's confirm and the deletion leaves a row that is
published again: a duplicate, which every consumer expects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from aft.store.moments import later, now
from aft.store.tables import outbox

#: Seconds a writer, or a relay, has to publish what it holds.
HOLD = 10.0


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that waits to be published."""

    id: int
    queue: str
    body: str


def put(
    connection: Connection, namespace: str, messages: Sequence[tuple[str, str]], *, hold: float = 0.0
) -> list[OutboxRow]:
    """Save messages (queue, body); with ``hold`` the caller means to publish them itself, that many seconds long."""
    rows = []
    for queue, body in messages:
        statement = (
            insert(outbox)
            .values(namespace=namespace, queue=queue, body=body, taken_until=later(hold))
            .returning(outbox.c.id)
        )
        rows.append(OutboxRow(connection.execute(statement).scalar_one(), queue, body))
    return rows


def take(connection: Connection, namespace: str, limit: int, *, hold: float = HOLD) -> list[OutboxRow]:
    """Take rows that nobody holds, and hold them; other relays see the rest."""
    free = (
        select(outbox.c.id, outbox.c.queue, outbox.c.body)
        .where(outbox.c.namespace == namespace, outbox.c.taken_until <= now())
        .order_by(outbox.c.taken_until, outbox.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = [OutboxRow(*row) for row in connection.execute(free)]
    held = update(outbox).where(outbox.c.id.in_([row.id for row in rows])).values(taken_until=later(hold))
    if rows:
        connection.execute(held)
    return rows


def any_free(connection: Connection, namespace: str) -> bool:
    """Tell whether a relay would find something; reads only."""
    statement = select(outbox.c.id).where(outbox.c.namespace == namespace, outbox.c.taken_until <= now()).limit(1)
    return connection.execute(statement).first() is not None


def confirm(connection: Connection, ids: Iterable[int]) -> None:
    """Delete what the broker has confirmed."""
    connection.execute(delete(outbox).where(outbox.c.id.in_(list(ids))))


def let_go(connection: Connection, ids: Iterable[int]) -> None:
    """Give rows back that could not be published, for the relay's next round."""
    connection.execute(update(outbox).where(outbox.c.id.in_(list(ids))).values(taken_until=now()))
