"""What a person may ask of a run that goes on: stop, go on, undo everything, end.

Who may run at the same time: several people, and the run's owner. The run's row is locked first, then looked at. A run
that somebody executes gets a letter, and its owner acts at the next step; one that nobody does is changed here, or
woken to act. One transaction: letter, audit and wake exist together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, update

from aft.errors import OrderRefused
from aft.ids import new_id
from aft.runs import audit, inbox, journal, waking
from aft.runs.inbox import Verb
from aft.runs.orders import Person
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.waking import Post
from aft.store.moments import now
from aft.store.tables import runs

Order = Callable[[Connection, RunRow, Person, datetime, timedelta], None]

#: States in which a run can be stopped for a while.
_GOING = (Status.RUNNING, Status.WAITING, Status.RECOVERING)


def suspend(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Stop a run at its next step, until it is resumed; signals are kept, times that pass are caught up with."""
    if run.status not in _GOING:
        raise OrderRefused(f"run {run.id} is {run.status.value}; only one that is going on can be suspended")
    if inbox.any_order(connection, run.id, 0):
        raise OrderRefused(f"run {run.id} has an order already that no worker has carried out yet; wait for that")
    if run.worker_id is not None:
        _send(connection, run, Verb.SUSPEND, {"note": by.note}, by, at, grace)
    else:
        why = f"suspended by {by.name}: {by.note or 'no note'}"
        stopped = {"status": Status.SUSPENDED.value, "reason": why, "wake_id": None, "sweep_at": None}
        if run.started_at is not None:
            stopped["due_at"] = None  # one that has not begun keeps when it shall
        connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **stopped))
    audit.write(connection, run.id, by.name, Verb.SUSPEND.value, by.note)


def resume(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a suspended run go on."""
    if run.status is not Status.SUSPENDED:
        raise OrderRefused(f"run {run.id} is {run.status.value}, not suspended; there is nothing to resume")
    _resume(connection, run, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.RESUME.value, by.note)


def resume_held(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a run go on that was suspended, or is about to be; one that somebody else has resumed is left alone."""
    stops = any(letter.verb is Verb.SUSPEND for letter in inbox.unread(connection, run.id))
    if run.status is Status.SUSPENDED or stops:
        _resume(connection, run, by, at, grace)
        audit.write(connection, run.id, by.name, Verb.RESUME.value, by.note)


def _resume(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a run go on; one that has not begun begins when it was to."""
    if run.started_at is None and run.due_at is not None and run.due_at > at and run.worker_id is None:
        begins = {"status": Status.RUNNING.value, "reason": None, "wake_id": new_id(), "sweep_at": run.due_at}
        connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **begins))
    else:
        _send(connection, run, Verb.RESUME, {}, by, at, grace)


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
    if run.ended_as is not Status.COMPLETED:
        raise OrderRefused(f"run {run.id} has ended {run.status.value}; only a completed one can be undone")
    if run.parent_id is not None:
        raise OrderRefused(
            f"run {run.id} is a child of run {run.parent_id}, whose stack it is part of; compensate that one"
        )
    _send(connection, run, Verb.COMPENSATE, {}, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.COMPENSATE.value, by.note)


def undo_to(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta, *, savepoint: str) -> None:
    """Undo what a run did since a savepoint that it is in; its flow hears of it there, and may take another way."""
    path = find_savepoint(run, savepoint)
    payload = {"to": path, "name": run.savepoints[path] or path, "note": by.note}
    _send(connection, run, Verb.COMPENSATE, payload, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.COMPENSATE.value, by.note)


def find_savepoint(run: RunRow, savepoint: str) -> str:
    """The path of a savepoint that a run is in, by its name or path; raises OrderRefused."""
    if run.ended_as is not None or run.cause is not None:
        raise OrderRefused(f"run {run.id} is {run.status.value}: it is in no savepoint; compensate it as a whole")
    found = [path for path, name in run.savepoints.items() if savepoint in (path, name)]
    if not found:
        inside = ", ".join(repr(name or path) for path, name in run.savepoints.items()) or "none"
        raise OrderRefused(f"run {run.id} is not in savepoint {savepoint!r}; it is in {inside}")
    return found[-1]


def _cancel(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta, *, undo: bool) -> None:
    if run.ended_as is not None:
        raise OrderRefused(f"run {run.id} has ended, it is {run.status.value}; `compensate` undoes a completed one")
    if run.cause is not None:
        raise OrderRefused(f"run {run.id} is being undone already, it is {run.status.value}")
    if undo and journal.is_past_pivot(connection, run.id):
        raise OrderRefused(
            f"run {run.id} has gone past its pivot and only goes forward; cancel it without compensating, as it is"
        )
    _send(connection, run, Verb.CANCEL, {"compensate": undo, "note": by.note}, by, at, grace)
    audit.write(connection, run.id, by.name, Verb.CANCEL.value, by.note)


def _send(
    connection: Connection, run: RunRow, verb: Verb, payload: dict[str, Any], by: Person, at: datetime, grace: timedelta
) -> None:
    waking.send(connection, run, Post(verb, payload, by.name, at, grace), lambda row: True)
