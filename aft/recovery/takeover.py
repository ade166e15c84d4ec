"""Detects dead workers and rescues their runs.

Three ways, the quickest first:

=====================  ==============================================================  =====================
sign of a death        how it is noticed                                               after about
=====================  ==============================================================  =====================
a held message is      the broker gives a killed worker's messages to the next one;    10 ms
redelivered            it takes over if the owner's lock is free, too
a lock is free         the probe tries the locks of all workers (``store.liveness``)   0.1 s on SQLite,
                                                                                       2 s on PostgreSQL
a lease expires        the sweeper finds runs whose owner's lease is expired           one lease
=====================  ==============================================================  =====================

Each ends in the same way: the worker's lease is ended, its runs are rescued as faults, in batches, and these are
decided about at once, here: the queue of faults would only cost time. Who may run at the same time: any number of
rescuers, and the worker itself, if it is alive after all. A crash before the decision leaves an expired lease, or open
faults with their messages in the outbox: the sweeper, or the relay, continues from there. Emits: WorkerDied,
RunRescued, RunParked, ServiceFailed.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from aft.clock import Clock
from aft.errors import StoreError
from aft.ids import RunId, WorkerId
from aft.runs import park
from aft.runs.ownership.rescue import ANY_EXPIRED, WARM_UP, find_expired, rescue_expired, rescue_for_warm_up
from aft.store import Store, outbox
from aft.store.batch.statements import PreparedQuery
from aft.store.leases import end_leases
from aft.store.liveness import make_probe
from aft.store.outbox import OutboxRow
from aft.store.refusals import is_about_rows
from aft.store.tables import runs, workers
from aft.telemetry import RunParked, RunRescued, ServiceFailed, Telemetry, WorkerDied, logger

#: Runs that are rescued in one transaction.
BATCH = 200
#: Seconds after a lost connection to the database in which no lock is trusted: all may have lost theirs with it, as
#: when PostgreSQL restarts its sessions after one has crashed.
LOCKS_TRUSTED_AFTER = 5.0
#: Seconds that ``follow_suspicions`` waits for a suspicion.
PATIENCE = 0.5
#: Seconds for which a suspicion is followed: the broker may know of a death some milliseconds before the database.
SUSPECT_FOR = 0.3
#: Seconds between two checks of suspected owners.
RECHECK = 0.01

_LOCKS = PreparedQuery(
    f"SELECT id, liveness_lock FROM {workers.name} "
    "WHERE namespace = %s AND liveness_lock IS NOT NULL AND stopped_at IS NULL",
    f"SELECT id, liveness_lock FROM {workers.name} "
    "WHERE namespace = ? AND liveness_lock IS NOT NULL AND stopped_at IS NULL",
)
_LOCKS_OF_OWNERS = PreparedQuery.about(
    f"SELECT id, liveness_lock FROM {workers.name} WHERE liveness_lock IS NOT NULL AND stopped_at IS NULL "
    f"AND id IN (SELECT worker_id FROM {runs.name} WHERE id {{among}} AND worker_id IS NOT NULL)"
)


class _WarmUpDone(Exception):
    """Raised to roll back the rescue that warms up."""


class Takeover:
    """Rescues dead workers' runs. Thread-safe, but ``check_locks`` and ``follow_suspicions`` have one thread each."""

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
        self._liveness_probe = make_probe(store)
        self._seen: Counter[WorkerId] = Counter()
        self._suspected: queue.SimpleQueue[list[RunId]] = queue.SimpleQueue()
        self._pause = threading.Event()  # never set: something to wait on

    def warm_up(self) -> None:
        """Run one rescue and roll it back, so that the first real one does not pay for compiling statements."""
        try:
            with self._store.write() as connection:
                end_leases(connection, WARM_UP, [WorkerId("")], died=True)
                rescue_for_warm_up(connection, self._clock.now())
                raise _WarmUpDone
        except _WarmUpDone:
            return
        except StoreError as error:
            if not error.transient:
                raise
            logger.debug("not warmed up, so the first rescue takes longer: %s", error)

    # By lease ---------------------------------------------------------------------------------------------------

    def rescue(self) -> int:
        """Rescue runs of workers whose lease is expired, up to one batch; return how many."""
        if not self._store.query([(ANY_EXPIRED, self._namespace)])[0]:
            return 0
        looked = self._find_held(self._locks())
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
        """Rescue runs, each in its own transaction; one that the database refuses to change is reported and left.

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
                self._put_aside(run_id, error)
                continue
            events += rescued
            written += messages
        return events, written

    def _put_aside(self, run_id: RunId, error: Exception) -> None:
        """Park a run that no worker can own after this one; report another one that the database refuses to change."""
        with self._store.write() as connection:
            is_parked = park.park_unrescuable(connection, run_id)
        if is_parked:
            self._telemetry.emit(RunParked(run=run_id, reason=park.NO_EPOCH))
        else:
            self._telemetry.emit(ServiceFailed(service="takeover", why=f"run {run_id}: {error}"))

    def _send_on(self, events: Sequence[RunRescued], written: Sequence[OutboxRow]) -> int:
        for event in events:
            self._telemetry.emit(event)
        if events:
            self._decide([event.fault for event in events])
            with self._store.write() as connection:
                outbox.confirm(connection, [row.id for row in written])
        return len(events)

    # By lock ----------------------------------------------------------------------------------------------------

    def check_locks(self) -> float:
        """Try the locks of all workers; rescue the runs of those whose lock was free often enough in a row."""
        seen, self._seen = self._seen, Counter()  # a look that fails interrupts the row
        if self._liveness_probe.are_all_held():
            return self._liveness_probe.pause
        locks = self._locks()
        free = self._free(locks)
        if not self._store.has_been_connected_for(LOCKS_TRUSTED_AFTER):
            return self._liveness_probe.pause
        self._seen = Counter({worker: seen[worker] + 1 for worker in free})
        dead = {worker for worker, looks in self._seen.items() if looks >= self._liveness_probe.checks}
        self._rescue_from({worker: locks[worker] for worker in dead}, "its lock is free")
        return self._liveness_probe.pause

    # By delivery ------------------------------------------------------------------------------------------------

    def suspect(self, run_ids: Iterable[RunId]) -> None:
        """Note that a message held for these runs was redelivered: their owner may be dead."""
        if found := list(run_ids):
            self._suspected.put(found)

    def interrupt(self) -> None:
        """Make ``follow_suspicions`` stop waiting for a suspicion."""
        self._suspected.put([])

    def follow_suspicions(self) -> float:
        """Wait for a suspicion, and follow it until the owners are rescued from, or SUSPECT_FOR seconds have passed."""
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
            self._pause.wait(RECHECK)
        return 0.0

    def _owners_live(self, run_ids: Sequence[RunId]) -> bool:
        """Rescue from those owners of these runs whose lock is free; return whether there are other owners."""
        locks = self._locks_of_owners(run_ids)
        free = self._free(locks)
        if not self._store.has_been_connected_for(LOCKS_TRUSTED_AFTER):
            return False  # left to ``check_locks``
        self._rescue_from({worker: locks[worker] for worker in free}, "its lock is free, and what it held came back")
        return bool(locks.keys() - free)

    # All --------------------------------------------------------------------------------------------------------

    def _locks(self) -> dict[WorkerId, str]:
        """Return the liveness locks of workers that have not stopped."""
        (found,) = self._store.query([(_LOCKS, self._namespace)])
        return {WorkerId(worker): lock for worker, lock in found}

    def _locks_of_owners(self, run_ids: Collection[RunId]) -> dict[WorkerId, str]:
        """Return the liveness locks of the workers that own one of these runs."""
        (found,) = self._store.query([(_LOCKS_OF_OWNERS, json.dumps(list(run_ids)))])
        return {WorkerId(worker): lock for worker, lock in found}

    def _free(self, locks: dict[WorkerId, str]) -> set[WorkerId]:
        return {worker for worker, held in self._find_held(locks).items() if not held}

    def _find_held(self, locks: dict[WorkerId, str]) -> dict[WorkerId, bool]:
        """Return whether each worker's lock is held; empty, with an event, if the check fails."""
        try:
            return self._liveness_probe.check(self._store.read, locks)
        except (ValueError, TypeError, OSError) as error:
            self._telemetry.emit(ServiceFailed(service="takeover", why=f"the locks of workers: {error}"))
            return {}

    def _rescue_from(self, dead: dict[WorkerId, str], why: str) -> None:
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
        for lock in dead.values():
            self._liveness_probe.clean_up(lock)
