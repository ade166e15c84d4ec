"""The lease of a worker: it decides when other processes may rescue the worker's runs.

A process that executes runs is a *worker*: one row with the time its lease expires, by the database's clock.
A run names its worker and an *epoch*. All runs of a worker depend on its one lease, renewed by one heartbeat
statement per process::

      worker A                            database                              any process's sweeper
         │  begin: INSERT worker ───────►  expires_at = now + lease
         │  claim: UPDATE run ──────────►  worker = A, epoch 1 → 2
         │  heartbeat, every lease/3 ───►  expires_at = now + lease
         ╳  (killed, paused, cut off)
                                           expires_at < now  ◄──────────────  rescue: UPDATE run
                                           worker = none, epoch 2 → 3          WHERE epoch = 2 AND worker = A
         │  (wakes up again)
         │  record: UPDATE run ─────────►  WHERE epoch = 2: no row. Fenced: A writes nothing.

A worker that was killed is noticed sooner, by its liveness lock (see ``store.liveness``), and a person may end a lease
by hand; both end it in the database, by ``expires_at``, and the rest is as drawn above.

The lease decides when a run *may* be rescued; the epoch decides who *may write*. So a wrong clock costs a needless
rescue, never a double outcome. Each guarded write locks the run's row in the statement that checks the epoch: a rescuer
waits for it, or it waits for the rescuer and then finds another epoch.

Crash points. After ``begin``: a row that owns nothing, pruned when long expired. Between two heartbeats: the lease
expires, a sweeper rescues. In ``end``: the row stays until it expires; its runs were released before.
A worker also measures the lease itself: from *before* the renewal was sent, on a clock that neither jumps nor stops in
sleep, and starts nothing new once it is over. So its view of the lease ends before the database's.
A worker whose lease has expired never renews it: its work has stopped, and a live row would keep its runs from being
rescued. It becomes another worker, with a new row, and the old one expires.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from aft.clock import Clock
from aft.errors import DatabaseMoved, StoreError
from aft.ids import WorkerId, new_id
from aft.store.db_time import later, now
from aft.store.engine import Store
from aft.store.liveness import make_lock
from aft.store.tables import runs, workers
from aft.telemetry import LeaseLost, Telemetry, logger

#: Heartbeats in the time of one lease: two may be lost.
BEATS = 3
#: Leases after which a dead worker's row that owns nothing is deleted.
PRUNE_AFTER = 100
#: A flow with its version, in the row of a worker that has it.
_FLOW = re.compile(r".+@[0-9]{1,9}", re.DOTALL)


class Lease:
    """This process's lease as a worker. Thread-safe; sends heartbeats on a thread of its own once begun."""

    def __init__(self, store: Store, namespace: str, length: timedelta, clock: Clock, telemetry: Telemetry) -> None:
        self.worker = WorkerId(new_id())
        self._store = store
        self._namespace = namespace
        self.seconds = length.total_seconds()
        self._clock = clock
        self._telemetry = telemetry
        self._liveness_lock = make_lock(store)
        self._roles: Sequence[str] = ()
        self._flows: Sequence[str] = ()
        self._sources: dict[str, str] = {}
        self._on_beat: Callable[[], None] = _nothing
        self._abandoned: Callable[[], str | None] = _nothing
        self._deadline = float("-inf")
        self._stopping = threading.Event()
        self._wake = threading.Event()  # set to beat before it is time
        self._thread: threading.Thread | None = None

    def begin(
        self,
        *,
        roles: Sequence[str] = (),
        flows: Sequence[str] = (),
        sources: Mapping[str, str] | None = None,
        on_beat: Callable[[], None] | None = None,
        abandoned: Callable[[], str | None] | None = None,
    ) -> None:
        """Become a worker, and send heartbeats from now on; ``on_beat`` is called after each successful one.

        ``sources`` are the sources of facts that rules may query in this process, with their types. ``abandoned``
        returns what each heartbeat records about attempts that were given up and have not returned.
        """
        self._abandoned = abandoned or _nothing
        self._roles, self._flows, self._on_beat = roles, flows, on_beat or _nothing
        self._sources = dict(sources or {})
        self._register(self.worker)
        self._thread = threading.Thread(target=self._beat, name="aft-heartbeat", daemon=True)
        self._thread.start()

    def is_valid(self, worker: WorkerId | None) -> bool:
        """Return whether this worker may start work: it is this process's, and its lease is not over by our clock."""
        # Read before the worker: a new deadline is set after a new worker, so an old worker never gets the new one.
        deadline = self._deadline
        return worker == self.worker and self._clock.ticks() < deadline

    def expire(self) -> None:
        """End the lease by our own clock: nothing more is started until a heartbeat has succeeded."""
        self._deadline = float("-inf")

    def check(self) -> bool:
        """Return whether the database still has our lease; if others have ended it, it ends here, too."""
        worker = self.worker
        with self._store.read() as connection:
            stands = connection.execute(select(workers.c.id).where(workers.c.id == worker, is_leased())).first()
        if stands is None and worker == self.worker:
            self._deadline = float("-inf")
            self._wake.set()
        return stands is not None

    def renew(self) -> None:
        """Send one heartbeat; become another worker if the lease has expired or was ended. Emits: LeaseLost."""
        before = self._clock.ticks()
        if not (self.is_valid(self.worker) and self._extend()):
            lost = self.worker
            self._deadline = float("-inf")
            self._register(WorkerId(new_id()), instead_of=lost)
            self._telemetry.emit(LeaseLost(worker=lost, why=f"no heartbeat was heard in time; now {self.worker}"))
        else:
            self._deadline = before + self.seconds

    def renew_soon(self) -> None:
        """Send a heartbeat now, because there is something to record."""
        self._wake.set()

    def end(self, timeout: float | None = None) -> None:
        """Stop being a worker; what it still owns may be rescued at once. Idempotent.

        Waits up to ``timeout`` seconds for the database, None: without limit; the lease expires by itself.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            return
        beating, self._thread = self._thread, None
        if timeout is None:
            self._unregister(beating)
            return
        leaving = threading.Thread(target=self._unregister, args=[beating], name="aft-lease-end", daemon=True)
        leaving.start()
        leaving.join(timeout)

    def _unregister(self, beating: threading.Thread) -> None:
        beating.join()
        self._deadline = float("-inf")
        try:
            self._after_beat()  # once more: what has waited for the database is done now or never
            with self._store.write() as connection:
                end_leases(connection, self._namespace, [self.worker])
        except DatabaseMoved:
            pass  # reported already; there is no lease any more
        except StoreError as error:
            logger.warning("lease not ended, it runs out by itself: worker=%s why=%s", self.worker, error)
        finally:
            self._liveness_lock.release()

    def _register(self, worker: WorkerId, instead_of: WorkerId | None = None) -> None:
        if instead_of is not None:
            # Before its liveness lock is released: an expired lease must not be counted as a death.
            with self._store.write() as connection:
                end_leases(connection, self._namespace, [instead_of])
        self._liveness_lock.acquire(worker)
        try:
            self._insert(worker)
        except BaseException:
            self._liveness_lock.release()
            raise

    def _insert(self, worker: WorkerId) -> None:
        before = self._clock.ticks()
        with self._store.write() as connection:
            connection.execute(
                insert(workers).values(
                    id=worker,
                    namespace=self._namespace,
                    host=socket.gethostname()[:255],
                    pid=os.getpid(),
                    roles=json.dumps(list(self._roles)),
                    flows=json.dumps(list(self._flows)),
                    sources=json.dumps(self._sources) if self._sources else None,
                    started_at=now(),
                    expires_at=later(self.seconds),
                    liveness_lock=self._liveness_lock.text,
                    abandoned=self._abandoned(),
                )
            )
        self.worker = worker
        self._deadline = before + self.seconds

    def _extend(self) -> bool:
        with self._store.write() as connection:
            return bool(
                connection.execute(
                    update(workers)
                    .where(workers.c.id == self.worker, workers.c.stopped_at.is_(None))
                    .values(
                        expires_at=later(self.seconds),
                        liveness_lock=self._liveness_lock.text,
                        abandoned=self._abandoned(),
                    )
                ).rowcount
            )

    def _beat(self) -> None:
        pause = regular = self.seconds / BEATS
        moved = False
        while not self._stopping.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            if self._stopping.is_set():
                return
            pause = regular
            try:
                self.renew()
                self._after_beat()
                moved = False
            except DatabaseMoved as error:
                self.expire()
                if not moved:
                    logger.error("%s: worker=%s", error, self.worker)
                moved = True
            except StoreError as error:
                # Sooner than usual: a database that is back in time keeps the lease alive.
                pause = regular / BEATS
                logger.warning("heartbeat not heard: worker=%s why=%s", self.worker, error)
            except BaseException:
                # The edge of a thread: whatever went wrong, without heartbeats this process would lose all its runs.
                logger.exception("heartbeat failed: worker=%s", self.worker)

    def _after_beat(self) -> None:
        try:
            self._on_beat()
        except StoreError:
            raise
        except Exception:
            logger.exception("heartbeat failed: worker=%s", self.worker)  # the heartbeat itself has succeeded


def _nothing() -> None:
    """Do nothing: the default callback."""


def is_leased() -> ColumnElement[bool]:
    """Return the condition, over workers, that a lease has neither expired nor been ended."""
    return workers.c.stopped_at.is_(None) & (workers.c.expires_at > now())


def read_names(text: str) -> frozenset[str]:
    """Read a list of names from a worker's row; empty if it is corrupt: others go on without that worker."""
    found = _read_json(text)
    return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()


def read_flows(text: str) -> frozenset[str]:
    """Read the flows of a worker's row, as ``name@version``; what is none, in a row that was damaged, is left out."""
    return frozenset(name for name in read_names(text) if _FLOW.fullmatch(name))


def _read_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def known_sources(connection: Connection, namespace: str) -> dict[str, str]:
    """Return the sources of facts that rules may query in any live worker, with their types."""
    statement = select(workers.c.sources).where(
        workers.c.namespace == namespace, workers.c.sources.is_not(None), is_leased()
    )
    found: dict[str, str] = {}
    for text in connection.execute(statement).scalars():
        found_flows = _read_json(text)
        if isinstance(found_flows, dict):
            found |= {name: kind for name, kind in found_flows.items() if isinstance(kind, str)}
    return found


def end_leases(
    connection: Connection, namespace: str, ids: Collection[WorkerId], *, died: bool = False
) -> set[WorkerId]:
    """End the leases of these workers now; returns those that had not been ended. ``died``: the processes are dead.

    A living worker finds out with its next heartbeat, and becomes another worker; its runs may be rescued at once.
    """
    statement = (
        update(workers)
        .where(workers.c.id.in_(list(ids)), workers.c.namespace == namespace, workers.c.stopped_at.is_(None))
        .values(expires_at=now(), stopped_at=now(), died=died)
        .returning(workers.c.id)
    )
    return {WorkerId(row.id) for row in connection.execute(statement)}


def prune(store: Store, namespace: str, length: timedelta) -> int:
    """Delete the rows of workers that are long gone and own nothing; returns how many."""
    owners = select(runs.c.worker_id).where(runs.c.worker_id.is_not(None))
    with store.write() as connection:
        return connection.execute(
            delete(workers).where(
                workers.c.namespace == namespace,
                workers.c.expires_at < later(-PRUNE_AFTER * length.total_seconds()),
                workers.c.id.not_in(owners),
            )
        ).rowcount
