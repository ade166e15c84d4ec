"""What a run's owner writes: each a single guarded transaction, each leaving the run in a state somebody picks up.

==================  ==================================================  ===========================================
write               leaves behind                                       who goes on
==================  ==================================================  ===========================================
``raise_fault``     fault ``open``, no owner, message in the outbox     the dispatcher; the sweeper if that is lost
``hand_back``       no owner, an order to go on, message in the outbox  any worker; the sweeper if that is lost
``park``            ``parked`` with its reason, no owner                a person
``end``             a terminal state, no owner                          nobody
==================  ==================================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from aft import names
from aft.envelope import Kind, Message
from aft.fault import Fault, FaultState
from aft.flows.tools import Tools
from aft.ids import OrderId, new_id
from aft.runs import faults
from aft.runs.owner import NO_PROGRESS, Owner
from aft.runs.rescue import make_abort
from aft.runs.states import Status
from aft.store import outbox
from aft.store.moments import later, now
from aft.store.outbox import HOLD, OutboxRow
from aft.telemetry import FaultRaised, RunEnded, RunParked, RunReleased

_NO_OWNER = {"worker_id": None, "wake_id": None, "due_at": None, "sweep_at": None}


def raise_fault(tools: Tools, owner: Owner, fault: Fault, status: Status | None, replaces: Iterable[str]) -> None:
    """Record a fault and let the run go; the fault queue hears of it. ``status`` None: it stays as it is."""
    message = Message.about_fault(Kind.FAULT, fault.run_id, fault.id, fault.raised_at)
    written: list[OutboxRow] = []

    def then(connection: Connection, seq: int) -> None:
        faults.settle(connection, replaces, FaultState.TRIED)
        faults.add(connection, tools.namespace, fault)
        written[:] = _announce(tools, connection, names.faults(tools.namespace), message)

    changes = {} if status is None else {"status": status}
    owner.write(then, **_NO_OWNER, **changes)
    tools.telemetry.emit(
        FaultRaised(
            run=fault.run_id,
            fault=fault.id,
            path=fault.path,
            activity=fault.name,
            kind=fault.kind.value,
            type=fault.type,
            attempt=fault.attempt,
        )
    )
    _send(tools, written)


def hand_back(tools: Tools, owner: Owner, why: str, *, doubt: bool = False) -> None:
    """Give the run to whoever is free, as it is; nothing is counted, neither against it nor for it.

    ``doubt``: an earlier owner may have begun its next step, and nothing else says so any more.
    """
    order = OrderId(new_id())
    message = Message.about_order(owner.run_id, order, tools.clock.now())
    written: list[OutboxRow] = []

    def then(connection: Connection, seq: int) -> None:
        if doubt:
            told = "what its next step has come to is not known"
            abort = make_abort(owner.run_id, owner.run.flow, owner.epoch, 0, told, tools.clock.now())
            faults.add(connection, tools.namespace, replace(abort, state=FaultState.WAITING))
        written[:] = _announce(tools, connection, names.resume(tools.namespace), message)

    # Solitary ones are taken by time, not by message.
    grace = 0.0 if owner.solitary else tools.grace.total_seconds()
    owner.write(then, worker_id=None, wake_id=order, due_at=now(), sweep_at=later(grace), **NO_PROGRESS)
    tools.telemetry.emit(RunReleased(run=owner.run_id, flow=owner.run.flow, why=why))
    _send(tools, written)


def park(tools: Tools, owner: Owner, reason: str, fault: Fault, replaces: Sequence[str] = ()) -> None:
    """Stop the run until a person has looked at it."""

    def then(connection: Connection, seq: int) -> None:
        if replaces:
            faults.settle(connection, replaces, FaultState.TRIED)
        faults.add(connection, tools.namespace, fault)

    owner.write(then, status=Status.PARKED, reason=reason, **_NO_OWNER)
    tools.telemetry.emit(RunParked(run=owner.run_id, reason=reason))


def end(tools: Tools, owner: Owner, status: Status, result: str | None = None, settles: Sequence[str] = ()) -> None:
    """Bring the run to its end; faults that still stand are settled by it."""
    changes = {} if result is None else {"result": result}
    owner.write(_settling(settles), status=status, ended_as=status.value, ended_at=now(), **_NO_OWNER, **changes)
    tools.telemetry.emit(RunEnded(run=owner.run_id, flow=owner.run.flow, status=status.value))


def release(tools: Tools, owner: Owner, settles: Sequence[str]) -> None:
    """Let go of an ended run whose late effects are settled."""
    owner.write(_settling(settles), **_NO_OWNER)
    tools.telemetry.emit(RunReleased(run=owner.run_id, flow=owner.run.flow, why="late effects settled"))


def _settling(settles: Sequence[str]) -> Callable[[Connection, int], None]:
    def then(connection: Connection, seq: int) -> None:
        if settles:
            faults.settle(connection, settles, FaultState.RESOLVED)

    return then


def _announce(tools: Tools, connection: Connection, queue: str, message: Message) -> list[OutboxRow]:
    hold = 0.0 if tools.send is None else HOLD
    return outbox.put(connection, tools.namespace, [(queue, message.encode())], hold=hold)


def _send(tools: Tools, written: list[OutboxRow]) -> None:
    if tools.send is not None:
        tools.send(written)
