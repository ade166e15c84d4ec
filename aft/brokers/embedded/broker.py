"""The embedded broker: queues as tables of aft's database, so that no separate message broker is needed.

Durable, with the guarantees of :mod:`aft.brokers.base`, for several processes and threads, on PostgreSQL and SQLite. A
publish is one transaction: it is stored as a whole or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection

from aft import names
from aft.brokers.base import Outgoing, QueueStatus, Topology
from aft.brokers.embedded import routes, rows
from aft.brokers.embedded.consumer import EmbeddedConsumer
from aft.brokers.embedded.routes import Route
from aft.brokers.embedded.transactions import Transactions
from aft.brokers.embedded.watch import Bell, BellWatch, FileWatch, QueueWatch
from aft.errors import BrokerError, Unroutable
from aft.store.engine import Store

if TYPE_CHECKING:
    from aft.brokers.embedded.live_events import PostgresEventSender, PostgresSubscription


class _Closable(Protocol):
    def close(self) -> None: ...


class EmbeddedBroker:
    """A broker in the database of a store; thread-safe. Making one connects to nothing.

    ``visibility`` is how many seconds a consumer may be silent before its messages are redelivered to others; it
    renews three times in that time. The store belongs to the caller: closing the broker leaves it open.

    Any number of brokers may work on one database. Each keeps in memory only what can be read again (the routes, which
    never change) and the consumers and subscriptions that it has to close; a crash loses nothing else.
    """

    def __init__(self, store: Store, *, visibility: float = 10.0) -> None:
        if visibility <= 0:
            raise ValueError(f"visibility is {visibility!r}; it must be a positive number of seconds")
        self._store = store
        self._database = Transactions(store)
        self._visibility = visibility
        self._bell = Bell()
        self._known: dict[str, Route] = {}
        # Made absolute here: the process may change its directory later.
        self._file = Path(store.file).absolute() if store.file is not None else None
        self._sender = _sender_for(store)
        # Guards the three below.
        self._lock = threading.Lock()
        self._to_close: set[_Closable] = set()
        self._listens = False
        self._closed = False

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def exposure(self) -> str | None:
        return self._store.exposure

    def version(self) -> str:
        return "embedded, in the database"

    def declare(self, topology: Topology) -> None:
        self._check_open()
        wanted = routes.routes_of(topology)

        def add(connection: Connection) -> None:
            routes.add(connection, wanted)
            # Refused inside the transaction: where one queue is in the way, none is made.
            if problem := routes.mismatch(routes.read_routes(connection), wanted):
                raise BrokerError(problem)

        # Read first: where nothing is missing, nothing is written.
        if not wanted.items() <= self._read_routes().items():
            self._database.write(add)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        self._check_open()
        if not messages:
            return
        found = self._find_routes({message.queue for message in messages})
        items = [(message, routes.with_key(found[message.queue], message.key)) for message in messages]
        targets = {route.target for _, route in items}

        def add(connection: Connection) -> None:
            rows.add(connection, items)
            rows.announce(connection, targets)

        self._database.write(add)
        self._bell.ring(targets)

    def consumer(self, queues: Sequence[str], prefetch: int, keys: Collection[str] = ()) -> EmbeddedConsumer:
        self._check_open()
        self._find_routes(set(queues))
        self._listen()
        targets = [*queues, *(names.address(queue, key) for queue in queues for key in sorted(set(keys)))]
        consumer = EmbeddedConsumer(
            self._database,
            targets,
            prefetch,
            visibility=self._visibility,
            watch=self._watch(targets),
            bell=self._bell,
            forget=self._forget,
        )
        self._remember(consumer)
        return consumer

    def status(self, topology: Topology) -> list[QueueStatus]:
        self._check_open()
        return self._database.read(lambda connection: routes.describe(connection, topology))

    def prune(self, namespace: str) -> None:
        self._check_open()
        targets = Topology(namespace).routed_queues
        while self._database.write(lambda connection: rows.prune(connection, targets)) == rows.MOST_PRUNED:
            pass

    @property
    def has_live_events(self) -> bool:
        return self._sender is not None

    def broadcast(self, namespace: str, body: bytes) -> None:
        if self._sender is not None:
            self._sender.send(namespace, body)

    def subscribe(self, namespace: str) -> PostgresSubscription | None:
        self._check_open()
        if self._sender is None:
            return None
        # Slow to import, and not needed on SQLite.
        from aft.brokers.embedded.live_events import PostgresSubscription

        subscription = PostgresSubscription(self._store.engine, namespace, self._forget)
        self._remember(subscription)
        return subscription

    def close(self) -> None:
        with self._lock:
            self._closed = True
            to_close, self._to_close = self._to_close, set()
        for one in to_close:
            one.close()
        if self._sender is not None:
            self._sender.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerError(f"the broker on {self.url!r} is closed; make a new one")

    def _find_routes(self, wanted: set[str]) -> dict[str, Route]:
        """Return the routes of these queues, or raise Unroutable. Queries only when one is not cached yet."""
        known = self._known if wanted <= self._known.keys() else self._read_routes()
        if missing := sorted(wanted - known.keys()):
            raise Unroutable(f"queue {missing[0]!r} does not exist on {self.url!r}; run `aft broker declare`")
        return {queue: known[queue] for queue in wanted}

    def _read_routes(self) -> dict[str, Route]:
        self._known = self._database.read(routes.read_routes)
        return self._known

    def _watch(self, queues: Sequence[str]) -> QueueWatch:
        if self._file is not None:
            return FileWatch(self._file, self._bell, queues)
        return BellWatch(self._bell, queues)

    def _listen(self) -> None:
        """On PostgreSQL, start the listener that rings the bell; one for all consumers of this broker."""
        with self._lock:
            if self._store.dialect != "postgresql" or self._listens:
                return
            self._listens = True
        # Slow to import, and not needed on SQLite.
        from aft.brokers.embedded.listener import Listener

        listener = Listener(
            self._store.engine,
            rows.CHANNEL,
            on_payload=lambda target: self._bell.ring([target]),
            on_connected=self._bell.ring_for_all,
        )
        listener.start()
        self._remember(listener)

    def _remember(self, one: _Closable) -> None:
        with self._lock:
            if not self._closed:
                self._to_close.add(one)
                return
        # Closed by another thread in the meantime.
        one.close()
        self._check_open()

    def _forget(self, one: _Closable) -> None:
        with self._lock:
            self._to_close.discard(one)


def _sender_for(store: Store) -> PostgresEventSender | None:
    """Return the sender of live events; None for a SQLite file, which has no way to send them."""
    if store.file is not None:
        return None
    # Slow to import, and not needed on SQLite.
    from aft.brokers.embedded.live_events import PostgresEventSender

    return PostgresEventSender(store.engine)
