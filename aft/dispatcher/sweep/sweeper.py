"""The sweeper: finds work stranded by a lost message, a dead worker or a late effect, and restarts it.

- Faults that are open long after they were raised: decided as if their message had come.
- Runs of workers whose lease is expired: rescued, with a fault of kind *abort*.
- Late effects: dropped, undone or parked (see ``dispatcher.sweep.late_effects``).
- Compensated runs above a child that is parked for such an effect: parked (see ``runs.wakes.child_runs``).
- Runs that take longer than expected: reported, once.
- Due runs of flows that no live worker serves: postponed, with back-off (``runs.wakes.unserved_runs``).
- Runs that nothing would ever wake: woken, and reported as an error (see ``runs.wakes.stranded_runs``).
- Parked runs: a notice is written, if the settings name a receiver (see ``runs.records.parked_runs``).
- Audit records: chained (see ``runs.records.audit_chain``).

Each in bounded batches, straight from the rows: the broker is never flooded with copies. Any number of sweepers may
run; rows that somebody has locked are skipped. A round in which there is nothing to do costs one round trip:
one query for each sweep that says whether it has anything to do. Emits: EffectLate, RunParked, RunOverdue,
RunForgotten, FlowUnserved, ServiceFailed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import ColumnElement, Select, select

from aft.brokers.base import Broker
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.intake import Intake
from aft.dispatcher.sweep.late_effects import LateEffectSweep
from aft.errors import AftError, StoreError
from aft.fault import FaultState
from aft.recovery.backoff import Backoff
from aft.recovery.takeover import Takeover
from aft.runs.ownership.rescue import ANY_EXPIRED
from aft.runs.records import audit_chain, late_effects, overdue_runs, parked_runs
from aft.runs.wakes import child_runs, stranded_runs, unserved_runs
from aft.store import leases
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import later
from aft.store.refusals import is_about_rows, is_locked
from aft.store.tables import faults, runs
from aft.telemetry import FlowUnserved, RunForgotten, RunParked, ServiceFailed, logger

#: Rows of each kind that one round handles.
BATCH = 200
#: Rounds between two prunings of workers that are long gone, and of the broker.
PRUNE_EVERY = 1000
#: Rounds between two checks of runs above a child parked after its end: they scan all parked runs.
ABOVE_EVERY = 4
#: Rounds between two checks for runs that nothing would ever wake: they scan all runs without an owner.
STRANDED_EVERY = 60
#: Rounds between two checks for audit records that are not chained yet.
CHAIN_EVERY = 4
#: Returns how many rows it handled.
Sweep = Callable[[], int]
#: Seconds by which the clocks of processes may differ from the database's.
CLOCKS = 60.0


class Sweeper:
    """Sweeps one namespace. One thread at a time."""

    def __init__(
        self,
        deps: DispatcherDependencies,
        intake: Intake,
        takeover: Takeover,
        *,
        lease: timedelta,
        notify_parked: str | None = None,
        broker: Broker | None = None,
    ) -> None:
        """``notify_parked`` is the URL that notices of parked runs are sent to; None: no notices are written.

        ``broker`` is pruned from time to time, if given.
        """
        self._namespace = deps.namespace
        self._store = deps.store
        self._clock = deps.clock
        self._telemetry = deps.telemetry
        self._grace = deps.grace
        self._intake = intake
        self._takeover = takeover
        self._lease = lease
        self._notify_parked = notify_parked
        self._broker = broker
        #: A dead worker is noticed within a quarter of a lease after it expired.
        self._pause = min(deps.grace / 2, lease / 4, timedelta(seconds=1)).total_seconds()
        self._rounds = 0
        # What the database refuses to change stays where it is found: it is tried again, and reported, with back-off.
        self._undecided, self._unreported = Backoff(deps.clock), Backoff(deps.clock)
        self._sweeps = self._list_sweeps(LateEffectSweep(deps, BATCH))

    def _list_sweeps(self, late: LateEffectSweep) -> list[tuple[PreparedQuery, Sweep]]:
        """Return the sweeps of each round, each with the query that finds out whether it may have anything to do."""
        sweeps: list[tuple[PreparedQuery, Sweep]] = [
            (ANY_EXPIRED, self._takeover.rescue),
            (PreparedQuery.of(self._unannounced(GIVEN).limit(1)), self.decide_unannounced),
            (late_effects.ANY_OPEN, late.sweep),
            (overdue_runs.ANY_OVERDUE, self.report_overdue),
            (unserved_runs.ANY_LONG_DUE, self.postpone_unserved),
        ]
        return sweeps if self._notify_parked is None else [*sweeps, (parked_runs.ANY_UNREPORTED, self.report_parked)]

    def step(self) -> float:
        """Run one round, and the next at once if a batch was full. A sweep that fails does not stop the others."""
        swept: int = 0
        errors: list[Exception] = []
        found = self._store.query([(query, self._namespace) for query, _ in self._sweeps])
        due = [sweep for (_, sweep), rows in zip(self._sweeps, found, strict=True) if rows]
        for sweep in (*due, self.park_above, self.wake_stranded, self.chain_audit, self.prune):
            try:
                swept = max(swept, sweep())
            except Exception as error:
                errors.append(error)
        self._rounds += 1
        if errors:
            raise errors[0]
        return 0.0 if swept >= BATCH else self._pause

    def prune(self) -> int:
        """Delete workers that are long gone, here and at the broker."""
        if self._rounds % PRUNE_EVERY == 0:
            leases.prune(self._store, self._namespace, self._lease)
            if self._broker is not None:
                self._broker.prune(self._namespace)
        return 0

    def decide_unannounced(self) -> int:
        """Decide about faults whose message did not arrive."""
        statement = self._unannounced(self._namespace).order_by(faults.c.raised_at).limit(BATCH)
        if put_off := self._undecided.waiting():
            statement = statement.where(faults.c.id.not_in(put_off))
        with self._store.read() as connection:
            ids = [row.id for row in connection.execute(statement)]
        decided = self._decide(ids) if ids else set[str]()
        self._undecided.note(fault_id for fault_id in ids if fault_id not in decided)
        return len(decided)

    def _unannounced(self, namespace: str | ColumnElement[str]) -> Select[tuple[str]]:
        """Select faults that are open for longer than their messages take."""
        return (
            select(faults.c.id)
            .join(runs, (runs.c.id == faults.c.run_id) & (runs.c.epoch == faults.c.epoch))
            .where(
                faults.c.namespace == namespace,
                faults.c.state == FaultState.OPEN.value,
                runs.c.worker_id.is_(None),
                # The database's clock, unlike the fault's own time: it was written in the same transaction. But inbox
                # items change it, too, and may keep coming.
                (runs.c.updated_at <= later(-self._grace.total_seconds()))
                | (faults.c.raised_at <= later(-self._grace.total_seconds() - CLOCKS)),
            )
        )

    def _decide(self, ids: list[str]) -> set[str]:
        try:
            return {fault_id for fault_id, _ in self._intake.decide(ids)}
        except AftError as error:
            if not is_locked(error):
                raise
            return self._decide_apart(ids)
        except Exception:
            # One of them cannot be decided; the others can.
            return self._decide_apart(ids)

    def _decide_apart(self, ids: list[str]) -> set[str]:
        decided: set[str] = set()
        for fault_id in ids:
            try:
                decided |= {decided_id for decided_id, _ in self._intake.decide([fault_id])}
            except Exception as error:
                logger.exception("fault cannot be decided: fault=%s", fault_id)
                self._telemetry.emit(ServiceFailed(service="sweep", why=f"fault {fault_id}: {error!r}"))
        return decided

    def park_above(self) -> int:
        """Park compensated runs while a late effect is not undone in a child of theirs."""
        if self._rounds % ABOVE_EVERY:
            return 0
        with self._store.read() as connection:
            found = child_runs.find_parked_after_end(connection, self._namespace, BATCH)
        for child in found:
            try:
                with self._store.write(patient=False) as connection:
                    parked_now = child_runs.park_parent(connection, self._namespace, child, self._clock.now())
            except StoreError as error:
                if not is_locked(error):
                    raise
                continue  # somebody has locked one of the two, and may be paused: the next round tries again
            if parked_now is not None:
                self._telemetry.emit(RunParked(run=parked_now[0], reason=parked_now[1]))
        return len(found)

    def report_overdue(self) -> int:
        """Report runs that take longer than expected, each once."""
        with self._store.write() as connection:
            events = overdue_runs.take_overdue(connection, self._namespace, BATCH)
        for event in events:
            self._telemetry.emit(event)
        return len(events)

    def postpone_unserved(self) -> int:
        """Postpone due runs of flows that no live worker serves, longer each time; return how many."""
        with self._store.read() as connection:
            served = unserved_runs.served_flows(connection, self._namespace)
            if not unserved_runs.any_unserved(connection, self._namespace, served):
                return 0
        with self._store.write() as connection:
            # Asked again: a worker that has just started takes them at once.
            served = unserved_runs.served_flows(connection, self._namespace)
            found = unserved_runs.postpone(connection, self._namespace, served, self._grace.total_seconds())
        for (flow, version), count in Counter(found).items():
            self._telemetry.emit(FlowUnserved(flow=flow, version=version, runs=count))
        return len(found)

    def wake_stranded(self) -> int:
        """Wake the runs that nothing would ever wake; return how many."""
        if self._rounds % STRANDED_EVERY:
            return 0
        with self._store.read() as connection:
            if not stranded_runs.any_stranded(connection, self._namespace):
                return 0
        with self._store.write() as connection:
            woken = stranded_runs.wake(connection, self._namespace, BATCH)
        for run_id in woken:
            self._telemetry.emit(RunForgotten(run=run_id))
        return len(woken)

    def report_parked(self) -> int:
        """Write a notice of each parked run; one that cannot be written stops no other."""
        if self._notify_parked is None:
            return 0
        with self._store.read() as connection:
            unreported = parked_runs.find_unreported(connection, self._namespace, BATCH)
        reported, put_off, failed = 0, self._unreported.waiting(), list[str]()
        for run_id in unreported:
            if run_id in put_off:
                continue
            try:
                with self._store.write() as connection:
                    reported += parked_runs.report(connection, self._namespace, run_id, self._notify_parked)
            except Exception as error:
                if not is_about_rows(error):
                    raise
                failed.append(run_id)
                self._telemetry.emit(ServiceFailed(service="sweep", why=f"notice of run {run_id}: {error}"))
        self._unreported.note(failed)
        return reported

    def chain_audit(self) -> int:
        """Chain new audit records; return how many."""
        if self._rounds % CHAIN_EVERY:
            return 0
        with self._store.read() as connection:
            if not audit_chain.any_loose(connection):
                return 0
        with self._store.write(patient=False) as connection:
            return audit_chain.extend(connection, BATCH)
