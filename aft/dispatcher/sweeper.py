"""The sweeper: finds what a lost message, a dead worker or a late effect left lying, and sets it going again.

- Faults that are still open long after they were raised: decided as if their message had come.
- Runs of workers whose lease is over: taken away from them, as faults of kind *abort*.
- Effects that arrived late: dropped, undone or parked (see ``runs.late``).
- Runs that say they were compensated, above a child that is parked for such an effect: parked (see ``runs.families``).
- Runs that take longer than they were expected to: told, once.
- Due runs of flows that no live worker has: looked at again later, and later each time (``runs.unserved``).
- Runs that nothing would ever wake: woken, and told as an error (see ``runs.forgotten``).
- Runs that are parked: somebody outside is sent a notice, if the settings say where to (see ``runs.parked``).
- Records of what was done by hand: chained (see ``runs.audit_chain``).

Each in bounded batches, straight from the rows: the broker is never flooded with copies. Any number of sweepers may
run; rows that one holds are skipped by the others. Emits: EffectLate, RunParked, RunOverdue, RunForgotten,
FlowUnserved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, exists, select, update

from aft import names
from aft.brokers.base import Broker
from aft.clock import Clock
from aft.compensation import late_frames
from aft.dispatcher.intake import Intake
from aft.envelope import Message
from aft.errors import AftError, StoreError
from aft.fault import FaultState
from aft.ids import OrderId, new_id
from aft.recovery.backoff import Backoff
from aft.recovery.takeover import Takeover
from aft.runs import audit_chain, families, forgotten, inbox, late, overdue, parked, parking, unserved, waking
from aft.runs.late import Fate, Found
from aft.store import Store, leases, outbox
from aft.store.moments import later, now
from aft.store.refusals import is_about_rows
from aft.store.tables import faults, runs
from aft.telemetry import EffectLate, FlowUnserved, RunForgotten, RunParked, ServiceFailed, Telemetry, logger
from aft.texts import escape_unstorable, shorten

#: Rows of each kind that one round looks at.
BATCH = 200
#: Rounds between two prunings of workers that are long gone, and of messages that reach nobody.
PRUNE_EVERY = 1000
#: Rounds between two looks at runs above one that is parked after its end: all that are parked are gone through.
ABOVE_EVERY = 4
#: Rounds between two looks at runs that nothing would ever wake: all that have no owner are gone through.
FORGOTTEN_EVERY = 60
#: Rounds between two looks at records of the audit that are not chained yet.
CHAIN_EVERY = 4
#: Seconds by which the clocks of processes may differ from the database's.
CLOCKS = 60.0


class Sweeper:
    """Sweeps one namespace. One thread at a time."""

    def __init__(
        self,
        namespace: str,
        store: Store,
        intake: Intake,
        takeover: Takeover,
        clock: Clock,
        telemetry: Telemetry,
        *,
        grace: timedelta,
        lease: timedelta,
        notify_parked: str | None = None,
        broker: Broker | None = None,
    ) -> None:
        """``notify_parked`` is the URL that notices of parked runs are sent to; None: nobody is told.

        ``broker`` is one to be kept tidy, too.
        """
        self._namespace = namespace
        self._store = store
        self._intake = intake
        self._takeover = takeover
        self._clock = clock
        self._telemetry = telemetry
        self._grace = grace
        self._lease = lease
        self._notify_parked = notify_parked
        self._broker = broker
        #: A dead worker is noticed within a quarter of a lease after it expired.
        self._pause = min(grace / 2, lease / 4, timedelta(seconds=1)).total_seconds()
        self._rounds = 0
        # What the database refuses to change stays where it is found: it is tried again, and told, less and less often.
        self._undecided, self._unsettled, self._untold = Backoff(clock), Backoff(clock), Backoff(clock)

    def step(self) -> float:
        """One round; straight to the next if a batch was full. What fails with one kind does not stop the others."""
        swept: int = 0
        errors: list[Exception] = []
        for sweep in (
            self._takeover.rescue,
            self.decide_forgotten,
            self.settle_late,
            self.park_above,
            self.tell_overdue,
            self.postpone_unserved,
            self.wake_forgotten,
            self.tell_parked,
            self.chain_audit,
            self.prune,
        ):
            try:
                swept = max(swept, sweep())
            except Exception as error:
                errors.append(error)
        self._rounds += 1
        if errors:
            raise errors[0]
        return 0.0 if swept >= BATCH else self._pause

    def prune(self) -> int:
        """Forget workers that are long gone, here and at the broker."""
        if self._rounds % PRUNE_EVERY == 0:
            leases.prune(self._store, self._namespace, self._lease)
            if self._broker is not None:
                self._broker.prune(self._namespace)
        return 0

    def decide_forgotten(self) -> int:
        """Decide about faults whose message did not come."""
        statement = (
            select(faults.c.id)
            .join(runs, (runs.c.id == faults.c.run_id) & (runs.c.epoch == faults.c.epoch))
            .where(
                faults.c.namespace == self._namespace,
                faults.c.state == FaultState.OPEN.value,
                runs.c.worker_id.is_(None),
                # The database's clock, unlike the fault's own time: it was written in the same transaction. But letters
                # that come change it, too, and may keep coming.
                (runs.c.updated_at <= later(-self._grace.total_seconds()))
                | (faults.c.raised_at <= later(-self._grace.total_seconds() - CLOCKS)),
            )
            .order_by(faults.c.raised_at)
            .limit(BATCH)
        )
        if put_off := self._undecided.waiting():
            statement = statement.where(faults.c.id.not_in(put_off))
        with self._store.read() as connection:
            ids = list(connection.execute(statement).scalars())
        decided = self._decide(ids) if ids else set[str]()
        self._undecided.note(fault_id for fault_id in ids if fault_id not in decided)
        return len(decided)

    def _decide(self, ids: list[str]) -> set[str]:
        try:
            return {fault_id for fault_id, _ in self._intake.decide(ids)}
        except AftError as error:
            if not (isinstance(error, StoreError) and error.locked):
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
        """Park runs that say they were compensated, while an effect stands that arrived late in a child of theirs."""
        if self._rounds % ABOVE_EVERY:
            return 0
        with self._store.read() as connection:
            found = families.find_standing(connection, self._namespace, BATCH)
        for child in found:
            with self._store.write() as connection:
                parked_now = families.park_parent(connection, self._namespace, child, self._clock.now())
            if parked_now is not None:
                self._telemetry.emit(RunParked(run=parked_now[0], reason=parked_now[1]))
        return len(found)

    def tell_overdue(self) -> int:
        """Tell of runs that take longer than they were expected to, each once."""
        with self._store.read() as connection:
            if not overdue.any_overdue(connection, self._namespace):
                return 0
        with self._store.write() as connection:
            events = overdue.tell_overdue(connection, self._namespace, BATCH)
        for event in events:
            self._telemetry.emit(event)
        return len(events)

    def postpone_unserved(self) -> int:
        """Look later, and later each time, at due runs of flows that no live worker has; tells how many."""
        with self._store.read() as connection:
            served = unserved.served_flows(connection, self._namespace)
            if not unserved.any_unserved(connection, self._namespace, served):
                return 0
        with self._store.write() as connection:
            # Asked again: a worker that has just started takes them at once.
            served = unserved.served_flows(connection, self._namespace)
            found = unserved.postpone(connection, self._namespace, served, self._grace.total_seconds())
        for (flow, version), count in Counter(found).items():
            self._telemetry.emit(FlowUnserved(flow=flow, version=version, runs=count))
        return len(found)

    def wake_forgotten(self) -> int:
        """Wake the runs that nothing would ever wake; tells how many."""
        if self._rounds % FORGOTTEN_EVERY:
            return 0
        with self._store.read() as connection:
            if not forgotten.any_forgotten(connection, self._namespace):
                return 0
        with self._store.write() as connection:
            woken = forgotten.wake(connection, self._namespace, BATCH)
        for run_id in woken:
            self._telemetry.emit(RunForgotten(run=run_id))
        return len(woken)

    def tell_parked(self) -> int:
        """Write a notice of each run that waits for a person; one that cannot be written stops no other."""
        if self._notify_parked is None:
            return 0
        with self._store.read() as connection:
            untold = parked.find_untold(connection, self._namespace, BATCH)
        told, put_off, failed = 0, self._untold.waiting(), list[str]()
        for run_id in untold:
            if run_id in put_off:
                continue
            try:
                with self._store.write() as connection:
                    told += parked.tell(connection, self._namespace, run_id, self._notify_parked)
            except Exception as error:
                if not is_about_rows(error):
                    raise
                failed.append(run_id)
                self._telemetry.emit(ServiceFailed(service="sweep", why=f"notice of run {run_id}: {error}"))
        self._untold.note(failed)
        return told

    def chain_audit(self) -> int:
        """Chain what was done by hand; tells how many records."""
        if self._rounds % CHAIN_EVERY:
            return 0
        with self._store.read() as connection:
            if not audit_chain.any_loose(connection):
                return 0
        with self._store.write() as connection:
            return audit_chain.extend(connection, BATCH)

    def settle_late(self) -> int:
        """Drop, undo or park what arrived late."""
        with self._store.read() as connection:
            found = [one.id for one in late.find_open(connection, self._namespace, BATCH, lock=False)]
        put_off = self._unsettled.waiting()
        ids = [effect_id for effect_id in found if effect_id not in put_off]
        if not ids:
            return 0
        try:
            if not put_off:
                return self._settle_open()
        except Exception as error:
            if not is_about_rows(error):
                raise
        # One of them cannot be settled as it should; the others can.
        settled = {effect_id: self._settle_alone(effect_id) for effect_id in ids}
        self._unsettled.note(effect_id for effect_id, count in settled.items() if count is None)
        return sum(count or 0 for count in settled.values())

    def _settle_open(self, just: str | None = None, refused: str | None = None) -> int:
        """Settle all that can be, or just one, in one transaction; ``refused`` is why it can only be parked."""
        settled: list[tuple[Found, Fate]] = []
        with self._store.write() as connection:
            for effect in late.find_open(connection, self._namespace, BATCH, just):
                fate = late.decide(effect) if refused is None else Fate.PARK
                if fate is not Fate.WAIT and self._settle(connection, effect, fate, refused):
                    settled.append((effect, fate))
        for effect, fate in settled:
            self._tell(effect, fate, refused)
        return len(settled)

    def _settle_alone(self, effect_id: str) -> int | None:
        """Settle one; what the database refuses parks the run, with the reason. None: it refuses that too, and is told.

        Else tells how many were settled.
        """
        refused: str | None = None
        for _ in range(2):
            try:
                return self._settle_open(effect_id, refused)
            except Exception as error:
                if not is_about_rows(error):
                    raise
                refused = shorten(escape_unstorable(str(error) or repr(error)))
        self._telemetry.emit(ServiceFailed(service="sweep", why=f"late effect {effect_id}: {refused}"))
        return None

    def _settle(self, connection: Connection, found: Found, fate: Fate, refused: str | None) -> bool:
        if fate is Fate.UNDO and not self._owe(connection, found):
            return False
        if fate is Fate.PARK and not self._park(connection, found, refused):
            return False
        if fate is not Fate.UNDO:
            late.settle(connection, found.id, fate)
        return True

    def _owe(self, connection: Connection, found: Found) -> bool:
        """Push a frame of its own for the effect, and wake the run to undo it before it goes on, or stays as it is."""
        effect, order = found.effect, OrderId(new_id())
        row = connection.execute(
            update(runs)
            .where(*_is_free(found))
            .values(seq=runs.c.seq + 1, updated_at=now(), **waking.wake_up(order, self._grace))
            .returning(runs.c.seq, runs.c.flow, runs.c.version)
        ).one_or_none()
        if row is None:
            return False  # somebody has the run just now; the next round looks again
        late_frames.owe(connection, found, row.seq, self._clock.now())
        message = Message.about_order(effect.run_id, order, self._clock.now())
        address = names.resume_run(self._namespace, row.flow, row.version)
        outbox.put(connection, self._namespace, [(address, message.encode())])
        return True

    def _park(self, connection: Connection, found: Found, refused: str | None) -> bool:
        """Park the run, unless somebody has it; what it waits for lies in its row, for when a person lets it go on."""
        run_id = found.effect.run_id
        waking.lock(connection, self._namespace, run_id)
        if inbox.find_new_order(connection, run_id) is not None:
            return False  # carried out first: its owner would not know what the run was parked for
        return parking.park(connection, run_id, _reason(found, refused), *_is_free(found))

    def _tell(self, found: Found, fate: Fate, refused: str | None) -> None:
        effect = found.effect
        self._telemetry.emit(EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, fate=fate.value))
        if fate is Fate.PARK:
            self._telemetry.emit(RunParked(run=effect.run_id, reason=_reason(found, refused)))


def _is_free(found: Found) -> tuple[ColumnElement[bool], ...]:
    """The conditions that nobody has the run, and that it may be woken or parked for a late effect now.

    An ended one deals with one late effect after the other. One that goes on may be in a ladder, or wait: it is woken
    as by a signal; only a fault that awaits its decision comes first.
    """
    here = (
        runs.c.id == found.effect.run_id,
        runs.c.worker_id.is_(None),
        runs.c.status == found.status.value,
    )
    if found.status.ended:
        live = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.PARKED)
        return (*here, runs.c.wake_id.is_(None), ~_has_fault(live))
    return (*here, ~_has_fault((FaultState.OPEN,)))


def _has_fault(states: Collection[FaultState]) -> ColumnElement[bool]:
    return exists().where(faults.c.run_id == runs.c.id, faults.c.state.in_([state.value for state in states]))


def _reason(found: Found, refused: str | None) -> str:
    effect = found.effect
    went_on = "ended" if found.status.ended else "gone on"
    why = "has no compensator" if refused is None else f"cannot be undone: {refused}"
    return (
        f"late effect: activity {effect.activity!r} (step {effect.path}) had its effect after the run had {went_on} "
        f"without it, and {why}; undo it by hand, then retry"
    )
