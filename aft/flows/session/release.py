"""Releases a run: each kind of release is a single guarded write, after which another process can continue.

==================  ==================================================  ===========================================
the run             leaves behind                                       who continues
==================  ==================================================  ===========================================
failed              fault ``open``, no owner, message in the outbox     the dispatcher; the sweeper if that is lost
is in its ladder    no owner, due when the next try is                  a worker, by the ladder's message or timer
waits               no owner, ``waits`` in its row, due if bounded      a worker, woken by the sender or the timer
is handed back      no owner, an order to go on, message in the outbox  any worker; the timer if that is lost
parks, suspends     its reason, no owner                                a person
ends                a terminal state, no owner                          nothing to do; its parent is notified
==================  ==================================================  ===========================================

Branches of one run may be in different states: then all of them are written at once, and the first event wakes it.
A run is not released while its inbox has unread items, as their sender saw an owner and did not wake the run; a run
that parks is released nevertheless, and woken if an order is among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from aft import names
from aft.compensation import late_frames, stack
from aft.envelope import Message, MessageKind
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.session.blocks import Block, InboxChanged, ParkNeeded, StepFailed, is_of_step
from aft.flows.session.delete_steps import delete_steps
from aft.flows.session.dependencies import Dependencies
from aft.flows.session.savepoint_orders import STOPPED, choose_order, refuse_pending_orders
from aft.flows.session.sorted_blocks import SortedBlocks, sort
from aft.flows.session.unknown_outcomes import Handover
from aft.ids import OrderId, new_id
from aft.runs import waits
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import NO_OWNER, NO_PROGRESS, OwnerWrite, Recording
from aft.runs.ownership.rescue import make_abort
from aft.runs.records import faults, inbox, journal, late_effects
from aft.runs.records.inbox import PUT_OFF, InboxItem
from aft.runs.states import Status
from aft.runs.wakes import child_runs, wake
from aft.store import outbox
from aft.store.db_time import FromNow
from aft.store.outbox import HOLD, OutboxRow
from aft.store.tables import runs
from aft.telemetry import FaultRaised, RunEnded, RunParked, RunReleased, RunWaits


def release_run(deps: Dependencies, owner: Owner, blocks: Iterable[Block], handover: Handover) -> None:
    """Release a run with all its blocks; raises InboxChanged if it has unread inbox items and does not park.

    ``handover`` names the unknown outcomes for the next owner; the caller computes it once no branch is at work any
    more.

    On InboxChanged the run goes on here; its failures are recorded first, so that no try is uncounted.
    """
    blocks = list(blocks)
    try:
        _release_run(deps, owner, blocks, handover)
    except InboxChanged:
        record_failures(deps, owner, blocks)
        raise


def record_failures(deps: Dependencies, owner: Owner, blocks: Iterable[Block]) -> None:
    """Record the failures of a run that goes on here, so that no try is uncounted."""
    failed = [block for block in blocks if isinstance(block, StepFailed) and not block.written]

    def then(connection: Connection, seq: int) -> None:
        for block in failed:
            write_fault(deps, owner, connection, block)

    if failed:
        owner.write(then)
    for block in failed:
        emit_raised(deps, block.fault)


def _release_run(deps: Dependencies, owner: Owner, blocks: list[Block], handover: Handover) -> None:
    found = sort(blocks)
    order = OrderId(new_id())
    changes = _changes(deps, owner, found, order)
    is_plain = found.is_single_failure and not owner.pending_orders and not owner.pointers_read and not handover
    if is_plain and _share_failure(deps, owner, found, changes):
        return
    written: list[OutboxRow] = []

    def then(connection: Connection, seq: int) -> None:
        # A run that parks must do so: otherwise the step that it parks for would be executed again.
        if owner.inbox_seq > owner.read_to and not found.parked:
            raise InboxChanged
        messages = [_raise(deps, owner, connection, block) for block in found.failed]
        for block in found.parked:
            _park(deps, owner, connection, block)
        if found.suspension is not None:
            inbox.mark_read(connection, owner.run_id, owner.epoch, found.suspension.items)
        refuse_pending_orders(owner, connection, mistake=_find_mistake(found.parked))
        if owner.pointers_read:
            inbox.mark_pointers_read(connection, owner.run_id, owner.epoch, owner.pointers_read)
        _keep_doubts(deps, owner, connection, handover)
        if wakes or (found.parked and _wake_for_orders(deps, owner, connection, order, found.parked)):
            message = Message.about_order(owner.run_id, order, deps.clock.now())
            messages.append((names.resume_run(deps.namespace, owner.run.flow, owner.run.version), message))
        written[:] = _announce(deps, connection, messages)

    wakes = found.release_needed is not None and not found.is_stop
    owner.write(then, **changes)
    _emit(deps, owner, found)
    _send(deps, written)


def _share_failure(deps: Dependencies, owner: Owner, found: SortedBlocks, changes: dict[str, Any]) -> bool:
    """Release a run for one failure, the usual case, in a shared commit; False: it needs its own transaction."""
    block = found.failed[0]
    queue, message = _announcement(deps, block.fault)
    body = message.encode()
    write = OwnerWrite(
        fault=faults.fields(deps.namespace, block.fault),
        closed_faults=tuple((id, FaultState.TRIED) for id in block.replaces),
        message=(deps.namespace, queue, body, _hold_seconds(deps)),
        changes=changes,
    )
    shared = owner.share(write, read_to=owner.read_to)
    if shared is None or shared.message is None:
        return False
    _emit(deps, owner, found)
    _send(deps, [OutboxRow(shared.message, queue, body)])
    return True


def _find_mistake(parked: Sequence[ParkNeeded]) -> Fault | None:
    """Return the fault for which the flow's code itself (not a step) has just parked, or None."""
    found = [block.fault for block in parked if not block.stays and block.fault.path is None]
    return next((fault for fault in found if fault.kind is FaultKind.FLOW), None)


def _wake_for_orders(
    deps: Dependencies, owner: Owner, connection: Connection, order: OrderId, parked: Sequence[ParkNeeded]
) -> bool:
    """Wake a run that parks if it has an unread order, whose sender saw it being executed.

    Also if it parks for a step that an order reaches: the step was in doubt, so it was executed before it could be
    interrupted.
    """
    steps = [block.fault.path for block in parked if not block.stays and is_of_step(block.fault)]
    reached = any(choose_order(owner, path) is not None for path in steps if path is not None)
    if not reached and not inbox.any_order(connection, owner.run_id, owner.read_to):
        return False
    connection.execute(update(runs).where(runs.c.id == owner.run_id).values(**wake.wake_up(order, deps.grace)))
    return True


def _changes(deps: Dependencies, owner: Owner, found: SortedBlocks, order: OrderId) -> dict[str, Any]:
    # All its waits, also those of branches that this pass has not reached.
    changes: dict[str, Any] = {**NO_OWNER, "waits": waits.encode(owner.run.waits)}
    changes["savepoints"] = _format(owner.savepoints)
    if found.status is not None:
        changes["status"] = found.status
    if found.is_stop:
        changes["reason"] = found.reason
        return changes
    if found.release_needed is not None:
        # Solitary runs are claimed by the timer, not by message.
        grace = 0.0 if owner.solitary else deps.grace.total_seconds()
        changes |= {"wake_id": order, "due_at": FromNow(), "sweep_at": FromNow(grace)}
    elif found.waits or found.in_ladder or found.begins_more:
        due, sweep = found.due(deps.grace)
        changes |= {"wake_id": order, "due_at": due, "sweep_at": sweep}
    if found.release_needed is not None and not found.failed:
        changes |= NO_PROGRESS
    return changes


def _format(savepoints: dict[str, str] | None) -> str | None:
    return None if savepoints is None else json.dumps(savepoints)


def _raise(deps: Dependencies, owner: Owner, connection: Connection, block: StepFailed) -> tuple[str, Message]:
    fault = block.fault
    if block.written:
        faults.renew(connection, fault.id, owner.epoch)
    else:
        write_fault(deps, owner, connection, block)
    return _announcement(deps, fault)


def _announcement(deps: Dependencies, fault: Fault) -> tuple[str, Message]:
    return names.faults(deps.namespace), Message.about_fault(MessageKind.FAULT, fault.run_id, fault.id, fault.raised_at)


def write_fault(deps: Dependencies, owner: Owner, connection: Connection, block: StepFailed) -> None:
    """Record a fault that replaces those before it."""
    faults.close(connection, block.replaces, FaultState.TRIED)
    faults.add(connection, deps.namespace, block.fault)
    if block.items:
        inbox.mark_read(connection, owner.run_id, owner.epoch, block.items)


def _park(deps: Dependencies, owner: Owner, connection: Connection, block: ParkNeeded) -> None:
    faults.close(connection, block.replaces, FaultState.TRIED)
    delete_steps(connection, owner.run_id, block.redoes)
    for item, note in block.answers:
        if note == PUT_OFF:
            inbox.put_off(connection, owner.run_id, item.seq)
        else:
            inbox.mark_read(connection, owner.run_id, owner.epoch, [item], note)
    if block.stays:
        faults.park_corrupt(connection, block.fault.id)
        return
    if block.reopens and block.fault.path is not None:
        journal.reopen(connection, block.fault.run_id, block.fault.path)
        faults.close(connection, [block.fault.id], FaultState.PARKED)
    else:
        # The fault keeps the reason: the run's own is cleared when it is claimed again.
        faults.add(connection, deps.namespace, replace(block.fault, why=block.reason))


def _keep_doubts(deps: Dependencies, owner: Owner, connection: Connection, handover: Handover) -> None:
    faults.close(connection, handover.closed, FaultState.RESOLVED)
    for named in handover.named:
        at = deps.clock.now()
        abort = make_abort(owner.run_id, owner.run.flow, owner.epoch, 0, str(named), at, named.encode())
        faults.add(connection, deps.namespace, replace(abort, state=FaultState.WAITING))


def _emit(deps: Dependencies, owner: Owner, found: SortedBlocks) -> None:
    run = owner.run
    for block in found.failed:
        if not block.written:
            emit_raised(deps, block.fault)
    if found.parked:
        deps.telemetry.emit(RunParked(run=run.id, reason=found.parked[0].reason))
    elif found.suspension is not None or found.release_needed is not None:
        why = found.suspension.why if found.suspension else found.release_needed.why if found.release_needed else ""
        deps.telemetry.emit(RunReleased(run=run.id, flow=run.flow, why=why))
    elif found.waits:
        what = ", ".join(str(block.wait) for block in found.waits)
        deps.telemetry.emit(RunWaits(run=run.id, flow=run.flow, what=what))


def emit_raised(deps: Dependencies, fault: Fault) -> None:
    """Emit FaultRaised for a recorded fault."""
    deps.telemetry.emit(
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


def park_unreadable(deps: Dependencies, owner: Owner, fault: Fault, reason: str) -> None:
    """Park a run whose row cannot be decoded, leaving the rest of that row as it is. Emits: RunParked."""

    def then(connection: Connection, seq: int) -> None:
        faults.close(connection, faults.find_same(connection, fault), FaultState.TRIED)
        faults.add(connection, deps.namespace, replace(fault, why=reason))

    owner.write(then, status=Status.PARKED, reason=reason, **NO_OWNER)
    deps.telemetry.emit(RunParked(run=owner.run_id, reason=reason))


def end(
    deps: Dependencies,
    owner: Owner,
    status: Status,
    result: str | None = None,
    items: Sequence[InboxItem] = (),
    *,
    ordered: bool = False,
    stopped: Sequence[InboxItem] = (),
    in_doubt: bool = False,
) -> None:
    """End the run; its open faults are closed, and the orders in ``items`` are marked read. Emits: RunEnded.

    Raises InboxChanged if there is an order that the end would leave undone; unless the run ends because a person
    ``ordered`` that, or because everything is undone: then other orders are refused with that reason. ``stopped`` are
    orders that it had begun to carry out; they are refused. Also raises InboxChanged if everything counts as undone,
    but a late effect has arrived that is not. ``in_doubt``: it ends with steps whose outcome is unknown because a
    worker was lost.
    """
    checked = status is Status.COMPLETED or (status is Status.CANCELLED and not ordered)
    undone = owner.run.ended_as is None and status in (Status.COMPENSATED, Status.FAILED)
    write = OwnerWrite(changes=_end_changes(status, result), ends=not in_doubt)
    is_plain = not items and owner.run.parent_id is None and not owner.pending_orders and not in_doubt
    read_to = min(owner.read_to, owner.late_checked_to) if undone else owner.read_to

    def then(connection: Connection, seq: int) -> None:
        if checked:
            check_orders(owner, connection)
        if undone and late_effects.any_undoable(connection, owner.run_id):
            raise InboxChanged
        _answer_orders(owner, connection, status, items, stopped)
        if in_doubt:
            faults.keep_aborts(connection, owner.run_id)
            faults.close_rest(connection, owner.run_id)
        child_runs.notify_parent(connection, owner.run, deps.clock.now(), deps.grace)

    if not is_plain or owner.share(write, read_to=read_to) is None:
        owner.write(Recording(write, then))
    deps.telemetry.emit(RunEnded(run=owner.run_id, flow=owner.run.flow, status=status.value))


def _end_changes(status: Status, result: str | None) -> dict[str, Any]:
    changes = {**NO_OWNER, "status": status, "ended_as": status.value, "ended_at": FromNow()}
    return changes | {"waits": None, "savepoints": None} | ({} if result is None else {"result": result})


def _answer_orders(
    owner: Owner, connection: Connection, status: Status, items: Sequence[InboxItem], stopped: Sequence[InboxItem]
) -> None:
    """Mark the orders in ``items`` read with the end of their run, and refuse all others."""
    inbox.mark_read(connection, owner.run_id, owner.epoch, items)
    inbox.mark_read(connection, owner.run_id, owner.epoch, stopped, f"refused: {STOPPED}")
    refuse_pending_orders(owner, connection, ends=True)
    if items or owner.inbox_seq > owner.read_to:
        inbox.refuse_orders(connection, owner.run_id, owner.epoch, f"the run has ended, it is {status.value}")


def begin_generation(deps: Dependencies, owner: Owner, args: str) -> None:
    """Begin a new generation of the run with other arguments: an empty journal, new keys, and the same stack."""
    began: list[datetime] = []

    def then(connection: Connection, seq: int) -> None:
        stack.copy_from_journal(connection, owner.run_id)
        late_frames.mark_failures(connection, owner.run_id)
        journal.delete_all(connection, owner.run_id)
        faults.close_all(connection, owner.run_id)
        # As a replay will read it: the flow's code sees this time.
        began[:] = [connection.execute(select(runs.c.started_at).where(runs.c.id == owner.run_id)).scalar_one()]

    generation = owner.run.key_generation + 1
    # A key identifies what was submitted, whatever arguments the run has now.
    arguments = {"args": args, "first_args": owner.run.args}
    begun = {"key_generation": generation, "waits": None, "savepoints": None, "started_at": FromNow()}
    owner.write(Recording(OwnerWrite(changes=arguments | begun), then))
    owner.change(args=args, key_generation=generation, waits=(), savepoints={}, started_at=began[0])
    owner.savepoints = {}


def release_ended(deps: Dependencies, owner: Owner) -> None:
    """Release an ended run whose late effects are undone. Emits: RunReleased."""

    def then(connection: Connection, seq: int) -> None:
        check_orders(owner, connection)
        child_runs.notify_handled(connection, owner.run, deps.clock.now(), deps.grace)

    owner.write(Recording(OwnerWrite(changes={**NO_OWNER, "waits": None}, ends=True), then))
    deps.telemetry.emit(RunReleased(run=owner.run_id, flow=owner.run.flow, why="its late effects are undone"))


def check_orders(owner: Owner, connection: Connection) -> None:
    """Raise InboxChanged if the run has an order that its owner has not read; call it in a guarded write."""
    if owner.inbox_seq > owner.read_to and inbox.any_order(connection, owner.run_id, owner.read_to):
        raise InboxChanged


def _announce(deps: Dependencies, connection: Connection, messages: Sequence[tuple[str, Message]]) -> list[OutboxRow]:
    return outbox.put(
        connection, deps.namespace, [(queue, message.encode()) for queue, message in messages], hold=_hold_seconds(deps)
    )


def _hold_seconds(deps: Dependencies) -> float:
    """Return the seconds during which this process publishes its messages itself, before the relay does."""
    return 0.0 if deps.send is None else HOLD


def _send(deps: Dependencies, written: list[OutboxRow]) -> None:
    if written and deps.send is not None:
        deps.send(written)
