"""Orders that a person may give to a parked run: retry, skip a frame, or mark a frame as undone by hand.

And to a run that is executed: release it from its worker. That is a rescue like any other, and as safe.

Who may run at the same time: two people, or a person and a late wake. The UPDATE that gives the order checks that the
run is parked and awaits no wake; the second one finds no row and raises OrderRefused. One transaction: order, audit
and wake exist together or not at all; the run stays ``parked`` until a worker has claimed it. If the wake's message is
lost, the timer claims the run at its ``sweep_at``.
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
from aft.runs.ownership.rescue import take_away
from aft.runs.records import audit, inbox
from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.store import outbox
from aft.store.db_time import later, now
from aft.store.leases import end_leases
from aft.store.tables import faults, runs


@dataclass(frozen=True, slots=True)
class Person:
    """The person who gives an order, and the reason."""

    name: str
    note: str | None = None


def retry(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Order a parked run to retry the step or frame that it is parked for."""
    _give(connection, run, InboxVerb.RETRY, dict, by, at, grace)


def skip_frame(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Skip the frame that a run is parked for; the run will end ``failed``, with the note."""
    _settle_frame(connection, run, InboxVerb.SKIP, by, at, grace)


def frame_done(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Record that the frame a run is parked for was undone by hand; the run unwinds on below it."""
    _settle_frame(connection, run, InboxVerb.DONE, by, at, grace)


def release(connection: Connection, run: RunRow, by: Person, at: datetime, grace: timedelta) -> None:
    """Take a run away from its worker, which is fenced from now on; another worker continues it.

    The step under way may be executed again, with the same idempotency key, as after the worker's death; no death is
    counted. Raises OrderRefused if the run has no owner.
    """
    if not take_away(connection, run.namespace, at, by.name, runs.c.id == run.id):
        raise OrderRefused(f"run {run.id} has no worker that it could be taken from; it is {run.status.value}")
    audit.write(connection, run.id, by.name, "release", by.note)


def release_worker(connection: Connection, namespace: str, worker: WorkerId, by: Person, at: datetime) -> list[RunId]:
    """End a worker's lease, rescue all its runs and return their ids. If its process lives, it gets a new worker id."""
    end_leases(connection, namespace, [worker])
    taken = [RunId(event.run) for event in take_away(connection, namespace, at, by.name, runs.c.worker_id == worker)]
    for run_id in taken:
        audit.write(connection, run_id, by.name, "release", by.note)
    return taken


def _settle_frame(
    connection: Connection, run: RunRow, verb: InboxVerb, by: Person, at: datetime, grace: timedelta
) -> None:
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
    verb: InboxVerb,
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
