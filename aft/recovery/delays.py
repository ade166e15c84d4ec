"""Delay queues: one for each declared wait, up to the number that a namespace may have.

The waits are kept in the database, so that every dispatcher, ``aft broker declare`` and the relay know the same ones.
Two dispatchers that add the last one at the same time may exceed the limit by one, which does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from datetime import timedelta

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from aft import names
from aft.brokers.base import Broker, QueuesDiffer, Topology
from aft.store import Store
from aft.store.db_time import now
from aft.store.tables import delays

#: Shorter waits are not worth a queue: the message goes straight to resume.
SHORTEST = timedelta(milliseconds=1)
#: Longer waits are left to the timer: a message that waits for days outlives too many changes of its broker.
LONGEST = timedelta(days=1)


class DelayQueues:
    """The delay queues of a namespace. Thread-safe."""

    def __init__(self, store: Store, broker: Broker, namespace: str) -> None:
        self._store = store
        self._broker = broker
        self._namespace = namespace
        self._declared: frozenset[timedelta] = frozenset()
        #: The waits whose queues are not aft's.
        self._taken: frozenset[timedelta] = frozenset()
        self._timers: set[timedelta] = set()
        self._lock = threading.Lock()

    def topology(self) -> Topology:
        """Return the queues of this namespace as the database knows them."""
        with self._store.read() as connection:
            return Topology(self._namespace, frozenset(_waits(connection, self._namespace)))

    def declare(self, waits: Iterable[timedelta]) -> Topology:
        """Ensure that the queues for these waits, the known ones and the work queues exist at the broker.

        Raises BrokerError; after QueuesDiffer, the waits whose queues are aft's are kept by these, others by timers.
        """
        with self._lock:
            with self._store.write() as connection:
                for wait in sorted(set(waits)):
                    _add(connection, self._namespace, wait)
            topology = self.topology()
            try:
                self._broker.declare(topology)
            except QueuesDiffer as error:
                self._keep(topology, error.names)
                raise
            self._keep(topology)
            return topology

    def _keep(self, topology: Topology, taken: Collection[str] = ()) -> None:
        """Remember which waits have queues of aft's own; others have taken the queues ``taken``."""
        self._taken = frozenset(wait for name, wait in topology.delay_queues.items() if name in taken)
        self._declared = topology.waits - self._taken

    def queue_for(self, wait: timedelta) -> str | None:
        """Return the name of the queue for a wait, declared if needed; None if the wait is left to the timer."""
        if wait not in self._declared | self._taken | self._timers and wait <= LONGEST:
            self.declare([wait])
            if wait not in self._declared | self._taken:
                self._timers.add(wait)  # the namespace is full; asking again would not change that
        return names.delay(self._namespace, wait) if wait in self._declared else None


def _waits(connection: Connection, namespace: str) -> list[timedelta]:
    # What no queue can have was not written by aft, and must not keep dispatchers from starting.
    fits = delays.c.wait_ms.between(SHORTEST // timedelta(milliseconds=1), LONGEST // timedelta(milliseconds=1))
    statement = select(delays.c.wait_ms).where(delays.c.namespace == namespace, fits)
    return [timedelta(milliseconds=wait) for wait in connection.execute(statement).scalars()]


def _add(connection: Connection, namespace: str, wait: timedelta) -> None:
    known = _waits(connection, namespace)
    if not SHORTEST <= wait <= LONGEST or wait in known or len(known) >= names.MOST_DELAYS:
        return
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(
        insert(delays)
        .values(namespace=namespace, wait_ms=wait // timedelta(milliseconds=1), declared_at=now())
        .on_conflict_do_nothing()
    )
