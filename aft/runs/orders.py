"""What a person may ask of a parked run: try again, let a frame go, or say that it was undone by hand.

And of one that is executed: to take it away from its worker. That is a rescue like any other, and as safe.

Who may run at the same time: two people, or a person and a late wake. The UPDATE that gives the order checks that the
run is parked and awaits nothing; the second one finds no row and is told. One transaction: order, audit and wake
exist together or not at all; the run stays ``parked`` until a worker has taken it. A lost wake is the sweeper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select, update

from aft import names
from aft.envelope import Message
from aft.errors import OrderRefused
from aft.fault import FaultKind, FaultState
from aft.ids import OrderId, RunId, WorkerId, new_id
from aft.runs import audit, inbox
from aft.runs.inbox import Verb
from aft.runs.rescue import take_away
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.store import outbox
from aft.store.leases import end_leases
from aft.store.moments import later, now
from aft.store.tables import faults, runs


@dataclass(frozen=True, slots=True)
class Person:
    """Who gives an order, and why."""

    name: str
    note: str | None = None


def retry(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let a parked run try again what it was parked for."""
    _give(connection, run, Verb.RETRY, dict, by, at, grace)


def skip_frame(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Let the frame go that a run is parked for; the run will end ``failed``, with the note."""
    _settle_frame(connection, run, Verb.SKIP, by, at, grace)


def frame_done(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Say that the frame a run is parked for was undone by hand; the unwinding goes on below it."""
    _settle_frame(connection, run, Verb.DONE, by, at, grace)


def release(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Take a run away from the worker that has it: somebody else goes on with it, and the worker writes nothing more.

    What it was doing may be done again, under the same key, as after the worker's death; no death is counted.
    """
    if not take_away(connection, run.namespace, at, by.name, runs.c.id == run.id):
        raise OrderRefused(f"run {run.id} has no worker that it could be taken from; it is {run.status.value}")
    audit.write(connection, run.id, by.name, "release", by.note)


def release_worker(connection: Connection, namespace: str, worker: WorkerId, by: Person, at: datetime) -> list[RunId]:
    """End a worker's lease now, and take all its runs away; returns which. It becomes another worker if it lives."""
    end_leases(connection, namespace, [worker])
    taken = [RunId(event.run) for event in take_away(connection, namespace, at, by.name, runs.c.worker_id == worker)]
    for run_id in taken:
        audit.write(connection, run_id, by.name, "release", by.note)
    return taken


def _settle_frame(connection: Connection, run: RunRow, verb: Verb, by: Person, at: datetime, grace: timedelta) -> None:
    if not (by.note or "").strip():
        raise OrderRefused(f"to {verb.value} a frame of run {run.id} needs a note that says why")
    _give(connection, run, verb, lambda: _parked_frame(connection, run, by), by, at, grace)


def _parked_frame(connection: Connection, run: RunRow, by: Person) -> dict[str, Any]:
    # Asked after the run's row is locked: the frame that it is parked for cannot change any more.
    statement = select(faults.c.path).where(
        faults.c.run_id == run.id,
        faults.c.state == FaultState.PARKED.value,
        faults.c.kind == FaultKind.COMPENSATOR.value,
    )
    path = connection.execute(statement.order_by(faults.c.id.desc()).limit(1)).scalar()
    if path is None:
        raise OrderRefused(f"run {run.id} is not parked for a compensator: {run.reason}; `retry` is what it can do")
    return {"path": path, "note": by.note}


def _give(
    connection: Connection,
    run: RunRow,
    verb: Verb,
    payload: Callable[[], dict[str, Any]],
    by: Person,
    at: datetime,
    grace: timedelta,
) -> None:
    order = OrderId(new_id())
    seq = connection.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.status == Status.PARKED.value, runs.c.wake_id.is_(None))
        .values(
            wake_id=order,
            due_at=now(),
            sweep_at=later(grace.total_seconds()),
            inbox_seq=runs.c.inbox_seq + 1,
            updated_at=now(),
        )
        .returning(runs.c.inbox_seq)
    ).scalar()
    if seq is None:
        raise OrderRefused(_why_not(connection, run))
    inbox.append(connection, run.id, seq, order, verb, payload(), by.name)
    audit.write(connection, run.id, by.name, verb.value, by.note)
    message = Message.about_order(run.id, order, at)
    address = names.order_run(run.namespace, run.flow, run.version)
    outbox.put(connection, run.namespace, [(address, message.encode())])


def _why_not(connection: Connection, run: RunRow) -> str:
    row = connection.execute(select(runs.c.status, runs.c.wake_id).where(runs.c.id == run.id)).one()
    if row.status == Status.PARKED.value:
        return f"run {run.id} has an order already that no worker has carried out yet; is a dispatcher running?"
    return f"run {run.id} is {row.status}, not parked; there is nothing to be done by hand"
