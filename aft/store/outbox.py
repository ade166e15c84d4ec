"""The outbox: messages saved in the transaction that they announce, so that neither exists without the other.

Who may run at the same time: any number of writers, relays and publishers. A writer that publishes its rows itself
holds them for a while (``taken_until``); if it dies before they are confirmed and deleted, the hold expires and a
relay takes them. Rows are picked by that state, never by ``id > last``: ids are handed out before the commit, so a
lower id may appear after a higher one. A crash between the broker's confirm and the deletion leaves a row that is
published again: a duplicate, which every consumer expects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Float, bindparam, insert, select, update

from aft.store.batch.execute_batch import write_within
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import SQLITE_NOW, later, now
from aft.store.tables import outbox

if TYPE_CHECKING:
    from aft.store.batch.committer import Executor
    from aft.store.engine import Store
    from aft.store.postgres.libpq import Parameters

#: Seconds a writer, or a relay, has to publish what it holds.
HOLD = 10.0


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that waits to be published; ``queue`` is an address, a queue with or without a key (``aft.names``)."""

    id: int
    queue: str
    body: str = field(repr=False)


_PUT = (
    insert(outbox)
    .values(taken_until=later(bindparam("hold", type_=Float)))
    .returning(outbox.c.id, sort_by_parameter_order=True)
)


def put(
    connection: Connection, namespace: str, messages: Sequence[tuple[str, str]], *, hold: float = 0.0
) -> list[OutboxRow]:
    """Save messages (address, body); the caller has ``hold`` seconds to publish them itself, before a relay does."""
    if not messages:
        return []
    given = [{"namespace": namespace, "queue": queue, "body": body, "hold": hold} for queue, body in messages]
    numbers = connection.execute(_PUT, given).scalars()
    return [OutboxRow(number, queue, body) for number, (queue, body) in zip(numbers, messages, strict=True)]


def put_selected(namespace: str, queue: str, body: str, hold: str = "0") -> str:
    """Format the PostgreSQL statement that saves messages, up to its FROM; ``hold`` is an expression of seconds."""
    values = f"{namespace}, {queue}, {body}, statement_timestamp() + make_interval(secs => {hold})"
    return f"INSERT INTO {outbox.name} (namespace, queue, body, taken_until) SELECT {values}"


#: Saves a message on SQLite, given its namespace, address, body and the seconds of its hold; returns its number.
PUT_SQLITE = (
    f"INSERT INTO {outbox.name} (namespace, queue, body, taken_until) VALUES (?, ?, ?, {SQLITE_NOW} + ?) RETURNING id"
)


def take(connection: Connection, namespace: str, limit: int, *, hold: float = HOLD) -> list[OutboxRow]:
    """Take rows that are not held, and hold them; other relays see the rest."""
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
    """Return whether there are rows that are not held; reads only, and is cheap enough to be polled."""
    (found,) = store.query([(_ANY_FREE, namespace)])
    return bool(found)


_ANY_FREE = PreparedQuery(
    f"SELECT 1 FROM {outbox.name} WHERE namespace = %s AND taken_until <= statement_timestamp() LIMIT 1",
    f"SELECT 1 FROM {outbox.name} WHERE namespace = ? AND taken_until <= {SQLITE_NOW} LIMIT 1",
)


def confirm(connection: Connection, ids: Iterable[int]) -> None:
    """Delete rows that the broker has confirmed, in a transaction of the caller's."""
    write_within(connection, CONFIRMS, list(ids))


class _Confirms:
    """Deletes rows that the broker has confirmed, by their ids."""

    def for_postgresql(self, items: Sequence[int]) -> tuple[str, Parameters]:
        return _DELETE, [json.dumps(list(items))]

    def write_sqlite(self, connection: Executor, items: Sequence[int]) -> list[Any]:
        connection.execute(_DELETE_SQLITE, (json.dumps(list(items)),))
        return [()] * len(items)


#: Deletes confirmed rows in a transaction of its own, with ``Store.write_now``.
CONFIRMS = _Confirms()
#: Looked up by an array of ids, not by a join: the planner takes the table for empty, as it is when it is analyzed.
_DELETE = f"""
DELETE FROM {outbox.name} WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json)::bigint)) RETURNING 0
"""
_DELETE_SQLITE = f"DELETE FROM {outbox.name} WHERE id IN (SELECT value FROM json_each(?))"


def release_rows(connection: Connection, ids: Iterable[int]) -> None:
    """Release rows that could not be published, for the relay's next round."""
    connection.execute(update(outbox).where(outbox.c.id.in_(list(ids))).values(taken_until=now()))
