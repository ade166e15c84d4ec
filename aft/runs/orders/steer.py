"""Orders to a run that is not parked: suspend, resume, cancel, abandon, compensate, undo to a savepoint.

Who may run at the same time: several people, exlets, and the run's owner. The run's row is locked first, then checked.
A run with an owner gets an inbox item, and its owner acts at the next step; one without is changed here, or woken to
act. One transaction: inbox item, audit and wake exist together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, delete, literal, select, update

from aft.errors import OrderRefused
from aft.ids import RunId, new_id
from aft.runs.orders.actor import Actor
from aft.runs.records import audit, inbox
from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import RunRow
from aft.runs.states import GOING, Status
from aft.runs.wakes import wake
from aft.store.db_time import Moment, now
from aft.store.tables import holds, runs
from aft.texts import format_value

#: Why a parked run is not undone to a savepoint: it would have to go on first, with the step in doubt.
UNKNOWN_SAVEPOINTS = (
    "which savepoints it is in is not known, as its worker was lost; retry it first, or compensate it as a whole"
)


def suspend(connection: Connection, run: RunRow, by: Actor) -> None:
    """Suspend a run at its next step, on a person's order; signals are kept, and timers that pass fire on resume.

    A run that an exlet has suspended is taken over: it stays suspended until a person resumes it, and the exlet's own
    ``continue`` has no effect. A resume that no worker has read yet is cancelled; the last order counts. The caller has
    locked the run's row, as exlets do before they check their holds. Raises OrderRefused.
    """
    if _take_back_resume(connection, run, by):
        _stop(connection, run, by)
    elif run.status in GOING and _pending_stops(connection, run)[-1:] == [InboxVerb.RESUME]:
        _send(connection, run, InboxVerb.SUSPEND, {"note": by.note}, by)
    elif not _take_over(connection, run):
        suspend_for_exlet(connection, run, by)
        return
    elif run.status is Status.SUSPENDED:
        values = {"reason": _suspended_by(by), "updated_at": now()}
        connection.execute(update(runs).where(runs.c.id == run.id).values(**values))
    elif run.status in GOING and run.worker_id is not None:
        _send(connection, run, InboxVerb.SUSPEND, {"note": by.note}, by)
    elif run.status in GOING:
        _stop(connection, run, by)
    else:
        raise OrderRefused(f"run {run.id} is {run.status.value}; only one that is going on can be suspended")
    audit.write(connection, run.id, by.name, InboxVerb.SUSPEND.value, by.note)


def suspend_for_exlet(connection: Connection, run: RunRow, by: Actor) -> None:
    """Suspend a run at its next step, for an exlet; raises OrderRefused if it is suspended, or has an unread order."""
    ordered = run.wake_id is not None if run.status is Status.SUSPENDED else inbox.any_order(connection, run.id, 0)
    if ordered and run.status in (*GOING, Status.SUSPENDED):
        raise OrderRefused(f"run {run.id} has an order already that no worker has carried out yet; wait for that")
    if run.status not in GOING:
        raise OrderRefused(f"run {run.id} is {run.status.value}; only one that is going on can be suspended")
    if run.worker_id is not None:
        _send(connection, run, InboxVerb.SUSPEND, {"note": by.note}, by)
    else:
        _stop(connection, run, by)
    audit.write(connection, run.id, by.name, InboxVerb.SUSPEND.value, by.note)


def _take_back_resume(connection: Connection, run: RunRow, by: Actor) -> bool:
    """Refuse the unread resumes of a suspended run and return whether there were any; not if it is to be cancelled."""
    if run.status is not Status.SUSPENDED or run.worker_id is not None:
        return False
    items = inbox.unread(connection, run.id)
    resumes = [item for item in items if item.verb is InboxVerb.RESUME]
    if not resumes or any(item.verb is InboxVerb.CANCEL for item in items):
        return False
    inbox.mark_read(connection, run.id, run.epoch, resumes, f"refused: {by.name} suspended it before it went on")
    return True


def join_suspension(connection: Connection, run: RunRow, by: Actor, plan_id: str) -> bool:
    """Record that this exlet suspends the run too; False if no other exlet does. The caller has locked the run."""
    holders = _holders(connection, run.id)
    if not holders or plan_id in holders or run.status not in (*GOING, Status.SUSPENDED):
        return False
    audit.write(connection, run.id, by.name, InboxVerb.SUSPEND.value, by.note)
    return True


def _stop(connection: Connection, run: RunRow, by: Actor) -> None:
    """Suspend a run that has no owner."""
    stopped = {"status": Status.SUSPENDED.value, "reason": _suspended_by(by), "wake_id": None, "sweep_at": None}
    if run.started_at is not None:
        stopped["due_at"] = None  # one that has not begun keeps its start time
    connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **stopped))


def _suspended_by(by: Actor) -> str:
    return f"suspended by {by.name}: {by.note or 'no note'}"


def _take_over(connection: Connection, run: RunRow) -> bool:
    """Delete the exlets' holds on a run, and return whether there were any: only a person resumes it from now on."""
    return bool(connection.execute(delete(holds).where(holds.c.run_id == run.id)).rowcount)


def check_last_suspender(connection: Connection, run_id: RunId, plan_id: str) -> None:
    """Raise OrderRefused unless this exlet holds a run that is locked, and no other does.

    A person may have taken it over, or another exlet may hold it, too: then that one's ``continue`` resumes it.
    """
    holders = _holders(connection, run_id)
    if plan_id not in holders:
        raise OrderRefused(f"run {run_id} is a person's to resume, who has taken it over")
    if len(holders) > 1:
        raise OrderRefused(f"another exlet holds run {run_id}, too; it goes on when that one continues it")


def _holders(connection: Connection, run_id: RunId) -> set[str]:
    return set(connection.execute(select(holds.c.plan_id).where(holds.c.run_id == run_id)).scalars())


def resume(connection: Connection, run: RunRow, by: Actor) -> None:
    """Resume a suspended run, or revoke a suspend that its owner has not acted on; raises OrderRefused."""
    stops = run.status in GOING and _pending_stops(connection, run)[-1:] == [InboxVerb.SUSPEND]
    if run.status is not Status.SUSPENDED and not stops:
        raise OrderRefused(f"run {run.id} is {run.status.value}, not suspended; there is nothing to resume")
    _take_over(connection, run)
    _resume(connection, run, by)
    audit.write(connection, run.id, by.name, InboxVerb.RESUME.value, by.note)


def _pending_stops(connection: Connection, run: RunRow) -> list[InboxVerb]:
    """Return the suspend and resume orders of a run that no owner has acted on, in order."""
    return [
        item.verb for item in inbox.unread(connection, run.id) if item.verb in (InboxVerb.SUSPEND, InboxVerb.RESUME)
    ]


def resume_for_exlet(connection: Connection, run: RunRow, by: Actor) -> None:
    """Resume a run for an exlet, if it is suspended or has an unread suspend; does nothing otherwise."""
    stops = any(item.verb is InboxVerb.SUSPEND for item in inbox.unread(connection, run.id))
    if run.status is Status.SUSPENDED or stops:
        _resume(connection, run, by)
        audit.write(connection, run.id, by.name, InboxVerb.RESUME.value, by.note)


def _resume(connection: Connection, run: RunRow, by: Actor) -> None:
    """Resume a run; one that has not begun begins at its start time."""
    if run.started_at is None and run.worker_id is None and _is_ahead(connection, run.due_at):
        begins = {"status": Status.RUNNING.value, "reason": None, "wake_id": new_id(), "sweep_at": run.due_at}
        connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **begins))
    else:
        _send(connection, run, InboxVerb.RESUME, {}, by)


def _is_ahead(connection: Connection, due_at: datetime | None) -> bool:
    """Return whether a time is in the future, by the database's clock."""
    return due_at is not None and bool(connection.execute(select(literal(due_at, Moment) > now())).scalar_one())


def cancel(connection: Connection, run: RunRow, by: Actor) -> None:
    """Order a run to unwind its whole stack and end; raises OrderRefused."""
    _cancel(connection, run, by, undo=True)


def cancel_as_is(connection: Connection, run: RunRow, by: Actor) -> None:
    """Order a run to end without undoing anything; raises OrderRefused."""
    _cancel(connection, run, by, undo=False)


def compensate(connection: Connection, run: RunRow, by: Actor) -> None:
    """Order a completed run to unwind its whole stack; one that has not ended is cancelled. Raises OrderRefused."""
    if run.ended_as is None:
        cancel(connection, run, by)
        return
    if (objection := find_objection(run)) is not None:
        raise OrderRefused(objection)
    _send(connection, run, InboxVerb.COMPENSATE, {}, by)
    audit.write(connection, run.id, by.name, InboxVerb.COMPENSATE.value, by.note)


def is_being_undone(run: RunRow) -> bool:
    """Return whether a run is being unwound; also while it is parked for a compensator."""
    return run.ended_as is None and run.cause is not None


def find_objection(run: RunRow) -> str | None:
    """Return why a run cannot be compensated as a whole; None if it can."""
    if is_being_undone(run):
        return f"run {run.id} is being undone already, it is {run.status.value}"
    if run.ended_as is None and run.pivoted_at is not None:
        return f"run {run.id} has gone past its pivot and only goes forward; cancel it without compensating, as it is"
    if run.ended_as is None:
        return None
    if run.erased_at is not None:
        return f"run {run.id} was forgotten: what would be undone is not known any more"
    if run.ended_as is not Status.COMPLETED:
        return f"run {run.id} has ended {_format_end(run)}; only a completed one can be undone"
    if run.parent_id is not None:
        return f"run {run.id} is a child of run {run.parent_id}, whose stack it is part of; compensate that one"
    return None


def _format_end(run: RunRow) -> str:
    """Format how a run has ended, and its present state if that differs (parked for a late effect)."""
    ended = run.ended_as or run.status
    return ended.value if run.status is ended else f"{ended.value}, and {run.status.value} since"


def undo_to(connection: Connection, run: RunRow, by: Actor, *, savepoint: str) -> None:
    """Order a run to unwind to a savepoint that it is in; the flow's code is interrupted there, and may go another way.

    Which savepoints an executed run is in only its owner knows: the owner checks when it carries the order out, or the
    next owner, if that one was lost. A suspended run stays suspended: its flow is interrupted when it is resumed,
    before anything else is executed. Raises OrderRefused.
    """
    path = find_savepoint(run, savepoint)
    payload = {"generation": run.key_generation, "note": by.note}
    if path is None:
        payload |= {"to": savepoint, "name": savepoint, "seq": run.seq}
    else:
        payload |= {"to": path, "name": (run.savepoints or {}).get(path) or path}
    item = by.new_item(InboxVerb.COMPENSATE, payload)
    wake.send(connection, run, item, lambda row: row.status is not Status.SUSPENDED)
    if run.status is Status.SUSPENDED:
        inbox.put_off(connection, run.id, run.inbox_seq + 1)
    audit.write(connection, run.id, by.name, InboxVerb.COMPENSATE.value, by.note)


def find_savepoint(run: RunRow, savepoint: str) -> str | None:
    """Return the path of a savepoint that a run is in, by its name or path; raises OrderRefused if it is in none such.

    None: the run has an owner, or its last owner was lost. Only an owner that releases a run stores its savepoints.
    """
    if run.ended_as is not None or run.cause is not None:
        raise OrderRefused(f"run {run.id} is {_format_end(run)}: it is in no savepoint; compensate it as a whole")
    if run.worker_id is not None:
        return None
    if run.savepoints is None and run.status is Status.PARKED:
        raise OrderRefused(f"run {run.id} is parked, and {UNKNOWN_SAVEPOINTS}")
    if run.savepoints is None:
        return None
    found = [path for path, name in run.savepoints.items() if savepoint in (path, name)]
    if not found:
        inside = ", ".join(repr(name or path) for path, name in run.savepoints.items()) or "none"
        raise OrderRefused(f"run {run.id} is not in savepoint {format_value(savepoint)}; it is in {inside}")
    if are_side_by_side(found):
        raise OrderRefused(f"run {run.id} {format_side_by_side(savepoint, found)}")
    return found[-1]


def are_side_by_side(paths: Sequence[str]) -> bool:
    """Return whether savepoints are in different branches; otherwise each is inside the one before."""
    return any(not inner.startswith(f"{outer}.") for outer, inner in pairwise(paths))


def format_side_by_side(savepoint: str, paths: Sequence[str]) -> str:
    """Format the refusal of a name that several savepoints have."""
    named = f"{len(paths)} savepoints {format_value(savepoint)} side by side"
    return f"is in {named}; name one by its path: {', '.join(paths)}"


def _cancel(connection: Connection, run: RunRow, by: Actor, *, undo: bool) -> None:
    if run.ended_as is not None:
        raise OrderRefused(f"run {run.id} has ended, it is {_format_end(run)}; `compensate` undoes a completed one")
    if (objection := find_objection(run)) is not None and (undo or is_being_undone(run)):
        raise OrderRefused(objection)
    _send(connection, run, InboxVerb.CANCEL, {"compensate": undo, "note": by.note}, by)
    audit.write(connection, run.id, by.name, InboxVerb.CANCEL.value, by.note)


def _send(connection: Connection, run: RunRow, verb: InboxVerb, payload: dict[str, Any], by: Actor) -> None:
    wake.send(connection, run, by.new_item(verb, payload), lambda row: True)
