"""Intake: faults come off the queue in batches, are classified and routed; each batch is one transaction.

Who may run at the same time: several dispatchers, with the same fault in hand twice, and the sweeper with it a third
time. The fault's row decides: only ``open`` ones whose run has had no owner since are decided about, under a lock on
both rows; whoever comes second finds nothing to do. A crash before the commit leaves the fault open and the message
unacknowledged; after it, the decision's own message is in the outbox, and the repeated fault message is stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, func, select, update

from aft import names
from aft.brokers.base import Broker, Consumer
from aft.clock import Clock
from aft.dispatcher.classify import classify
from aft.dispatcher.route import GiveUp, Park, Retry, Route, route
from aft.envelope import Kind, Message
from aft.errors import BrokerError, Unroutable
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import FaultId, RunId, StepPath
from aft.recovery.delays import SHORTEST, Delays
from aft.recovery.door import Admitted, Door
from aft.recovery.relay import Relay
from aft.runs import faults as fault_rows
from aft.runs import inbox, waits, waking
from aft.runs.states import Status, sources
from aft.runs.waits import Wait, WaitKind
from aft.store import Store, outbox
from aft.store.moments import later, now
from aft.store.outbox import HOLD, OutboxRow
from aft.store.tables import faults, runs
from aft.telemetry import FaultRouted, RunParked, ServiceFailed, Telemetry

#: Faults decided in one transaction.
BATCH = 200
#: Seconds that one look at an empty queue takes.
PATIENCE = 0.5


@dataclass(frozen=True, slots=True)
class Decision:
    """A fault, what becomes of it, and the queue its run goes to; None: the timer's, or a person's."""

    fault: Fault
    route: Route
    queue: str | None


class Intake:
    """Decides about faults. ``step`` belongs to one thread; ``decide`` is thread-safe."""

    def __init__(
        self,
        namespace: str,
        store: Store,
        broker: Broker,
        delays: Delays,
        relay: Relay,
        clock: Clock,
        telemetry: Telemetry,
        grace: timedelta,
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._broker = broker
        self._delays = delays
        self._relay = relay
        self._clock = clock
        self._telemetry = telemetry
        self._grace = grace.total_seconds()
        self._door = Door(namespace, store, telemetry, (Kind.FAULT,))
        self._in_doubt = False
        self._consumer: Consumer | None = None

    def step(self) -> float:
        """Receive, decide, acknowledge: one batch."""
        if self._in_doubt:
            # Asked first: each round with a database that is away would cost the messages one of their deliveries.
            with self._store.read() as connection:
                connection.execute(select(1))
                self._in_doubt = False
        try:
            if self._consumer is None:
                self._consumer = self._broker.consumer([names.faults(self._namespace)], prefetch=2 * BATCH)
            deliveries = self._consumer.receive(BATCH, PATIENCE)
            if deliveries:
                self._admit(self._door.admit(deliveries))
                self._consumer.ack(deliveries)
        except Unroutable:
            # The broker has lost its queues: wiped, or a new node. What was in them is the sweeper's.
            self.close()
            self._delays.declare(())
        except Exception:
            self.close()
            self._in_doubt = True
            raise
        return 0.0

    def close(self) -> None:
        """Stop receiving; what was not acknowledged comes again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def decide(self, ids: Sequence[str]) -> set[tuple[FaultId, RunId]]:
        """Decide about those of these faults that are still open; returns which, with their runs."""
        with self._store.read() as connection:
            found = self._open(connection, ids, lock=False)
        # Queues are made before the transaction: it must not wait for a broker.
        decisions = {fault.id: self._choose(fault) for fault in found}
        if not decisions:
            return set()
        with self._store.write() as connection:
            still = {fault.id for fault in self._open(connection, list(decisions), lock=True)}
            taken = [decision for decision in decisions.values() if decision.fault.id in still]
            written = [row for decision in taken for row in self._carry_out(connection, decision)]
        for decision in taken:
            self._tell(decision)
        self._relay.try_send(written)
        return {(decision.fault.id, decision.fault.run_id) for decision in taken}

    def _admit(self, admitted: Sequence[Admitted]) -> None:
        named = {(one.message.fault, one.message.run): one for one in admitted}
        decided = self.decide([str(fault) for fault, _ in named])
        # A fault is decided under its own name, whatever run the message named; it must have been the right one.
        self._door.turn_away([one for pair, one in named.items() if pair not in decided], _why_ignored)

    def _open(self, connection: Connection, ids: Sequence[str], *, lock: bool) -> list[Fault]:
        statement = (
            select(faults)
            .join(runs, runs.c.id == faults.c.run_id)
            .where(
                faults.c.id.in_(list(ids)),
                faults.c.namespace == self._namespace,
                faults.c.state == FaultState.OPEN.value,
                runs.c.epoch == faults.c.epoch,
                runs.c.worker_id.is_(None),
            )
            # The same order for all: a run may have several, and two dispatchers must not wait for each other.
            .order_by(faults.c.run_id, faults.c.id)
        )
        if lock:
            statement = statement.with_for_update()
        return [fault for row in connection.execute(statement) if (fault := self._read(row)) is not None]

    def _read(self, row: Row[Any]) -> Fault | None:
        try:
            return fault_rows.from_row(row)
        except (ValueError, TypeError, RecursionError) as error:
            # A row that somebody edited by hand: the others of its batch are decided all the same.
            why = f"fault {row.id} cannot be read: {error}"
            self._telemetry.emit(ServiceFailed(service="intake", why=why))
            return None

    def _choose(self, fault: Fault) -> Decision:
        chosen = route(fault, classify(fault))
        if isinstance(chosen, GiveUp):
            return Decision(fault, chosen, names.compensate(self._namespace))
        if isinstance(chosen, Park):
            return Decision(fault, chosen, None)
        return Decision(fault, chosen, self._queue_for(chosen))

    def _queue_for(self, chosen: Retry) -> str | None:
        if chosen.alone or chosen.signal is not None or chosen.wait is None:
            return None
        if chosen.wait < SHORTEST:
            return names.resume(self._namespace)
        if not chosen.declared:
            return None
        try:
            return self._delays.queue_for(chosen.wait)
        except BrokerError:
            return None  # the broker is away: the timer keeps the time meanwhile

    # Carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(self, connection: Connection, decision: Decision) -> list[OutboxRow]:
        fault, chosen = decision.fault, decision.route
        if isinstance(chosen, Retry):
            self._await(connection, decision, chosen)
        elif isinstance(chosen, GiveUp):
            self._mark(connection, decision, FaultState.FINAL)
            self._wake(connection, fault, 0.0, self._grace)
        else:
            self._mark(connection, decision, FaultState.PARKED)
            self._set_run(
                connection,
                fault,
                status=Status.PARKED,
                reason=_reason(fault, chosen),
                wake_id=None,
                due_at=None,
                sweep_at=None,
            )
        if decision.queue is None:
            return []
        kind = Kind.COMPENSATE if isinstance(chosen, GiveUp) else Kind.RESUME
        message = Message.about_fault(kind, fault.run_id, fault.id, self._clock.now())
        return outbox.put(connection, self._namespace, [(decision.queue, message.encode())], hold=HOLD)

    def _await(self, connection: Connection, decision: Decision, chosen: Retry) -> None:
        seconds = None if chosen.wait is None else chosen.wait.total_seconds()
        if chosen.signal is not None and not self._await_signal(connection, decision.fault, chosen):
            seconds = 0.0  # it came before the fault was decided about
        self._mark(
            connection,
            decision,
            FaultState.WAITING,
            level=chosen.level,
            try_in_level=chosen.try_in_level,
            wait_seconds=seconds,
            due_at=None if seconds is None else later(seconds),
        )
        # Without a queue the timer is the way back; with one it comes in only if the message does not.
        slack = 0.0 if decision.queue is None else self._grace
        self._wake(connection, decision.fault, seconds, slack)

    def _await_signal(self, connection: Connection, fault: Fault, chosen: Retry) -> bool:
        """Let the run await a signal, unless it is there already; its row is locked."""
        run = waking.lock(connection, self._namespace, fault.run_id)
        letters = inbox.unread(connection, fault.run_id)
        if run is None or any(letter.payload.get("name") == chosen.signal for letter in letters):
            return False
        here = connection.execute(select(now())).scalar_one()
        wait = Wait(fault.path or StepPath(""), WaitKind.FAULT, chosen.signal or "", here)
        connection.execute(update(runs).where(runs.c.id == fault.run_id).values(waits=waits.encode([*run.waits, wait])))
        return True

    def _wake(self, connection: Connection, fault: Fault, seconds: float | None, slack: float) -> None:
        """Let the run go on when this fault is due, unless a branch of it does before, or a person has stopped it."""
        changes: dict[str, Any] = {"wake_id": func.coalesce(runs.c.wake_id, fault.id)}
        if seconds is not None:
            sweep = case((runs.c.priority > 0, later(seconds)), else_=later(seconds + slack))
            for column, moment in ((runs.c.due_at, later(seconds)), (runs.c.sweep_at, sweep)):
                changes[column.name] = _earliest(column, moment, runs.c.deadline_at)
        else:
            for column in (runs.c.due_at, runs.c.sweep_at):
                changes[column.name] = _earliest(column, runs.c.deadline_at)
        going = runs.c.status.not_in([Status.PARKED.value, Status.SUSPENDED.value])
        self._set_run(connection, fault, going, **changes)

    def _mark(self, connection: Connection, decision: Decision, state: FaultState, **more: Any) -> None:
        connection.execute(
            update(faults)
            .where(faults.c.id == decision.fault.id)
            .values(state=state.value, queue=decision.queue, verdict=decision.route.why, decided_at=now(), **more)
        )

    def _set_run(self, connection: Connection, fault: Fault, *of: ColumnElement[bool], **changes: Any) -> None:
        statement = update(runs).where(runs.c.id == fault.run_id, runs.c.epoch == fault.epoch, *of)
        if "status" in changes:
            allowed = [source.value for source in sources(changes["status"])]
            statement = statement.where(runs.c.status.in_(allowed))
        connection.execute(statement.values(updated_at=now(), **changes))

    def _tell(self, decision: Decision) -> None:
        fault, chosen = decision.fault, decision.route
        state = {Retry: FaultState.WAITING, GiveUp: FaultState.FINAL, Park: FaultState.PARKED}[type(chosen)]
        self._telemetry.emit(
            FaultRouted(
                run=fault.run_id,
                fault=fault.id,
                activity=fault.name,
                state=state.value,
                queue=decision.queue,
                verdict=chosen.why,
                wait=chosen.wait if isinstance(chosen, Retry) else None,
            )
        )
        if isinstance(chosen, Park):
            self._telemetry.emit(RunParked(run=fault.run_id, reason=_reason(fault, chosen)))


def _earliest(first: ColumnElement[Any], *others: ColumnElement[Any]) -> ColumnElement[Any]:
    """The earliest of these moments, of those that there are."""
    found: ColumnElement[Any] = first
    for other in others:
        found = case((found.is_(None) | (other < found), other), else_=found)
    return found


def _why_ignored(row: Row[Any], message: Message) -> str:
    return "stale: the fault is decided"


def _reason(fault: Fault, chosen: Park) -> str:
    if fault.kind is FaultKind.ABORT:
        return chosen.why
    return f"compensator {fault.name!r} (step {fault.path}) failed: {fault}; {chosen.why}"
