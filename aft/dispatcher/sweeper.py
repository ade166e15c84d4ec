"""The sweeper: finds what a lost message, a dead worker or a late effect left lying, and sets it going again.

- Faults that are still open long after they were raised: decided as if their message had come.
- Runs of workers whose lease is over: taken away from them, as faults of kind *abort*.
- Effects that arrived late: dropped, undone or parked (see ``runs.late``).
- Runs that take longer than they were expected to: told, once.

Each in bounded batches, straight from the rows: the broker is never flooded with copies. Any number of sweepers may
run; rows that one holds are skipped by the others. Emits: EffectLate, RunParked, RunOverdue.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, exists, select, update

from aft import names
from aft.clock import Clock
from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.dispatcher.intake import Intake
from aft.envelope import Message
from aft.errors import AftError, StoreError
from aft.fault import FaultState
from aft.ids import OrderId, new_id
from aft.recovery.takeover import Takeover
from aft.runs import late, overdue
from aft.runs.late import Fate, Found
from aft.runs.states import Status
from aft.store import Store, leases, outbox
from aft.store.moments import later, now
from aft.store.tables import faults, runs
from aft.telemetry import EffectLate, RunParked, ServiceFailed, Telemetry, logger

#: Rows of each kind that one round looks at.
BATCH = 200
#: Rounds between two prunings of workers that are long gone.
PRUNE_EVERY = 1000
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
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._intake = intake
        self._takeover = takeover
        self._clock = clock
        self._telemetry = telemetry
        self._grace = grace
        self._lease = lease
        #: A dead worker is noticed within a quarter of a lease after it expired.
        self._pause = min(grace / 2, lease / 4, timedelta(seconds=1)).total_seconds()
        self._rounds = 0

    def step(self) -> float:
        """One round; straight to the next if a batch was full. What fails with one kind does not stop the others."""
        swept: int = 0
        errors: list[Exception] = []
        for sweep in (self._takeover.rescue, self.decide_forgotten, self.settle_late, self.tell_overdue):
            try:
                swept = max(swept, sweep())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if self._rounds % PRUNE_EVERY == 0:
            leases.prune(self._store, self._namespace, self._lease)
        self._rounds += 1
        return 0.0 if swept >= BATCH else self._pause

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
        with self._store.read() as connection:
            ids = list(connection.execute(statement).scalars())
        try:
            return len(self._intake.decide(ids)) if ids else 0
        except AftError as error:
            if not (isinstance(error, StoreError) and error.locked):
                raise
            return self._decide_apart(ids)
        except Exception:
            # One of them cannot be decided; the others can.
            return self._decide_apart(ids)

    def _decide_apart(self, ids: list[str]) -> int:
        decided = 0
        for fault_id in ids:
            try:
                decided += len(self._intake.decide([fault_id]))
            except Exception as error:
                logger.exception("fault cannot be decided: fault=%s", fault_id)
                self._telemetry.emit(ServiceFailed(service="sweep", why=f"fault {fault_id}: {error!r}"))
        return decided

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

    def settle_late(self) -> int:
        """Drop, undo or park what arrived late."""
        with self._store.read() as connection:
            if not late.find_open(connection, self._namespace, BATCH):
                return 0
        settled: list[tuple[Found, Fate]] = []
        with self._store.write() as connection:
            for effect in late.find_open(connection, self._namespace, BATCH):
                fate = late.decide(effect)
                if fate is not Fate.WAIT and self._settle(connection, effect, fate):
                    settled.append((effect, fate))
        for effect, fate in settled:
            self._tell(effect, fate)
        return len(settled)

    def _settle(self, connection: Connection, found: Found, fate: Fate) -> bool:
        if fate is Fate.UNDO and not self._owe(connection, found):
            return False
        if fate is Fate.PARK and not self._park(connection, found):
            return False
        late.settle(connection, found.id, fate)
        return True

    def _owe(self, connection: Connection, found: Found) -> bool:
        """Push a frame of its own for the effect, and wake the ended run to undo it."""
        effect, order = found.effect, OrderId(new_id())
        seq = connection.execute(
            update(runs)
            .where(
                runs.c.id == effect.run_id,
                runs.c.worker_id.is_(None),
                runs.c.wake_id.is_(None),
                runs.c.status == found.status.value,
                ~_in_trouble(),
            )
            .values(
                seq=runs.c.seq + 1,
                wake_id=order,
                due_at=now(),
                sweep_at=later(self._grace.total_seconds()),
                updated_at=now(),
            )
            .returning(runs.c.seq)
        ).scalar()
        if seq is None:
            return False  # somebody has the run just now; the next round looks again
        frame = stack.fields(
            effect.path,
            effect.scope,
            effect.activity,
            effect.compensator or "",
            at=self._clock.now(),
            state=FrameState.LATE,
            key_generation=effect.key_generation,
            args=effect.args,
            value=effect.value,
        )
        stack.push(connection, effect.run_id, seq, frame)
        message = Message.about_order(effect.run_id, order, self._clock.now())
        outbox.put(connection, self._namespace, [(names.resume(self._namespace), message.encode())])
        return True

    def _park(self, connection: Connection, found: Found) -> bool:
        statement = update(runs).where(
            runs.c.id == found.effect.run_id,
            runs.c.worker_id.is_(None),
            runs.c.wake_id.is_(None),
            runs.c.status == found.status.value,
            ~_in_trouble(),
        )
        changes = {"status": Status.PARKED.value, "reason": _reason(found), "updated_at": now()}
        return bool(connection.execute(statement.values(**changes)).rowcount)

    def _tell(self, found: Found, fate: Fate) -> None:
        effect = found.effect
        self._telemetry.emit(EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, fate=fate.value))
        if fate is Fate.PARK:
            self._telemetry.emit(RunParked(run=effect.run_id, reason=_reason(found)))


def _in_trouble() -> ColumnElement[bool]:
    """Whether a fault of the run awaits a decision, a try or a person: one late effect after the other."""
    live = [state.value for state in (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.PARKED)]
    return exists().where(faults.c.run_id == runs.c.id, faults.c.state.in_(live))


def _reason(found: Found) -> str:
    effect = found.effect
    return (
        f"late effect: activity {effect.activity!r} (step {effect.path}) had its effect after the run had ended "
        "without it, and has no compensator; undo it by hand, then retry"
    )
