"""Taking over from the dead: who is dead, how is that noticed, and what becomes of its runs?

Three ways, the quickest first:

=====================  ==============================================================  =====================
sign of a death        how it is noticed                                               after about
=====================  ==============================================================  =====================
a held delivery comes  the broker gives a killed worker's messages to the next one;    10 ms
back                   it takes over if the owner's lock is free, too
a lock is free         the lookout tries the locks of all workers (``store.signs``)    0.1 s on SQLite,
                                                                                       2 s on PostgreSQL
a lease runs out       the sweeper looks for runs whose owner's lease is over          one lease
=====================  ==============================================================  =====================

Each ends in the same way: the worker's lease is ended, its runs are rescued as faults, in batches, and these are
decided about at once, here: their way through the queue of faults would only cost time. Who may run at the same time:
any number of takers, and the worker itself, if it lives after all. A crash before the decision leaves an expired lease,
or open faults with their messages in the outbox: the sweeper, or the relay, goes on from there. Emits: WorkerDied,
RunRescued.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from sqlalchemy import Connection

from aft.clock import Clock
from aft.errors import StoreError
from aft.ids import RunId, WorkerId
from aft.runs.rescue import REHEARSAL, any_expired, find_expired, rehearse, rescue_expired
from aft.store import Store, outbox
from aft.store.leases import end_leases
from aft.store.outbox import OutboxRow
from aft.store.questions import PreparedQuery
from aft.store.refusals import is_about_rows
from aft.store.signs import make_lookout
from aft.store.tables import runs, workers
from aft.telemetry import RunRescued, ServiceFailed, Telemetry, WorkerDied, logger

#: Runs that are rescued in one transaction.
BATCH = 200
#: Seconds after a lost connection to the database in which no lock is trusted: all may have lost theirs with it, as
#: when PostgreSQL starts its sessions anew after one has crashed.
SETTLED = 5.0
#: Seconds that a wait for the next suspicion takes at the most.
PATIENCE = 0.5
#: Seconds for which a suspicion is followed: the broker may know of a death some milliseconds before the database.
SUSPECT_FOR = 0.3
#: Seconds between two looks at those under suspicion.
LOOK_AGAIN = 0.01

_SIGNS = PreparedQuery(
    f"SELECT id, sign FROM {workers.name} WHERE namespace = %s AND sign IS NOT NULL AND stopped_at IS NULL",
    f"SELECT id, sign FROM {workers.name} WHERE namespace = ? AND sign IS NOT NULL AND stopped_at IS NULL",
)
_SIGNS_OF_OWNERS = PreparedQuery.about(
    f"SELECT id, sign FROM {workers.name} WHERE sign IS NOT NULL AND stopped_at IS NULL "
    f"AND id IN (SELECT worker_id FROM {runs.name} WHERE id {{among}} AND worker_id IS NOT NULL)"
)


class _TakenBack(Exception):
    """Raised to take back what a rehearsal wrote."""


class Takeover:
    """Rescues the runs of dead workers. Thread-safe, but for ``look`` and ``settle``: one thread each."""

    def __init__(
        self,
        namespace: str,
        store: Store,
        clock: Clock,
        telemetry: Telemetry,
        decide: Callable[[Sequence[str]], object],
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._decide = decide
        self._lookout = make_lookout(store)
        self._seen: Counter[WorkerId] = Counter()
        self._suspected: queue.SimpleQueue[list[RunId]] = queue.SimpleQueue()
        self._pause = threading.Event()  # never set: something to wait on

    def rehearse(self) -> None:
        """Bury somebody who never lived, and take it back: when a worker dies, others wait for nothing but the act."""
        try:
            with self._store.write() as connection:
                end_leases(connection, REHEARSAL, [WorkerId("")], died=True)
                rehearse(connection, self._clock.now())
                raise _TakenBack
        except _TakenBack:
            return
        except StoreError as error:
            if not error.transient:
                raise
            logger.debug("not rehearsed, so the first rescue takes longer: %s", error)

    # By lease ---------------------------------------------------------------------------------------------------

    def rescue(self) -> int:
        """Take runs away from workers whose lease is over; tells how many, a batch at the most."""
        with self._store.read() as connection:
            if not any_expired(connection, self._namespace):
                return 0
            looked = self._lookout.look(connection, self._signs())
        living = {worker for worker, held in looked.items() if held}
        try:
            with self._store.write() as connection:
                rescued = rescue_expired(connection, self._namespace, self._clock.now(), BATCH, living)
        except Exception as error:
            if not is_about_rows(error):
                raise
            rescued = self._rescue_each(living)
        return self._send_on(*rescued)

    def _rescue_each(
        self, living: Collection[WorkerId] = (), of: Collection[WorkerId] | None = None
    ) -> tuple[list[RunRescued], list[OutboxRow]]:
        """Take runs away, each in a transaction of its own: one that the database refuses to change is told, and left.

        For when a batch was refused because of one of its runs.
        """
        with self._store.read() as connection:
            found = find_expired(connection, self._namespace, BATCH, of)
        events: list[RunRescued] = []
        written: list[OutboxRow] = []
        for run_id in found:
            try:
                with self._store.write() as connection:
                    at = self._clock.now()
                    rescued, messages = rescue_expired(connection, self._namespace, at, 1, living, of, run_id)
            except Exception as error:
                if not is_about_rows(error):
                    raise
                self._telemetry.emit(ServiceFailed(service="takeover", why=f"run {run_id}: {error}"))
                continue
            events += rescued
            written += messages
        return events, written

    def _send_on(self, events: Sequence[RunRescued], written: Sequence[OutboxRow]) -> int:
        for event in events:
            self._telemetry.emit(event)
        if events:
            self._decide([event.fault for event in events])
            with self._store.write() as connection:
                outbox.confirm(connection, [row.id for row in written])
        return len(events)

    # By lock ----------------------------------------------------------------------------------------------------

    def look(self) -> float:
        """Try the locks of all workers; rescue the runs of those whose lock was free often enough in a row."""
        seen, self._seen = self._seen, Counter()  # a look that fails is no look in a row
        signs = self._signs()
        with self._store.read() as connection:
            free = self._free(connection, signs)
        if not self._store.has_been_well_for(SETTLED):
            return self._lookout.pause
        self._seen = Counter({worker: seen[worker] + 1 for worker in free})
        dead = {worker for worker, looks in self._seen.items() if looks >= self._lookout.looks}
        self._bury({worker: signs[worker] for worker in dead}, "its lock is free")
        return self._lookout.pause

    # By delivery ------------------------------------------------------------------------------------------------

    def suspect(self, run_ids: Iterable[RunId]) -> None:
        """Say that a delivery came back which somebody held for these runs: their owner may be dead."""
        if found := list(run_ids):
            self._suspected.put(found)

    def interrupt(self) -> None:
        """Let whoever waits for a suspicion wait no more."""
        self._suspected.put([])

    def settle(self) -> float:
        """Wait for a suspicion, and follow it until its owners are buried or have shown to live."""
        try:
            suspected = self._suspected.get(timeout=PATIENCE)
            while not self._suspected.empty():  # all at once: one after the other, the last would wait for long
                suspected += self._suspected.get()
        except queue.Empty:
            return 0.0
        if not suspected:
            return 0.0
        deadline = self._clock.ticks() + SUSPECT_FOR
        while self._owners_live(suspected) and self._clock.ticks() < deadline:
            self._pause.wait(LOOK_AGAIN)
        return 0.0

    def _owners_live(self, run_ids: Sequence[RunId]) -> bool:
        """Bury those owners of these runs whose lock is free; tell whether there are others."""
        signs = self._signs_of_owners(run_ids)
        with self._store.read() as connection:
            free = self._free(connection, signs)
        if not self._store.has_been_well_for(SETTLED):
            return False  # left for the lookout
        self._bury({worker: signs[worker] for worker in free}, "its lock is free, and what it held came back")
        return bool(signs.keys() - free)

    # All --------------------------------------------------------------------------------------------------------

    def _signs(self) -> dict[WorkerId, str]:
        """The signs of workers that have not ended."""
        (found,) = self._store.ask([(_SIGNS, self._namespace)])
        return {WorkerId(worker): sign for worker, sign in found}

    def _signs_of_owners(self, run_ids: Collection[RunId]) -> dict[WorkerId, str]:
        """The signs of those of them who own one of these runs."""
        (found,) = self._store.ask([(_SIGNS_OF_OWNERS, json.dumps(list(run_ids)))])
        return {WorkerId(worker): sign for worker, sign in found}

    def _free(self, connection: Connection, signs: dict[WorkerId, str]) -> set[WorkerId]:
        return {worker for worker, held in self._lookout.look(connection, signs).items() if not held}

    def _bury(self, dead: dict[WorkerId, str], why: str) -> None:
        if not dead:
            return
        try:
            with self._store.write() as connection:
                ended = end_leases(connection, self._namespace, dead, died=True)
                # Only theirs: one whose lease just ran out may live, which is looked at before its runs are taken.
                events, written = rescue_expired(connection, self._namespace, self._clock.now(), BATCH, of=dead)
        except Exception as error:
            if not is_about_rows(error):
                raise
            with self._store.write() as connection:
                ended = end_leases(connection, self._namespace, dead, died=True)
            events, written = self._rescue_each(of=dead)
        for worker in sorted(ended):
            self._telemetry.emit(WorkerDied(worker=worker, why=why))
        rescued = self._send_on(events, written)
        while rescued >= BATCH:
            rescued = self.rescue()
        for sign in dead.values():
            self._lookout.forget(sign)
