"""What a run's owner writes when it lets go of the run: each a single guarded write, picked up by somebody.

==================  ==================================================  ===========================================
the run             leaves behind                                       who goes on
==================  ==================================================  ===========================================
failed              fault ``open``, no owner, message in the outbox     the dispatcher; the sweeper if that is lost
is in its ladder    no owner, due when the next try is                  whoever the ladder's message wakes; the timer
waits               no owner, ``waits`` in its row, due if bounded      whoever sends what it awaits; the timer
is given back       no owner, an order to go on, message in the outbox  any worker; the sweeper if that is lost
parks, suspends     its reason, no owner                                a person
ends                a terminal state, no owner                          nobody; its parent is told
==================  ==================================================  ===========================================

Branches of one run may each be somewhere else: then it is all of that at once, and goes on with whatever comes first.
Nothing is let go while the inbox holds what was not read: whoever sent it saw an owner, and did not wake the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select, update

from aft import names
from aft.compensation import late_frames, stack
from aft.envelope import Message, MessageKind
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.departure import Departure, sort
from aft.flows.doubts import Handover
from aft.flows.forgetting import forget
from aft.flows.leaving import (
    Block,
    Failed,
    NewMail,
    Parks,
    is_of_step,
)
from aft.flows.reaching import STOPPED, choose_order, refuse_unheeded
from aft.flows.tools import Tools
from aft.ids import OrderId, new_id
from aft.runs import families, faults, inbox, journal, late, waits, waking
from aft.runs.deeds import Leaving, Write
from aft.runs.inbox import PUT_OFF, Letter
from aft.runs.owner import NO_PROGRESS, Owner
from aft.runs.rescue import make_abort
from aft.runs.states import Status
from aft.store import outbox
from aft.store.moments import later, now
from aft.store.outbox import HOLD, OutboxRow
from aft.store.tables import runs
from aft.telemetry import FaultRaised, RunEnded, RunParked, RunReleased, RunWaits

_NO_OWNER = {"worker_id": None, "wake_id": None, "due_at": None, "sweep_at": None}


def let_go(tools: Tools, owner: Owner, blocks: Iterable[Block], handover: Handover) -> None:
    """Let the run go for all that keeps it from going on; raises NewMail if something came that was not read.

    ``handover`` tells the next owner what is in doubt. The caller asks for it once no branch is at work any more.

    Then it goes on here, and what has failed has failed: that is recorded, so that nothing is tried again uncounted.
    """
    blocks = list(blocks)
    try:
        _let_go(tools, owner, blocks, handover)
    except NewMail:
        keep_failures(tools, owner, blocks)
        raise


def keep_failures(tools: Tools, owner: Owner, blocks: Iterable[Block]) -> None:
    """Record what has failed, where the run goes on here: nothing is tried again uncounted."""
    failed = [block for block in blocks if isinstance(block, Failed) and not block.written]

    def then(connection: Connection, seq: int) -> None:
        for block in failed:
            write_fault(tools, owner, connection, block)

    if failed:
        owner.write(then)
    for block in failed:
        tell_raised(tools, block.fault)


def _let_go(tools: Tools, owner: Owner, blocks: list[Block], handover: Handover) -> None:
    found = sort(blocks)
    is_plain = found.is_plain_failure and not owner.unheeded and not owner.heard and not handover
    if is_plain and _share_failure(tools, owner, found):
        return
    order = OrderId(new_id())
    written: list[OutboxRow] = []

    def then(connection: Connection, seq: int) -> None:
        # One that parks must do so: the step that it parks for would be executed again.
        if owner.inbox_seq > owner.read_to and not found.parked:
            raise NewMail
        messages = [_raise(tools, owner, connection, block) for block in found.failed]
        for block in found.parked:
            _park(tools, owner, connection, block)
        if found.suspends is not None:
            inbox.mark_read(connection, owner.run_id, owner.epoch, found.suspends.letters)
        refuse_unheeded(owner, connection, mistake=_find_mistake(found.parked))
        if owner.heard:
            inbox.mark_heard(connection, owner.run_id, owner.epoch, owner.heard)
        _keep_doubts(tools, owner, connection, handover)
        if wakes or (found.parked and _wake_for_orders(tools, owner, connection, order, found.parked)):
            message = Message.about_order(owner.run_id, order, tools.clock.now())
            messages.append((names.resume_run(tools.namespace, owner.run.flow, owner.run.version), message))
        written[:] = _announce(tools, connection, messages)

    wakes = found.gives_back is not None and not found.is_stop
    owner.write(then, **_changes(tools, owner, found, order))
    _tell(tools, owner, found)
    _send(tools, written)


def _share_failure(tools: Tools, owner: Owner, found: Departure) -> bool:
    """Let go for one failure, the ordinary case, in a commit that others share; False: it has to be done alone."""
    block = found.failed[0]
    queue, message = _announcement(tools, block.fault)
    body = message.encode()
    write = Write(
        fault=faults.fields(tools.namespace, block.fault),
        settled=tuple((id, FaultState.TRIED) for id in block.replaces),
        message=(tools.namespace, queue, body, _hold(tools)),
        leaving=Leaving(found.status, waits.encode(owner.run.waits), _spell(owner.savepoints)),
    )
    with owner.lock:
        shared = owner.share(write, read_to=owner.read_to)
    if shared is None or shared.message is None:
        return False
    _tell(tools, owner, found)
    _send(tools, [OutboxRow(shared.message, queue, body)])
    return True


def _find_mistake(parked: Sequence[Parks]) -> Fault | None:
    """What the flow's code is parked for, if that has just raised: no step of it."""
    found = [block.fault for block in parked if not block.stays and block.fault.path is None]
    return next((fault for fault in found if fault.kind is FaultKind.FLOW), None)


def _wake_for_orders(
    tools: Tools, owner: Owner, connection: Connection, order: OrderId, parked: Sequence[Parks]
) -> bool:
    """Wake a run that parks if a person has asked something of it meanwhile, who saw it being executed.

    Also if it parks for a step that an order reaches: it was in doubt, so it was executed before it could be told.
    """
    steps = [block.fault.path for block in parked if not block.stays and is_of_step(block.fault)]
    reached = any(choose_order(owner, path) is not None for path in steps if path is not None)
    if not reached and not inbox.any_order(connection, owner.run_id, owner.read_to):
        return False
    connection.execute(update(runs).where(runs.c.id == owner.run_id).values(**waking.wake_up(order, tools.grace)))
    return True


def _changes(tools: Tools, owner: Owner, found: Departure, order: OrderId) -> dict[str, Any]:
    # All that it waits for, also in branches that nobody has looked at in this pass.
    changes: dict[str, Any] = {**_NO_OWNER, "waits": waits.encode(owner.run.waits)}
    changes["savepoints"] = _spell(owner.savepoints)
    if found.status is not None:
        changes["status"] = found.status
    if found.is_stop:
        changes["reason"] = found.reason
        return changes
    if found.gives_back is not None:
        # Solitary ones are taken by time, not by message.
        grace = 0.0 if owner.solitary else tools.grace.total_seconds()
        changes |= {"wake_id": order, "due_at": now(), "sweep_at": later(grace)}
    elif found.awaits or found.in_ladder or found.begins_more:
        due, sweep = found.due(tools.grace)
        changes |= {"wake_id": order, "due_at": due, "sweep_at": sweep}
    if found.gives_back is not None and not found.failed:
        changes |= NO_PROGRESS
    return changes


def _spell(savepoints: dict[str, str] | None) -> str | None:
    return None if savepoints is None else json.dumps(savepoints)


def _raise(tools: Tools, owner: Owner, connection: Connection, block: Failed) -> tuple[str, Message]:
    fault = block.fault
    if block.written:
        faults.renew(connection, fault.id, owner.epoch)
    else:
        write_fault(tools, owner, connection, block)
    return _announcement(tools, fault)


def _announcement(tools: Tools, fault: Fault) -> tuple[str, Message]:
    return names.faults(tools.namespace), Message.about_fault(
        MessageKind.FAULT, fault.run_id, fault.id, fault.raised_at
    )


def write_fault(tools: Tools, owner: Owner, connection: Connection, block: Failed) -> None:
    """Record a fault, in the place of those before it."""
    faults.settle(connection, block.replaces, FaultState.TRIED)
    faults.add(connection, tools.namespace, block.fault)
    if block.letters:
        inbox.mark_read(connection, owner.run_id, owner.epoch, block.letters)


def _park(tools: Tools, owner: Owner, connection: Connection, block: Parks) -> None:
    if block.replaces:
        faults.settle(connection, block.replaces, FaultState.TRIED)
    forget(connection, owner.run_id, block.forgets)
    for letter, note in block.answers:
        if note == PUT_OFF:
            inbox.put_off(connection, owner.run_id, letter.seq)
        else:
            inbox.mark_read(connection, owner.run_id, owner.epoch, [letter], note)
    if block.stays:
        return
    if block.reopens and block.fault.path is not None:
        journal.reopen(connection, block.fault.run_id, block.fault.path)
        faults.settle(connection, [block.fault.id], FaultState.PARKED)
    else:
        # The reason stays with it: the run's own is gone when somebody has taken it.
        faults.add(connection, tools.namespace, replace(block.fault, verdict=block.reason))


def _keep_doubts(tools: Tools, owner: Owner, connection: Connection, handover: Handover) -> None:
    if handover.settled:
        faults.settle(connection, handover.settled, FaultState.RESOLVED)
    for named in handover.named:
        at = tools.clock.now()
        abort = make_abort(owner.run_id, owner.run.flow, owner.epoch, 0, str(named), at, named.encode())
        faults.add(connection, tools.namespace, replace(abort, state=FaultState.WAITING))


def _tell(tools: Tools, owner: Owner, found: Departure) -> None:
    run = owner.run
    for block in found.failed:
        if not block.written:
            tell_raised(tools, block.fault)
    if found.parked:
        tools.telemetry.emit(RunParked(run=run.id, reason=found.parked[0].reason))
    elif found.suspends is not None or found.gives_back is not None:
        why = found.suspends.why if found.suspends else found.gives_back.why if found.gives_back else ""
        tools.telemetry.emit(RunReleased(run=run.id, flow=run.flow, why=why))
    elif found.awaits:
        what = ", ".join(str(block.wait) for block in found.awaits)
        tools.telemetry.emit(RunWaits(run=run.id, flow=run.flow, what=what))


def tell_raised(tools: Tools, fault: Fault) -> None:
    """Tell of a fault that was recorded."""
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


def park_unreadable(tools: Tools, owner: Owner, fault: Fault, reason: str) -> None:
    """Stop a run for a person whose row cannot be read, and leave everything else in that row as it is."""

    def then(connection: Connection, seq: int) -> None:
        faults.add(connection, tools.namespace, replace(fault, verdict=reason))

    owner.write(then, status=Status.PARKED, reason=reason, **_NO_OWNER)
    tools.telemetry.emit(RunParked(run=owner.run_id, reason=reason))


def end(
    tools: Tools,
    owner: Owner,
    status: Status,
    result: str | None = None,
    letters: Sequence[Letter] = (),
    *,
    asked: bool = False,
    stopped: Sequence[Letter] = (),
    in_doubt: bool = False,
) -> None:
    """Bring the run to its end; faults that still stand are settled by it, and so is what was asked in ``letters``.

    Raises NewMail if something was asked of the run that its end would leave undone; unless it ends because a person
    ``asked`` for that, or because everything is undone: then what else was asked is answered with that. Orders that it
    had begun to carry out are ``stopped``. Also raises NewMail if everything is said to be undone, and an effect came
    late meanwhile that is not. ``in_doubt``: it ends without its having been seen what a lost worker did.
    """
    checked = status is Status.COMPLETED or (status is Status.CANCELLED and not asked)
    undone = owner.run.ended_as is None and status in (Status.COMPENSATED, Status.FAILED)
    if not letters and owner.run.parent_id is None and not owner.unheeded and not in_doubt:
        leaving = Leaving(status, ends=True, result=result if result is not None else owner.run.result)
        read_to = min(owner.read_to, owner.looked_to) if undone else owner.read_to
        if owner.share(Write(leaving=leaving), read_to=read_to) is not None:
            tools.telemetry.emit(RunEnded(run=owner.run_id, flow=owner.run.flow, status=status.value))
            return
    changes: dict[str, Any] = {} if result is None else {"result": result}

    def then(connection: Connection, seq: int) -> None:
        if checked:
            check_orders(owner, connection)
        if undone and late.any_undoable(connection, owner.run_id):
            raise NewMail
        inbox.mark_read(connection, owner.run_id, owner.epoch, letters)
        inbox.mark_read(connection, owner.run_id, owner.epoch, stopped, f"refused: {STOPPED}")
        refuse_unheeded(owner, connection, ends=True)
        if letters or owner.inbox_seq > owner.read_to:
            inbox.refuse_orders(connection, owner.run_id, owner.epoch, f"the run has ended, it is {status.value}")
        if in_doubt:
            faults.keep_aborts(connection, owner.run_id)
        faults.settle_rest(connection, owner.run_id)
        families.tell_parent(connection, owner.run, tools.clock.now(), tools.grace)

    owner.write(
        then, status=status, ended_as=status.value, ended_at=now(), waits=None, savepoints=None, **_NO_OWNER, **changes
    )
    tools.telemetry.emit(RunEnded(run=owner.run_id, flow=owner.run.flow, status=status.value))


def begin_anew(tools: Tools, owner: Owner, args: str) -> None:
    """Begin a new generation of the run with other arguments: an empty journal, new keys, and the stack as it is."""
    began: list[datetime] = []

    def then(connection: Connection, seq: int) -> None:
        stack.carry_over(connection, owner.run_id)
        late_frames.keep_failures(connection, owner.run_id)
        journal.forget(connection, owner.run_id)
        faults.settle_all(connection, owner.run_id)
        # As a replay will read it: the flow's code sees this time.
        began[:] = [connection.execute(select(runs.c.started_at).where(runs.c.id == owner.run_id)).scalar_one()]

    generation = owner.run.key_generation + 1
    # A key stands for what was submitted, whatever the run has made of it since.
    first = func.coalesce(runs.c.first_args, runs.c.args)
    owner.write(
        then, args=args, first_args=first, key_generation=generation, waits=None, savepoints=None, started_at=now()
    )
    owner.change(args=args, key_generation=generation, waits=(), savepoints={}, started_at=began[0])
    owner.savepoints = {}


def release(tools: Tools, owner: Owner) -> None:
    """Let go of an ended run whose late effects are settled."""

    def then(connection: Connection, seq: int) -> None:
        check_orders(owner, connection)
        faults.settle_rest(connection, owner.run_id)
        families.tell_settled(connection, owner.run, tools.clock.now(), tools.grace)

    owner.write(then, waits=None, **_NO_OWNER)
    tools.telemetry.emit(RunReleased(run=owner.run_id, flow=owner.run.flow, why="late effects settled"))


def check_orders(owner: Owner, connection: Connection) -> None:
    """Raise NewMail if something was asked of the run that its owner has not read; in a guarded write."""
    if owner.inbox_seq > owner.read_to and inbox.any_order(connection, owner.run_id, owner.read_to):
        raise NewMail


def _announce(tools: Tools, connection: Connection, messages: Sequence[tuple[str, Message]]) -> list[OutboxRow]:
    return outbox.put(
        connection, tools.namespace, [(queue, message.encode()) for queue, message in messages], hold=_hold(tools)
    )


def _hold(tools: Tools) -> float:
    """Seconds for which we mean to publish messages ourselves."""
    return 0.0 if tools.send is None else HOLD


def _send(tools: Tools, written: list[OutboxRow]) -> None:
    if written and tools.send is not None:
        tools.send(written)
