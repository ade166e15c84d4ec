"""Parents and children: looks children up, finds what is left of them to undo, and reports their end to the parent."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, exists, or_, select, update

from aft.fault import FaultKind, FaultState
from aft.ids import RunId, StepPath
from aft.runs import waits
from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import COLUMNS, NAMES, RunRow, from_row, is_of_family
from aft.runs.states import FrameState, Status
from aft.runs.waits import Wait, WaitKind
from aft.runs.wakes import wake
from aft.runs.wakes.wake import NewInboxItem
from aft.store.batch.statements import PreparedQuery
from aft.store.db_time import now
from aft.store.tables import faults, frames, runs

#: Whether a run has children at all; most have none.
ANY = PreparedQuery.about(f"SELECT 1 FROM {runs.name} WHERE parent_id {{among}} AND parent_id IS NOT NULL LIMIT 1")


#: Several runs by their ids, to be read by ``run_rows.read_run``.
NAMED = PreparedQuery.about(f"SELECT {', '.join(NAMES)} FROM {runs.name} WHERE id {{among}} ORDER BY created_at")


def find_child(connection: Connection, namespace: str, run_id: RunId) -> RunRow | None:
    """Return a run; None if there is none."""
    row = connection.execute(select(*COLUMNS).where(runs.c.id == run_id, runs.c.namespace == namespace)).one_or_none()
    return None if row is None else from_row(row)


def of(connection: Connection, run_id: RunId) -> list[RunRow]:
    """Return the children of a run, oldest first."""
    statement = select(*COLUMNS).where(runs.c.parent_id == run_id).order_by(runs.c.created_at)
    return [from_row(row) for row in connection.execute(statement)]


def find_begun(connection: Connection, run_id: RunId, generation: int) -> dict[RunId, StepPath]:
    """Return the steps of the children that a generation of a run has begun and that are under way or completed."""
    of_run = (runs.c.parent_id == run_id, runs.c.parent_generation == generation)
    stands = or_(runs.c.ended_as.is_(None), runs.c.ended_as == Status.COMPLETED.value)
    found = connection.execute(select(runs.c.id, runs.c.parent_path).where(*of_run, stands))
    return {RunId(child): StepPath(path) for child, path in found}


def all_of(connection: Connection, root_id: str) -> list[RunRow]:
    """Return a root run and all its descendants, oldest first."""
    statement = select(*COLUMNS).where(is_of_family(root_id)).order_by(runs.c.created_at)
    return [from_row(row) for row in connection.execute(statement)]


def running(
    connection: Connection, namespace: str, run_id: RunId, under: str = "", generation: int | None = None
) -> list[RunRow]:
    """Return the children that have not ended; with ``under`` only those of steps under that path of a generation."""
    statement = select(*COLUMNS).where(
        runs.c.parent_id == run_id, runs.c.namespace == namespace, runs.c.ended_as.is_(None), *_under(under, generation)
    )
    return [from_row(row) for row in connection.execute(statement)]


def _under(path: str, generation: int | None) -> list[ColumnElement[bool]]:
    """Return the conditions that a child was begun by a step under a path; paths are unique within a generation."""
    if not path:
        return []
    assert generation is not None, "a path names a step only within a generation"
    return [runs.c.parent_path.startswith(f"{path}.", autoescape=True), runs.c.parent_generation == generation]


def unframed(connection: Connection, run_id: RunId, under: str = "", generation: int | None = None) -> list[RunRow]:
    """Return children that have effects left but no frame in their parent's stack, in order of their end.

    They have ended, or went past a pivot: then they cannot be stopped by undoing them.
    """
    framed = select(frames.c.child_id).where(frames.c.run_id == run_id, frames.c.child_id.is_not(None))
    ends = [Status.COMPLETED.value, Status.FAILED.value, Status.CANCELLED.value]
    stays = runs.c.ended_as.in_(ends) | (runs.c.ended_as.is_(None) & runs.c.pivoted_at.is_not(None))
    statement = select(*COLUMNS).where(
        runs.c.parent_id == run_id, stays, runs.c.id.not_in(framed), *_under(under, generation)
    )
    found = [from_row(row) for row in connection.execute(statement.order_by(runs.c.ended_at))]
    return [child for child in found if has_effects_left(connection, child)]


def has_effects_left(connection: Connection, child: RunRow) -> bool:
    """Return whether a child has, or may have, effects left that its parent would have to undo, or could not.

    A frame that a person skipped counts, and so do effects of grandchildren without a frame in the child's stack. A
    grandchild that goes on, though the child has ended, was ordered to end without undo: its effects may stand. So may
    those of a lost worker, if the child was cancelled before they were known.
    """
    if child.ended_as is Status.FAILED or child.pivoted_at is not None or _has_frames(connection, child.id):
        return True
    if child.ended_as is Status.CANCELLED and was_in_doubt(connection, child.id):
        return True
    if child.ended_as is None:
        return False
    goes_on = bool(running(connection, child.namespace, child.id))
    return goes_on or bool(unframed(connection, child.id))


def _has_frames(connection: Connection, run_id: RunId) -> bool:
    """Return whether a run has frames that are owed, or that a person skipped."""
    states = [state.value for state in (FrameState.ARMED, FrameState.OWED, FrameState.LATE, FrameState.SKIPPED)]
    statement = select(exists().where(frames.c.run_id == run_id, frames.c.state.in_(states)))
    return bool(connection.execute(statement).scalar())


def was_in_doubt(connection: Connection, run_id: RunId) -> bool:
    """Return whether a run ends, or has ended, with effects of a lost worker unknown."""
    abort = (faults.c.run_id == run_id, faults.c.kind == FaultKind.ABORT.value)
    return bool(connection.execute(select(exists().where(*abort, faults.c.state == FaultState.FINAL.value))).scalar())


def order(connection: Connection, namespace: str, run_id: RunId, post: NewInboxItem) -> bool:
    """Give a child an order; False if it had that order before, does not exist, is past its pivot, or has ended.

    Past its pivot it refuses only orders to compensate, and after its end only a cancel.
    """
    run = wake.lock(connection, namespace, run_id)
    if run is None or (run.pivoted_at is not None and post.payload.get("compensate")):
        return False  # past its pivot it only goes forward
    if run.ended_as is not None and post.verb is InboxVerb.CANCEL:
        return False  # it has ended just before: its frame is undone when its turn has come
    return wake.send(connection, run, post, _may_apply)


def _may_apply(row: RunRow) -> bool:
    """Return whether a child is woken for its parent's order; one that is parked while unwinding waits for a person."""
    return row.status is not Status.PARKED or row.cause is None


def notify_parent(connection: Connection, child: RunRow, at: datetime, grace: timedelta) -> None:
    """Report a child's end to its parent, in the transaction in which the child ends.

    The parent's row is locked and the child's place is recorded: the parent's ``seq`` shows which of its writes came
    before the child's end, and its ``inbox_seq`` which other children ended before.
    """
    if child.parent_id is None:
        return
    parent = wake.lock(connection, child.namespace, child.parent_id)
    if parent is None:
        return
    place = {"parent_seq": parent.seq, "parent_inbox_seq": parent.inbox_seq}
    connection.execute(update(runs).where(runs.c.id == child.id).values(**place))
    wake.send(connection, parent, _item_about(child, at, grace), lambda row: _is_woken(row, child.id))


def _item_about(child: RunRow, at: datetime, grace: timedelta) -> NewInboxItem:
    """Return the inbox item that reports a child's end to its parent, once for each owner of the child."""
    key = f"child/{child.id}/{child.epoch}"
    return NewInboxItem(InboxVerb.CHILD, {"child": child.id}, child.id, at, grace, key)


# Late effects below -----------------------------------------------------------------------------------------------
#
# An ended child is claimed again for a late effect. If it is parked for that, the effect stands, so its parent must not
# be ``compensated``. Children are parked by many (decisions about faults, rules, sweepers, their own owners), so none
# of these reports it: the sweeper looks for such parents and parks them, level by level up to the root. The child's row
# is locked first, then the parent's: a child that leaves ``parked`` at the same time is either found so, or finds its
# parent waiting for it. A crash leaves the rest to the next round.


def find_parked_after_end(connection: Connection, namespace: str, limit: int) -> list[RunId]:
    """Return children that are parked after their end, and whose parents are ``compensated``."""
    child, parent = runs.alias(), runs.alias()
    statement = (
        select(child.c.id)
        .join(parent, parent.c.id == child.c.parent_id)
        .where(
            child.c.namespace == namespace,
            child.c.status == Status.PARKED.value,
            child.c.ended_as.is_not(None),
            parent.c.status == Status.COMPENSATED.value,
            parent.c.worker_id.is_(None),
            parent.c.wake_id.is_(None),
        )
    )
    return [RunId(found) for found in connection.execute(statement.limit(limit)).scalars()]


def park_parent(connection: Connection, namespace: str, child_id: RunId, at: datetime) -> tuple[RunId, str] | None:
    """Park a compensated run while a child of it is parked for a late effect; return its id and the reason.

    None if this is not the case any more, or the parent has an owner or a wake: then it is checked again later.
    """
    child = wake.lock(connection, namespace, child_id)
    if child is None or child.status is not Status.PARKED or child.ended_as is None or child.parent_id is None:
        return None
    parent = wake.lock(connection, namespace, child.parent_id)
    if parent is None or parent.status is not Status.COMPENSATED or (parent.worker_id or parent.wake_id):
        return None
    reason = (
        f"a late effect remains below: child {child.id} of flow {child.flow!r} is parked for it; "
        "handle that child, and this run follows"
    )
    wait = Wait(StepPath(child.parent_path or ""), WaitKind.CHILD, child.id, at)
    values = {"status": Status.PARKED.value, "reason": reason, "waits": waits.encode([wait])}
    connection.execute(update(runs).where(runs.c.id == parent.id).values(updated_at=now(), **values))
    return parent.id, reason


def notify_handled(connection: Connection, child: RunRow, at: datetime, grace: timedelta) -> None:
    """Wake a parent that is parked for this child's late effect, in the transaction in which the child handled it."""
    parent = None if child.parent_id is None else wake.lock(connection, child.namespace, child.parent_id)
    if parent is not None and _is_parked_for(parent, child.id):
        wake.send(connection, parent, _item_about(child, at, grace), lambda row: True)


def _is_parked_for(row: RunRow, child_id: RunId) -> bool:
    """Return whether an ended run is parked for a late effect in this child."""
    return row.status is Status.PARKED and row.ended_as is not None and _names(row, child_id)


def _is_woken(row: RunRow, child_id: RunId) -> bool:
    """Return whether the end of a child wakes a run: it waits for that, is ``compensated``, or is parked for it."""
    return _awaits_child(row, child_id) or row.status is Status.COMPENSATED or _is_parked_for(row, child_id)


def _awaits_child(row: RunRow, child_id: RunId) -> bool:
    return row.status in (Status.WAITING, Status.RECOVERING, Status.COMPENSATING) and _names(row, child_id)


def _names(row: RunRow, child_id: RunId) -> bool:
    return any(wait.kind is WaitKind.CHILD and wait.name == child_id for wait in row.waits)
