"""The queues of the embedded broker, their routes and their message counts: the SQL of the table ``queues``.

A queue is one row: its wait and its target. A work queue waits 0 and is its own target; a delay queue's target is the
resume queue. Rows are never changed or deleted, so that routes can be cached.

A message with a key is stored under the address of its queue and its key. So the messages of each key are a queue of
their own, without a row here: consumers take those of the keys that they have. Messages whose key no consumer has are
deleted after an hour (``rows.prune``); the timer of a worker that has the flow claims their runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, and_, case, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from aft import names
from aft.brokers.base import QueueStatus, Topology
from aft.store.db_time import now
from aft.store.tables import messages, queues


@dataclass(frozen=True, slots=True)
class Route:
    """The queue in which messages become visible, and after how many milliseconds."""

    target: str
    wait_ms: int


def with_key(route: Route, key: str) -> Route:
    """Return the route of a message with this key."""
    return Route(names.address(route.target, key), route.wait_ms)


def routes_of(topology: Topology) -> dict[str, Route]:
    """Return the routes of a topology, by queue. Raises ValueError for a wait below one millisecond."""
    direct = (*topology.work_queues, names.undeliverable(topology.namespace))
    resume = names.resume(topology.namespace)
    return {name: Route(name, 0) for name in direct} | {
        name: Route(resume, _milliseconds(wait)) for name, wait in topology.delay_queues.items()
    }


def _milliseconds(wait: timedelta) -> int:
    milliseconds = round(wait / timedelta(milliseconds=1))
    if milliseconds < 1:
        raise ValueError(f"a wait of {wait} needs no delay queue; publish to the resume queue instead")
    return milliseconds


def undeliverable_of(queue: str) -> str:
    """Return the queue to which a poison message of this queue goes."""
    # A namespace has no dot, so the name's first part is all of it.
    return names.undeliverable(queue.partition(".")[0])


def read_routes(connection: Connection) -> dict[str, Route]:
    """Read the routes of all queues."""
    rows = connection.execute(select(queues.c.name, queues.c.target, queues.c.wait_ms))
    return {row.name: Route(row.target, row.wait_ms) for row in rows}


def add(connection: Connection, wanted: dict[str, Route]) -> None:
    """Make the queues exist; one that exists is left as it is.

    Several processes may do this at once: the second waits for the first and then changes nothing. All insert in the
    order of the names, so that two with overlapping names cannot deadlock.
    """
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    rows = [{"name": name, "target": route.target, "wait_ms": route.wait_ms} for name, route in sorted(wanted.items())]
    for row in rows:
        connection.execute(insert(queues).values(row).on_conflict_do_nothing())


def mismatch(found: dict[str, Route], wanted: dict[str, Route]) -> str:
    """Return a message about the first queue that exists with other arguments than wanted; empty if none does."""
    for name, route in wanted.items():
        if (other := found.get(name, route)) != route:
            return (
                f"queue {name!r} exists with wait {other.wait_ms} ms and target {other.target!r}, "
                f"but wait {route.wait_ms} ms and target {route.target!r} are wanted; "
                "queues are never changed: use another namespace"
            )
    return ""


def count(connection: Connection, targets: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Count messages and current holders, by the queue that a message is in now.

    A message is in its delay queue until its wait is over, and from then on in its target.
    """
    waits = messages.c.visible_at > now()
    delayed = and_(messages.c.queue != messages.c.target, messages.c.deliveries == 0, waits)
    place = case((delayed, messages.c.queue), else_=messages.c.target).label("place")
    holder = case((waits, messages.c.consumer)).label("holder")
    keyed = [messages.c.target.startswith(f"{target}/", autoescape=True) for target in targets]
    query = (
        select(place, holder, func.count())
        .where(or_(messages.c.target.in_(list(targets)), *keyed))
        .group_by(place, holder)
    )
    counts: Counter[str] = Counter()
    holders: dict[str, set[str]] = {}
    for address, consumer, number in connection.execute(query):
        queue, _ = names.split(address)
        counts[queue] += number
        holders.setdefault(queue, set()).update([consumer] if consumer else [])
    return {queue: (number, len(holders[queue])) for queue, number in counts.items()}


def describe(connection: Connection, topology: Topology) -> list[QueueStatus]:
    """Return the status of each queue of the topology."""
    wanted = routes_of(topology)
    found = read_routes(connection)
    counts = count(connection, {route.target for route in wanted.values()})
    return [_status(name, wanted[name], found.get(name), counts.get(name, (0, 0))) for name in wanted]


def _status(name: str, wanted: Route, found: Route | None, counts: tuple[int, int]) -> QueueStatus:
    if found is None:
        return QueueStatus(name, exists=False, problem="it does not exist: run `aft broker declare`")
    return QueueStatus(
        name,
        exists=True,
        messages=counts[0],
        consumers=counts[1],
        problem=mismatch({name: found}, {name: wanted}),
    )
