"""Writes decisions about faults one by one, in a transaction that the caller has begun.

Every kind of decision can be written here; most are plain, and one statement writes many of those
(``dispatcher.decisions_batch``). The caller has locked the fault's row and its run's, and both are as they were when
the decision was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, select, update

from aft import names
from aft.dispatcher.decide import Decision
from aft.dispatcher.exlets.decisions import again, fault_of
from aft.dispatcher.route import ApplyRuling, CarryOutExlet, GiveUp, ParkRun, RetryLater, Route
from aft.envelope import Message, MessageKind
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import RunId, StepPath
from aft.rules.exlets import plans
from aft.runs import park, waits
from aft.runs.records import inbox
from aft.runs.records.inbox import InboxVerb
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind
from aft.runs.wakes import wake
from aft.store import outbox
from aft.store.db_time import later, now
from aft.store.outbox import HOLD, OutboxRow
from aft.store.tables import faults, runs

#: Status and tags of runs, by their ids: they are stored with a fault when it is decided about.
Seen = Mapping[RunId, dict[str, str | None]]


class DecisionWriter:
    """Writes decisions about faults of one namespace; ``grace``: seconds until the timer replaces a lost message."""

    def __init__(self, namespace: str, grace: float) -> None:
        self._namespace = namespace
        self._grace = grace

    def carry_out(
        self, connection: Connection, decision: Decision, at: datetime, begun: list[str], seen: Seen
    ) -> list[OutboxRow]:
        """Write one decision; return its message, held in the outbox, and append the plan it began to ``begun``.

        ``seen`` is how the runs were before any of the batch was written, as ``look`` returns it.
        """
        fault, chosen = decision.fault, decision.route
        self._remember(connection, fault, seen)
        if isinstance(chosen, RetryLater):
            self._await(connection, decision, chosen)
        elif isinstance(chosen, GiveUp):
            self._mark(connection, decision, FaultState.FINAL)
            self._wake(connection, fault, 0.0, self._grace)
        elif isinstance(chosen, ApplyRuling):
            changed = fault_of(fault, chosen.ruling)
            self._mark(connection, decision, chosen.state, ruling=chosen.ruling.encode(), due_at=now(), **changed)
            self._wake(connection, fault, 0.0, self._grace)
        elif isinstance(chosen, CarryOutExlet):
            self._mark(connection, decision, FaultState.HANDLED)
            self._wake(connection, fault, None, 0.0)
            begun.append(plans.begin(connection, self._namespace, fault.run_id, fault.id, chosen.exlet, chosen.facts))
        else:
            self._mark(connection, decision, FaultState.PARKED)
            park.park(connection, fault.run_id, reason(fault, chosen), runs.c.epoch == fault.epoch)
        message = message_of(decision, at)
        return [] if message is None else outbox.put(connection, self._namespace, [message], hold=HOLD)

    def read_runs(self, connection: Connection, decisions: Sequence[Decision]) -> Seen:
        """Return status and tags of a batch's runs, whose rows are locked: what rules see of them."""
        ids = {decision.fault.run_id for decision in decisions}
        found = connection.execute(select(runs.c.id, runs.c.status, runs.c.tags).where(runs.c.id.in_(ids)))
        return {row.id: {"run_status": row.status, "run_tags": row.tags} for row in found}

    def _remember(self, connection: Connection, fault: Fault, seen: Seen) -> None:
        connection.execute(update(faults).where(faults.c.id == fault.id).values(**seen.get(fault.run_id, {})))

    def park_refused(self, connection: Connection, fault: Fault, chosen: ParkRun) -> None:
        """Park the run of a fault whose decision the database refused, with none of the texts of that decision."""
        marked = {"state": FaultState.PARKED.value, "queue": None, "why": chosen.why, "decided_at": now()}
        connection.execute(update(faults).where(faults.c.id == fault.id).values(**marked))
        park.park(connection, fault.run_id, chosen.why, runs.c.epoch == fault.epoch)

    def _await(self, connection: Connection, decision: Decision, chosen: RetryLater) -> None:
        seconds = None if chosen.wait is None else chosen.wait.total_seconds()
        # One that came before the fault was decided about is taken by the run: by this step, or by another that waits.
        is_there = chosen.signal is not None and self._await_signal(connection, decision.fault, chosen.signal)
        self._mark(
            connection,
            decision,
            FaultState.WAITING,
            level=chosen.level,
            try_in_level=chosen.try_in_level,
            wait_seconds=seconds,
            due_at=None if seconds is None else later(seconds),
            ruling=ruling_of(decision.fault),
        )
        # Without a queue the timer is the way back; with one it comes in only if the message does not.
        slack = 0.0 if decision.queue is None else self._grace
        self._wake(connection, decision.fault, 0.0 if is_there else seconds, slack)

    def _await_signal(self, connection: Connection, fault: Fault, signal: str) -> bool:
        """Add a wait for a signal to the run, whose row is locked; return whether the signal is there already."""
        run = wake.lock(connection, self._namespace, fault.run_id)
        if run is None:
            return False
        here = connection.execute(select(now())).scalar_one()
        wait = Wait(fault.path or StepPath(""), WaitKind.FAULT, signal, here)
        connection.execute(update(runs).where(runs.c.id == fault.run_id).values(waits=waits.encode([*run.waits, wait])))
        sent = [item for item in inbox.unread(connection, fault.run_id) if item.verb is InboxVerb.SIGNAL]
        return any(item.payload.get("name") == signal for item in sent)

    def _wake(self, connection: Connection, fault: Fault, seconds: float | None, slack: float) -> None:
        """Make the run due when this fault is, unless a branch makes it due before, or a person has stopped it."""
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
        if (chosen := decision.judgement.decision) is not None:
            more["decision"] = chosen.encode()
        connection.execute(
            update(faults)
            .where(faults.c.id == decision.fault.id)
            .values(state=state.value, queue=decision.queue, why=decision.route.why, decided_at=now(), **more)
        )

    def _set_run(self, connection: Connection, fault: Fault, *of: ColumnElement[bool], **changes: Any) -> None:
        here = (runs.c.id == fault.run_id, runs.c.epoch == fault.epoch, *of)
        connection.execute(update(runs).where(*here).values(updated_at=now(), **changes))


def still_open(ids: list[str]) -> Select[Any]:
    """Select those of these faults that are open, and their epochs; locks their rows and those of their runs."""
    return (
        select(faults.c.id, faults.c.epoch)
        .join(runs, runs.c.id == faults.c.run_id)
        .where(
            faults.c.id.in_(ids),
            faults.c.state == FaultState.OPEN.value,
            runs.c.epoch == faults.c.epoch,
            runs.c.worker_id.is_(None),
        )
        # The same order for all: a run may have several, and two dispatchers must not wait for each other.
        .order_by(faults.c.run_id, faults.c.id)
        .with_for_update()
    )


def message_of(decision: Decision, at: datetime) -> tuple[str, str] | None:
    """Return (address, body) of the message that wakes the run; None if the decision publishes none."""
    if decision.queue is None:
        return None
    kind = MessageKind.COMPENSATE if isinstance(decision.route, GiveUp) else MessageKind.RESUME
    fault = decision.fault
    return names.address(decision.queue, decision.key), Message.about_fault(kind, fault.run_id, fault.id, at).encode()


def ruling_of(fault: Fault) -> str | None:
    """Return the ruling for a fault that waits for its next try; None if it is not of a constraint."""
    return again(fault).encode() if fault.kind is FaultKind.CONSTRAINT else None


def state_of(chosen: Route) -> FaultState:
    """Return the state of a fault after this decision."""
    if isinstance(chosen, ApplyRuling):
        return chosen.state
    states: dict[type, FaultState] = {
        RetryLater: FaultState.WAITING,
        GiveUp: FaultState.FINAL,
        ParkRun: FaultState.PARKED,
    }
    return states.get(type(chosen), FaultState.HANDLED)


def reason(fault: Fault, chosen: ParkRun) -> str:
    """Return why the run is parked, for its row."""
    return fault.describe_parked(chosen.why)


def _earliest(first: ColumnElement[Any], *others: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return an expression for the earliest of these times, ignoring NULLs."""
    found: ColumnElement[Any] = first
    for other in others:
        found = case((found.is_(None) | (other < found), other), else_=found)
    return found
