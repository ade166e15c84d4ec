"""The messages of the embedded broker: publish, take, renew, acknowledge. The SQL of the table ``messages``.

A message is one row. It can be taken when its ``visible_at`` has passed, by the database's clock. Taking it writes the
consumer's name and moves ``visible_at`` ahead by the visibility; a consumer holds it by moving that ahead again and
again; acknowledging it deletes the row. A consumer's death need not be detected: ``visible_at`` of its messages passes,
and they can be taken as before. Every statement of a holder names the consumer, so one that was presumed dead and
resumes changes nothing of what others hold now.

**Locks on PostgreSQL.** ``take`` skips rows that are locked and therefore never waits. All others (renew, acknowledge,
release) lock their rows in the order of the ids, so no two of them can deadlock. On SQLite each of these is a write
transaction, alone in the whole database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Connection,
    Float,
    ScalarSelect,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from aft.brokers.base import Outgoing
from aft.brokers.embedded.routes import Route, undeliverable_of
from aft.store.batch.row_format import next_count
from aft.store.batch.statements import PreparedQuery, Rows
from aft.store.db_time import SQLITE_NOW, later, now
from aft.store.tables import messages

#: Deliveries without an acknowledgement after which a poison message is not redelivered.
MOST_DELIVERIES = 20
#: The PostgreSQL channel on which publishers name the target queues of what they have published.
CHANNEL = "aft_messages"

#: Seconds for which a message is kept whose key no consumer has.
KEPT = 3600.0
#: The most messages that one ``prune`` deletes.
MOST_PRUNED = 1000

#: Seconds. SQLite's clock counts whole milliseconds; a delay gets one more so that it never ends too early.
_GRAIN = 0.001
#: Ids in one statement; databases limit the number of parameters.
_CHUNK = 500

_FIRST = f"SELECT min(m.visible_at) FROM {messages.name} m WHERE m.target = one.value"
#: Finds the seconds until the first message of each queue of a JSON list can be taken. It reads one index entry for
#: each queue, however many messages there are. A damaged time must not stop its queue: seconds are subtracted, because
#: PostgreSQL subtracts no infinite times, and SQLite leaves out what is no number, which it sorts after all numbers.
NEXT_DUE = PreparedQuery(
    f"SELECT one.value, extract(epoch FROM ({_FIRST}))::float8 - extract(epoch FROM statement_timestamp())::float8 "
    "FROM json_array_elements_text((%s)::json) AS one(value)",
    f"SELECT one.value, ({_FIRST} AND m.visible_at <= 9e999) - {SQLITE_NOW} FROM json_each(?) AS one",
)


class TakenMessage(NamedTuple):
    """A message that a consumer holds; ``deliveries`` includes this one."""

    id: int
    target: str
    body: bytes
    deliveries: int


def add(connection: Connection, items: Sequence[tuple[Outgoing, Route]]) -> None:
    """Insert messages, each with its queue's route."""
    statement = insert(messages).values(visible_at=later(bindparam("seconds", type_=Float)))
    connection.execute(
        statement,
        [
            {
                "queue": message.address,
                "target": route.target,
                "body": message.body,
                "seconds": _seconds(route),
            }
            for message, route in items
        ],
    )


def announce(connection: Connection, targets: Iterable[str]) -> None:
    """Notify other processes, when this transaction commits, of a change in these queues; PostgreSQL only."""
    if connection.dialect.name == "postgresql":
        for target in sorted(targets):
            connection.execute(select(func.pg_notify(CHANNEL, target)))


def read_due(found: Rows) -> dict[str, float]:
    """Read what ``NEXT_DUE`` finds: the seconds until the first message of each queue; empty queues are left out."""
    return {target: float(seconds) for target, seconds in found if seconds is not None}


def take(connection: Connection, target: str, consumer: str, limit: int, visibility: float) -> list[TakenMessage]:
    """Take up to ``limit`` messages of a queue, oldest first.

    A poison message, which was delivered too often, goes to the undeliverable queue instead, in the same transaction;
    so does one whose count of deliveries is damaged. A crash before the commit changes nothing; one after it leaves the
    messages held by the dead consumer until their visibility is over.
    """
    picked = _pick(target, limit)
    statement = (
        update(messages)
        .where(messages.c.id.in_(select(picked.c.id)))
        .values(consumer=consumer, visible_at=later(visibility), deliveries=next_count(messages.c.deliveries))
        .returning(messages.c.id, messages.c.target, messages.c.body, messages.c.deliveries)
    )
    rows = sorted(_read_taken(*row) for row in connection.execute(statement))
    place = undeliverable_of(target)
    spent = [row.id for row in rows if not 1 <= row.deliveries <= MOST_DELIVERIES and target != place]
    _set_aside(connection, spent, place)
    return [row for row in rows if row.id not in spent]


def renew(connection: Connection, consumer: str, ids: Collection[int], visibility: float) -> None:
    """Extend the visibility of those messages that this consumer still holds."""
    _change(connection, consumer, ids, visible_at=later(visibility))


def release(connection: Connection, consumer: str, ids: Collection[int]) -> None:
    """Release those messages that this consumer still holds; they can be taken at once."""
    _change(connection, consumer, ids, visible_at=now(), consumer=None)


def acknowledge(connection: Connection, consumer: str, ids: Collection[int]) -> None:
    """Delete those messages that this consumer still holds; those that another one has taken since stay."""
    for chunk in _chunks(ids):
        held = _held(consumer, chunk)
        connection.execute(delete(messages).where(messages.c.id.in_(select(held.c.id))))


def prune(connection: Connection, queues: Iterable[str]) -> int:
    """Delete keyed messages of these queues that no consumer has taken for ``KEPT`` seconds; returns how many."""
    keyed = or_(*(messages.c.target.startswith(f"{queue}/", autoescape=True) for queue in queues))
    old = (
        select(messages.c.id)
        .where(keyed, messages.c.visible_at <= later(-KEPT))
        .order_by(messages.c.id)
        .limit(MOST_PRUNED)
        .with_for_update(skip_locked=True)
        .cte("old")
    )
    return connection.execute(delete(messages).where(messages.c.id.in_(select(old.c.id)))).rowcount


def _read_taken(id: int, target: str, body: bytes, deliveries: object) -> TakenMessage:
    """Read a row that was taken; a count of deliveries that is no number, which SQLite keeps, counts as too many."""
    return TakenMessage(id, target, body, deliveries if isinstance(deliveries, int) else MOST_DELIVERIES + 1)


def _seconds(route: Route) -> float:
    return route.wait_ms / 1000 + _GRAIN if route.wait_ms else 0.0


def _pick(target: str, limit: int) -> CTE:
    # A common table expression, not a subquery: PostgreSQL may run a subquery twice, and lock twice the
    # limit.
    return (
        select(messages.c.id)
        .where(messages.c.target == target, messages.c.visible_at <= _once_now())
        .order_by(messages.c.visible_at, messages.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("picked")
    )


def _held(consumer: str, ids: Sequence[int]) -> CTE:
    return (
        select(messages.c.id)
        .where(messages.c.id.in_(ids), messages.c.consumer == consumer)
        .order_by(messages.c.id)
        .with_for_update()
        .cte("held")
    )


def _once_now() -> ScalarSelect[Any]:
    # As a subquery the clock is read once. PostgreSQL's clock_timestamp() in the condition itself would be
    # read for each row, and the index could not stop at the first message that still has to wait.
    return select(now()).scalar_subquery()


def _change(connection: Connection, owner: str, ids: Collection[int], **values: object) -> None:
    for chunk in _chunks(ids):
        held = _held(owner, chunk)
        connection.execute(
            update(messages).where(messages.c.id.in_(select(held.c.id))).values(values),
        )


def _set_aside(connection: Connection, ids: Collection[int], place: str) -> None:
    for chunk in _chunks(ids):
        connection.execute(
            update(messages)
            .where(messages.c.id.in_(chunk))
            .values(queue=place, target=place, visible_at=now(), consumer=None, deliveries=0)
        )


def _chunks(ids: Collection[int]) -> Iterator[list[int]]:
    ordered = sorted(ids)
    for start in range(0, len(ordered), _CHUNK):
        yield ordered[start : start + _CHUNK]
