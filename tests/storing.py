"""A database with a namespace of the test's own, and short ways to put a run into any state.

The fixture ``stage`` of the integration tests is one on SQLite and on PostgreSQL in turn.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, insert, select, update

from aft.dispatcher.dependencies import DispatcherDependencies
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import FaultId, RunId, StepPath, WorkerId, new_id
from aft.rules.trees.rule_cache import RuleCache
from aft.run_options import RunOptions
from aft.runs import run_rows, submit
from aft.runs.new_runs import NewRun
from aft.runs.orders.actor import Actor
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import OwnerWrite, Recording
from aft.runs.records import faults, journal
from aft.runs.records.journal import Entry
from aft.runs.run_rows import RunRow
from aft.security.seal import Seal
from aft.store import Store
from aft.store.db_time import later
from aft.store.leases import Lease
from aft.store.tables import journal as journal_rows
from aft.store.tables import outbox, runs, workers
from aft.telemetry import Event, Telemetry

T = TypeVar("T")
GRACE = timedelta(seconds=5)
KNOWN = [("order", 1)]


def actor(name: str, note: str | None = None) -> Actor:
    """Whoever gives an order now."""
    return Actor(name, note, datetime.now(UTC), GRACE)


class HandClock:
    """Wall time as it is; ticks only as the test says."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def ticks(self) -> float:
        return self.passed


def recording(owner: Owner, entry: Entry) -> Recording:
    """What journals an outcome, as an owner's write."""
    return Recording(OwnerWrite(entry=journal.fields(entry, owner.epoch)))


def journal_in(connection: Connection, owner: Owner, seq: int, entry: Entry) -> None:
    """Write an outcome's row and nothing else, in a transaction that has begun."""
    row = {**journal.fields(entry, owner.epoch), "run_id": owner.run_id, "seq": seq}
    connection.execute(insert(journal_rows), row)


@dataclass
class Stage:
    """One database, one namespace, and the workers of a test."""

    store: Store
    namespace: str = field(default_factory=lambda: f"t{secrets.token_hex(6)}")
    clock: HandClock = field(default_factory=HandClock)
    telemetry: Telemetry = field(default_factory=Telemetry)
    events: list[Event] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.telemetry.subscribe(self.events.append)

    def lease(self, seconds: float = 3600.0, **begin: Any) -> Lease:
        """A worker whose heart does not beat by itself within a test, unless the lease is short."""
        made = Lease(self.store, self.namespace, timedelta(seconds=seconds), self.clock, self.telemetry)
        made.begin(**begin)
        self.leases.append(made)
        return made

    def dispatcher_deps(self) -> DispatcherDependencies:
        """What the dispatcher's services share."""
        return DispatcherDependencies(
            namespace=self.namespace,
            store=self.store,
            clock=self.clock,
            telemetry=self.telemetry,
            grace=GRACE,
            rules=RuleCache(self.store, self.namespace, self.clock, self.telemetry),
            seal=Seal(),
        )

    def new(self, **changes: Any) -> NewRun:
        """A run to be made; what is no field of it is one of its options."""
        values: dict[str, Any] = {"id": RunId(new_id()), "namespace": self.namespace, "flow": "order"}
        values |= {"version": 1, "args": "{}"}
        options = RunOptions(**{name: changes.pop(name) for name in RunOptions.__slots__ if name in changes})
        return NewRun(**(values | changes), options=options)

    def owned(self, lease: Lease, **changes: Any) -> Owner:
        """A run that a worker owns from the start."""
        with self.store.write() as connection:
            row, _ = submit.begin(connection, self.new(**changes), lease.worker)
        return Owner(self.store, lease, row)

    def queued(self, grace: timedelta = GRACE, **changes: Any) -> RunRow:
        """A run that waits for a worker."""
        with self.store.write() as connection:
            row, _ = submit.enqueue(connection, self.new(**changes), self.clock.now(), grace)
        return row

    def row(self, run_id: RunId) -> RunRow:
        with self.store.read() as connection:
            return run_rows.get_run(connection, self.namespace, run_id)

    def change(self, run_id: RunId, **values: Any) -> None:
        """Put a run into a state by hand."""
        with self.store.write() as connection:
            connection.execute(update(runs).where(runs.c.id == run_id).values(**values))

    def expire(self, worker: WorkerId) -> None:
        """Let the database think that a worker's lease is over."""
        with self.store.write() as connection:
            connection.execute(update(workers).where(workers.c.id == worker).values(expires_at=later(-1)))

    def add_fault(self, owner: Owner, **changes: Any) -> Fault:
        """Write a fault of a run."""
        fault = a_fault(owner.run_id, owner.epoch, **changes)
        with self.store.write() as connection:
            faults.add(connection, self.namespace, fault)
        return fault

    def faults(self, run_id: RunId) -> list[Fault]:
        with self.store.read() as connection:
            return faults.of_run(connection, run_id)

    def posted(self) -> list[str]:
        """The queues of the messages that lie in the outbox."""
        with self.store.read() as connection:
            found = connection.execute(
                select(outbox.c.queue).where(outbox.c.namespace == self.namespace).order_by(outbox.c.id)
            )
            return list(found.scalars())

    def close(self) -> None:
        for lease in self.leases:
            lease.end()
        self.store.close()


def a_fault(run_id: RunId, epoch: int = 1, **changes: Any) -> Fault:
    """A fault of a run's step."""
    values: dict[str, Any] = {
        "id": FaultId(new_id()),
        "run_id": run_id,
        "path": StepPath("1"),
        "kind": FaultKind.ACTIVITY,
        "name": "charge",
        "state": FaultState.OPEN,
        "epoch": epoch,
        "attempt": 1,
        "type": "builtins.TimeoutError",
        "lineage": ("builtins.TimeoutError", "builtins.Exception"),
        "message": "too slow",
        "args": "[]",
        "args_exact": True,
        "traceback": "",
        "own_answer": None,
        "declared_answer": None,
        "http_status": None,
        "after": None,
        "ladder": "[]",
        "raised_at": datetime.now(UTC),
    }
    return Fault(**(values | changes))


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do several things in threads of their own, begun together; raises what the first of them raised."""
    gate = threading.Barrier(len(works))

    def one(work: Callable[[], T]) -> T:
        gate.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result(60) for done in [pool.submit(one, work) for work in works]]


class Wire:
    """The line to the database, at the moment of a COMMIT. ``cut`` arms it; it breaks once."""

    def __init__(self, store: Store) -> None:
        self._error = psycopg.OperationalError if store.dialect == "postgresql" else sqlite3.OperationalError
        self._after: bool | None = None
        self.cuts = 0

    def cut(self, *, after: bool) -> None:
        """Lose the answer to the next COMMIT: ``after`` the database has carried it out, or before it got there."""
        self._after = after

    def commit(self, real: Callable[[Any], None], connection: Any) -> None:
        after, self._after = self._after, None
        if after is None:
            real(connection)
            return
        self.cuts += 1
        if after:
            real(connection)
        else:
            connection.rollback()
        raise self._error("disk I/O error: the answer was lost")


@contextmanager
def breakable(store: Store) -> Iterator[Wire]:
    """Put a breakable line between SQLAlchemy and the driver: commits are real, only their answers are lost."""
    wire, dialect = Wire(store), store.engine.dialect
    real = dialect.do_commit

    def do_commit(dbapi_connection: Any) -> None:
        wire.commit(real, dbapi_connection)

    dialect.do_commit = do_commit  # type: ignore[method-assign]
    try:
        yield wire
    finally:
        dialect.do_commit = real  # type: ignore[method-assign]
