"""What interrupts a run at the step that it is at: its deadline, or a person who wants a savepoint undone.

The step fails for that, and the flow hears of it once, as an exception at that place; what it catches and what is
undone follows from there as for any failure. Deadline or order are taken away in the transaction that journals the
failure; so no other branch, and no later step, is told again.

An activity that an earlier owner may have executed, without anybody having seen the outcome, is not interrupted: were
it to fail here, its effect would stand, and nobody would undo it. It is executed under the same key, or its probe finds
what became of it; the next step is interrupted.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from aft.errors import DeadlineExceeded, UndoneByHand
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures
from aft.flows.asks import Ask, Landed
from aft.flows.failures import Place
from aft.flows.policy import Policy
from aft.flows.steps import Stepper
from aft.runs import faults, inbox
from aft.runs.journal import Entry, EntryKind, Outcome


def check_interrupts(stepper: Stepper, ask: Ask, landed: Landed | None) -> Entry | None:
    """Journal that a step failed because the run is interrupted there; None: it is not."""
    if ask.kind is EntryKind.ACTIVITY and stepper.standing.is_unseen(ask.path):
        return None
    return _check_deadline(stepper, ask, landed) or _check_order(stepper, ask, landed)


def _check_deadline(stepper: Stepper, ask: Ask, landed: Landed | None) -> Entry | None:
    owner, tools = stepper.owner, stepper.tools
    deadline = owner.run.deadline_at
    if deadline is None or (deadline > tools.clock.now() and deadline > stepper.mailbox.now):
        return None
    why = DeadlineExceeded(f"run {owner.run_id} had to end by {deadline:%Y-%m-%d %H:%M:%S} UTC")
    fault = _fault(stepper, why, f"the deadline passed at {ask.kind.value} {ask.name!r} (step {ask.path})")
    with owner.lock:
        if owner.run.deadline_at is None:
            return None  # another branch was told
        owner.change(deadline_at=None)
        return _record(stepper, ask, fault, landed, deadline_at=None)


def _check_order(stepper: Stepper, ask: Ask, landed: Landed | None) -> Entry | None:
    owner = stepper.owner
    if owner.unheeded is None:
        return None
    with owner.lock:
        letter = owner.unheeded
        if letter is None or not ask.path.startswith(f"{letter.payload['to']}."):
            return None
        owner.unheeded = None
        why = UndoneByHand(f"{letter.actor} has it undone to savepoint {letter.payload['name']!r}")
        fault = _fault(stepper, why, f"asked for at {ask.kind.value} {ask.name!r} (step {ask.path})")

        def read(connection: Connection) -> None:
            inbox.mark_read(connection, owner.run_id, owner.epoch, [letter])

        return _record(stepper, ask, fault, landed, read=read)


def _record(stepper: Stepper, ask: Ask, fault: Fault, landed: Landed | None, read: Any = None, **changes: Any) -> Entry:
    scope = ask.path.rpartition(".")[0]
    at = stepper.tools.clock.now()
    entry = Entry(ask.path, scope, ask.kind, ask.name, Outcome.FAILED, at, fault_id=fault.id)

    def then(connection: Connection, seq: int) -> None:
        faults.add(connection, stepper.tools.namespace, fault)
        if read is not None:
            read(connection)

    return stepper.record(entry, then, landed, **changes)


def _fault(stepper: Stepper, why: Exception, verdict: str) -> Fault:
    owner, tools = stepper.owner, stepper.tools
    return failures.describe(
        why,
        Place(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
        Policy(),
        tools.ladder,
        tools.clock.now(),
        state=FaultState.FINAL,
        verdict=verdict,
    )
