"""Messages saved with the state that they announce, so that neither exists without the other.

Who may run at the same time: any number of writers, relays and publishers. A writer that publishes its rows itself
holds them for a while (``taken_until``); if it dies before they are confirmed and deleted, the hold runs out and a
relay takes them. Rows are picked by that state, never by ``id > last``: ids are handed out before the commit, so a
lower id may appear after a higher one. A crash between the broker's confirm and the deletion leaves a row that is
published again: a duplicate, which every consumer expects.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Float, bindparam, delete, insert, select, update

from aft.store.moments import SQLITE_NOW, later, now
from aft.store.questions import PreparedQuery
from aft.store.tables import outbox

if TYPE_CHECKING:
    from aft.store.engine import Store

#: Seconds a writer, or a relay, has to publish what it holds.
HOLD = 10.0


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that waits to be published; ``queue`` is an address, a queue with or without a key (``aft.names``)."""

    id: int
    queue: str
    body: str


_PUT = (
    insert(outbox)
    .values(taken_until=later(bindparam("hold", type_=Float)))
    .returning(outbox.c.id, sort_by_parameter_order=True)
)


def put(
    connection: Connection, namespace: str, messages: Sequence[tuple[str, str]], *, hold: float = 0.0
) -> list[OutboxRow]:
    """Save messages (address, body); with ``hold`` the caller means to publish them itself, that many seconds long."""
    if not messages:
        return []
    given = [{"namespace": namespace, "queue": queue, "body": body, "hold": hold} for queue, body in messages]
    numbers = connection.execute(_PUT, given).scalars()
    return [OutboxRow(number, queue, body) for number, (queue, body) in zip(numbers, messages, strict=True)]


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


def any_free(store: Store, namespace: str) -> bool:
    """Tell whether a relay would find something; reads only, and costs next to nothing: it is asked all the time."""
    (found,) = store.ask([(_ANY_FREE, namespace)])
    return bool(found)


_ANY_FREE = PreparedQuery(
    f"SELECT 1 FROM {outbox.name} WHERE namespace = %s AND taken_until <= statement_timestamp() LIMIT 1",
    f"SELECT 1 FROM {outbox.name} WHERE namespace = ? AND taken_until <= {SQLITE_NOW} LIMIT 1",
)


def confirm(connection: Connection, ids: Iterable[int]) -> None:
    """Delete what the broker has confirmed."""
    connection.execute(delete(outbox).where(outbox.c.id.in_(list(ids))))


class _Confirms:
    """Deletes what the broker has confirmed, by its numbers."""

    def statement(self, items: Sequence[Any]) -> str:
        return _DELETE

    def spell(self, items: Sequence[int]) -> bytes:
        return json.dumps(list(items)).encode()

    def write_sqlite(self, connection: sqlite3.Connection, items: Sequence[int]) -> list[Any]:
        connection.execute(_DELETE_SQLITE, (self.spell(items).decode(),))
        return [()] * len(items)


#: Deletes what the broker has confirmed, in a transaction of its own; to be given to ``Store.write_now``.
CONFIRMS = _Confirms()
#: Looked up one by one, whatever is thought of a join: the table is empty whenever it is measured.
_DELETE = f"""
DELETE FROM {outbox.name} WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json)::bigint)) RETURNING 0
"""
_DELETE_SQLITE = f"DELETE FROM {outbox.name} WHERE id IN (SELECT value FROM json_each(?))"


def let_go(connection: Connection, ids: Iterable[int]) -> None:
    """Give rows back that could not be published, for the relay's next round."""
    connection.execute(update(outbox).where(outbox.c.id.in_(list(ids))).values(taken_until=now()))
