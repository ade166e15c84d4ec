"""What a person may ask of a run that goes on: stop, go on, undo everything, end.

Who may run at the same time: several people, and the run's owner. The run's row is locked first, then looked at. A run
that somebody executes gets a letter, and its owner acts at the next step; one that nobody does is changed here, or
woken to act. One transaction: letter, audit and wake exist together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, delete, literal, select, update

from aft.errors import OrderRefused
from aft.ids import RunId, new_id
from aft.runs import audit, inbox, waking
from aft.runs.inbox import Verb
from aft.runs.orders import Person
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.waking import Post
from aft.store.moments import Moment, now
from aft.store.tables import holds, runs

Order = Callable[[Connection, RunRow, Person, datetime, timedelta], None]

#: States in which a run can be stopped for a while.
_GOING = (Status.RUNNING, Status.WAITING, Status.RECOVERING)
#: Why a parked run is not undone to a savepoint: it would have to go on first, with the step that it was lost in.
UNKNOWN_SAVEPOINTS = (
    "which savepoints it is in is not known, as its worker was lost; retry it first, or compensate it as a whole"
)


def suspend(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Stop a run at its next step, until it is resumed; signals are kept, times that pass are caught up with.

    For a person. A run that an exlet has suspended is taken over: it stays suspended until a person resumes it, and
    the exlet's own ``continue`` leaves it alone. A resume that no worker has heard of yet is taken back; the last word
    counts. The run's row is locked, as by exlets before they look at their holds.
    """
    if _take_back_resume(connection, run, by):
        _stop(connection, run, by)
    elif run.status in _GOING and _pending_stops(connection, run)[-1:] == [Verb.RESUME]:
        _send(connection, run, Verb.SUSPEND, {"note": by.note}, by, at, grace)
    elif not _take_over(connection, run):
        hold(connection, run, by, at, grace)
        return
    elif run.status is Status.SUSPENDED:
        told = {"reason": _suspended_by(by), "updated_at": now()}
        connection.execute(update(runs).where(runs.c.id == run.id).values(**told))
    elif run.status in _GOING and run.worker_id is not None:
        _send(connection, run, Verb.SUSPEND, {"note": by.note}, by, at, grace)
    elif run.status in _GOING:
        _stop(connection, run, by)
    else:
        raise OrderRefused(f"run {run.id} is {run.status.value}; only one that is going on can be suspended")
    audit.write(connection, run.id, by.name, Verb.SUSPEND.value, by.note)


def hold(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Stop a run at its next step, for an exlet; raises OrderRefused if it is stopped already, or about to be."""
    ordered = run.wake_id is not None if run.status is Status.SUSPENDED else inbox.any_order(connection, run.id, 0)
    if ordered and run.status in (*_GOING, Status.SUSPENDED):
        raise OrderRefused(f"run {run.id} has an order already that no worker has carried out yet; wait for that")
    if run.status not in _GOING:
        raise OrderRefused(f"run {run.id} is {run.status.value}; only one that is going on can be suspended")
    if run.worker_id is not None:
        _send(connection, run, Verb.SUSPEND, {"note": by.note}, by, at, grace)
    else:
        _stop(connection, run, by)
    audit.write(connection, run.id, by.name, Verb.SUSPEND.value, by.note)


def _take_back_resume(connection: Connection, run: RunRow, by: Person) -> bool:
    """Answer resumes of a suspended run that nobody has heard of yet, unless it ends with what else was asked."""
    if run.status is not Status.SUSPENDED or run.worker_id is not None:
        return False
    letters = inbox.unread(connection, run.id)
    resumes = [letter for letter in letters if letter.verb is Verb.RESUME]
    if not resumes or any(letter.verb is Verb.CANCEL for letter in letters):
        return False
    inbox.mark_read(connection, run.id, run.epoch, resumes, f"refused: {by.name} suspended it before it went on")
    return True


def join_hold(connection: Connection, run: RunRow, by: Person, plan_id: str) -> bool:
    """Tell whether other exlets hold a run that is locked, so that one more has nothing to do to have it stopped."""
    holders = _holders(connection, run.id)
    if not holders or plan_id in holders or run.status not in (*_GOING, Status.SUSPENDED):
        return False
    audit.write(connection, run.id, by.name, Verb.SUSPEND.value, by.note)
    return True


def _stop(connection: Connection, run: RunRow, by: Person) -> None:
    """Suspend a run that has no owner."""
    stopped = {"status": Status.SUSPENDED.value, "reason": _suspended_by(by), "wake_id": None, "sweep_at": None}
    if run.started_at is not None:
        stopped["due_at"] = None  # one that has not begun keeps when it shall
    connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **stopped))


def _suspended_by(by: Person) -> str:
    return f"suspended by {by.name}: {by.note or 'no note'}"


def _take_over(connection: Connection, run: RunRow) -> bool:
    """Forget that exlets hold a run, and tell whether one did: from now on a person decides when it goes on."""
    return bool(connection.execute(delete(holds).where(holds.c.run_id == run.id)).rowcount)


def check_last_hold(connection: Connection, run_id: RunId, plan_id: str) -> None:
    """Raise OrderRefused unless this exlet holds a run that is locked, and no other does.

    A person may have taken it over, or another exlet may hold it, too: then that one's ``continue`` lets it go on.
    """
    holders = _holders(connection, run_id)
    if plan_id not in holders:
        raise OrderRefused(f"run {run_id} is a person's to resume, who has taken it over")
    if len(holders) > 1:
        raise OrderRefused(f"another exlet holds run {run_id}, too; it goes on when that one continues it")


def _holders(connection: Connection, run_id: RunId) -> set[str]:
    return set(connection.execute(select(holds.c.plan_id).where(holds.c.run_id == run_id)).scalars())


def resume(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a suspended run go on; or one that goes on still, though it was asked to stop."""
    stops = run.status in _GOING and _pending_stops(connection, run)[-1:] == [Verb.SUSPEND]
    if run.status is not Status.SUSPENDED and not stops:
        raise OrderRefused(f"run {run.id} is {run.status.value}, not suspended; there is nothing to resume")
    _take_over(connection, run)
    _resume(connection, run, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.RESUME.value, by.note)


def _pending_stops(connection: Connection, run: RunRow) -> list[Verb]:
    """What a run was asked about stopping that no owner has acted on: to suspend it, or to take that back."""
    return [letter.verb for letter in inbox.unread(connection, run.id) if letter.verb in (Verb.SUSPEND, Verb.RESUME)]


def resume_held(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a run go on that was suspended, or is about to be; one that somebody else has resumed is left alone."""
    stops = any(letter.verb is Verb.SUSPEND for letter in inbox.unread(connection, run.id))
    if run.status is Status.SUSPENDED or stops:
        _resume(connection, run, by, at, grace)
        audit.write(connection, run.id, by.name, Verb.RESUME.value, by.note)


def _resume(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a run go on; one that has not begun begins when it was to."""
    if run.started_at is None and run.worker_id is None and _is_ahead(connection, run.due_at):
        begins = {"status": Status.RUNNING.value, "reason": None, "wake_id": new_id(), "sweep_at": run.due_at}
        connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **begins))
    else:
        _send(connection, run, Verb.RESUME, {}, by, at, grace)


def _is_ahead(connection: Connection, due_at: datetime | None) -> bool:
    """Tell whether something is not due yet, by the database's clock."""
    return due_at is not None and bool(connection.execute(select(literal(due_at, Moment) > now())).scalar_one())


def cancel(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Stop a run for good, and undo everything it did."""
    _cancel(connection, run, by, at, grace, undo=True)


def abandon(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Stop a run for good, and leave what it did as it is."""
    _cancel(connection, run, by, at, grace, undo=False)


def compensate(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Undo everything a run did, though it has completed; one that has not is cancelled."""
    if run.ended_as is None:
        cancel(connection, run, by, at, grace)
        return
    if (objection := find_objection(run)) is not None:
        raise OrderRefused(objection)
    _send(connection, run, Verb.COMPENSATE, {}, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.COMPENSATE.value, by.note)


def is_being_undone(run: RunRow) -> bool:
    """Tell whether a run goes backward; also one that is parked for a compensator then."""
    return run.ended_as is None and run.cause is not None


def find_objection(run: RunRow) -> str | None:
    """Return why a run cannot be compensated as a whole; None: it can."""
    if is_being_undone(run):
        return f"run {run.id} is being undone already, it is {run.status.value}"
    if run.ended_as is None and run.pivoted_at is not None:
        return f"run {run.id} has gone past its pivot and only goes forward; cancel it without compensating, as it is"
    if run.ended_as is None:
        return None
    if run.erased_at is not None:
        return f"run {run.id} was forgotten: what would be undone is not known any more"
    if run.ended_as is not Status.COMPLETED:
        return f"run {run.id} has ended {_spell_end(run)}; only a completed one can be undone"
    if run.parent_id is not None:
        return f"run {run.id} is a child of run {run.parent_id}, whose stack it is part of; compensate that one"
    return None


def _spell_end(run: RunRow) -> str:
    """How a run has ended, and that it is parked since, for what came late."""
    ended = run.ended_as or run.status
    return ended.value if run.status is ended else f"{ended.value}, and {run.status.value} since"


def undo_to(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta, *, savepoint: str) -> None:
    """Undo what a run did since a savepoint that it is in; its flow hears of it there, and may take another way.

    Which savepoints a run is in that is being executed only its owner knows: it judges when it obeys; so does the next
    one, if that was lost. A suspended run stays so: its flow hears of it when it is resumed, before anything else is
    executed.
    """
    path = find_savepoint(run, savepoint)
    payload = {"generation": run.key_generation, "note": by.note}
    if path is None:
        payload |= {"to": savepoint, "name": savepoint, "seq": run.seq}
    else:
        payload |= {"to": path, "name": (run.savepoints or {}).get(path) or path}
    post = Post(Verb.COMPENSATE, payload, by.name, at, grace)
    waking.send(connection, run, post, lambda row: row.status is not Status.SUSPENDED)
    if run.status is Status.SUSPENDED:
        inbox.put_off(connection, run.id, run.inbox_seq + 1)
    audit.write(connection, run.id, by.name, Verb.COMPENSATE.value, by.note)


def find_savepoint(run: RunRow, savepoint: str) -> str | None:
    """The path of a savepoint that a run is in, by its name or path; raises OrderRefused if it is in none of that name.

    None: somebody executes the run, or did and was lost. Only whoever lets a run go knows the savepoints that it is in.
    """
    if run.ended_as is not None or run.cause is not None:
        raise OrderRefused(f"run {run.id} is {_spell_end(run)}: it is in no savepoint; compensate it as a whole")
    if run.worker_id is not None:
        return None
    if run.savepoints is None and run.status is Status.PARKED:
        raise OrderRefused(f"run {run.id} is parked, and {UNKNOWN_SAVEPOINTS}")
    if run.savepoints is None:
        return None
    found = [path for path, name in run.savepoints.items() if savepoint in (path, name)]
    if not found:
        inside = ", ".join(repr(name or path) for path, name in run.savepoints.items()) or "none"
        raise OrderRefused(f"run {run.id} is not in savepoint {savepoint!r}; it is in {inside}")
    if are_side_by_side(found):
        raise OrderRefused(f"run {run.id} {spell_side_by_side(savepoint, found)}")
    return found[-1]


def are_side_by_side(paths: Sequence[str]) -> bool:
    """Tell whether savepoints are in different branches; else each is in the one before."""
    return any(not inner.startswith(f"{outer}.") for outer, inner in pairwise(paths))


def spell_side_by_side(savepoint: str, paths: Sequence[str]) -> str:
    """Say which of several savepoints of one name could be meant."""
    return f"is in {len(paths)} savepoints {savepoint!r} side by side; name one by its path: {', '.join(paths)}"


def _cancel(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta, *, undo: bool) -> None:
    if run.ended_as is not None:
        raise OrderRefused(f"run {run.id} has ended, it is {_spell_end(run)}; `compensate` undoes a completed one")
    if (objection := find_objection(run)) is not None and (undo or is_being_undone(run)):
        raise OrderRefused(objection)
    _send(connection, run, Verb.CANCEL, {"compensate": undo, "note": by.note}, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.CANCEL.value, by.note)


def _send(
    connection: Connection, run: RunRow, verb: Verb, payload: dict[str, Any], by: Person, at: datetime, grace: timedelta
) -> None:
    waking.send(connection, run, Post(verb, payload, by.name, at, grace), lambda row: True)
