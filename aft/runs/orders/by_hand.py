"""Orders for one run by a person: retry, skip a frame, mark a frame as undone by hand; and take it from its worker.

The first three are for a parked run. The last is for a run with an owner: a rescue like any other, and as safe.

Who may run at the same time: two people, or a person and a late wake. The run's row is locked first; then it must be
parked and await no wake: the second order finds the first one's wake and raises OrderRefused. One transaction: order,
audit and wake exist together or not at all; the run stays ``parked`` until a worker has claimed it. If the wake's
message is lost, the timer claims the run at its ``sweep_at``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from aft.errors import OrderRefused
from aft.fault import FaultKind, FaultState
from aft.ids import RunId, WorkerId
from aft.runs import run_rows
from aft.runs.orders.actor import Actor
from aft.runs.ownership.rescue import take_away
from aft.runs.records import audit
from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import wake
from aft.security.redaction import redact
from aft.store.leases import end_leases
from aft.store.tables import faults, runs


def retry(connection: Connection, run: RunRow, by: Actor) -> None:
    """Order a parked run to retry the step or frame that it is parked for."""
    _give(connection, _lock_parked(connection, run), InboxVerb.RETRY, {}, by)


def skip_frame(connection: Connection, run: RunRow, by: Actor) -> None:
    """Skip the frame that a run is parked for; the run will end ``failed``, with the note."""
    _close_frame(connection, run, InboxVerb.SKIP, by)


def frame_done(connection: Connection, run: RunRow, by: Actor) -> None:
    """Record that the frame a run is parked for was undone by hand; the run unwinds on below it."""
    _close_frame(connection, run, InboxVerb.DONE, by)


def take_from_worker(connection: Connection, run: RunRow, by: Actor) -> None:
    """Take a run away from its worker, which is fenced from now on; another worker continues it.

    The step under way may be executed again, with the same idempotency key, as after the worker's death; no death is
    counted. Raises OrderRefused if the run has no owner.
    """
    if not take_away(connection, run.namespace, by.at, by.name, runs.c.id == run.id):
        raise OrderRefused(f"run {run.id} has no worker that it could be taken from; it is {run.status.value}")
    audit.write(connection, run.id, by.name, "release", by.note)


def take_all_from_worker(connection: Connection, namespace: str, worker: WorkerId, by: Actor) -> list[RunId]:
    """End a worker's lease, rescue all its runs and return their ids. If its process lives, it gets a new worker id."""
    end_leases(connection, namespace, [worker])
    taken = [RunId(event.run) for event in take_away(connection, namespace, by.at, by.name, runs.c.worker_id == worker)]
    for run_id in taken:
        audit.write(connection, run_id, by.name, "release", by.note)
    return taken


def _close_frame(connection: Connection, run: RunRow, verb: InboxVerb, by: Actor) -> None:
    if not (by.note or "").strip():
        raise OrderRefused(f"to {verb.value} a frame of run {run.id} needs a note that says why")
    parked = _lock_parked(connection, run)
    # Asked after the run's row is locked: the frame that it is parked for cannot change any more.
    _give(connection, parked, verb, {"path": _find_parked_frame(connection, parked), "note": by.note}, by)


def _find_parked_frame(connection: Connection, run: RunRow) -> str:
    statement = select(faults.c.path).where(
        faults.c.run_id == run.id,
        faults.c.state == FaultState.PARKED.value,
        faults.c.kind == FaultKind.COMPENSATOR.value,
    )
    path = connection.execute(statement.order_by(faults.c.id.desc()).limit(1)).scalar()
    if path is None:
        raise OrderRefused(
            f"run {run.id} is not parked for a compensator: {redact(run.reason or '')}; `retry` is what it can do"
        )
    return str(path)


def _lock_parked(connection: Connection, run: RunRow) -> RunRow:
    """Lock a run and return it as it is now; raises OrderRefused unless it is parked and awaits no wake."""
    locked = wake.lock(connection, run.namespace, run.id) or run_rows.get_run(connection, run.namespace, run.id)
    if locked.status is not Status.PARKED:
        raise OrderRefused(f"run {run.id} is {locked.status.value}, not parked; there is nothing to be done by hand")
    if locked.wake_id is not None:
        why = "has an order already that no worker has carried out yet; is a dispatcher running?"
        raise OrderRefused(f"run {run.id} {why}")
    return locked


def _give(connection: Connection, run: RunRow, verb: InboxVerb, payload: dict[str, Any], by: Actor) -> None:
    """Give an order to a run that is locked and parked."""
    wake.send(connection, run, by.new_item(verb, payload), lambda row: True)
    audit.write(connection, run.id, by.name, verb.value, by.note)
