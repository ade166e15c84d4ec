"""Parents and children: who is whose, what does a child owe, and how does its parent hear of its end?"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, exists, select

from aft.ids import RunId
from aft.runs import waking
from aft.runs.inbox import Verb
from aft.runs.rows import COLUMNS, RunRow, from_row
from aft.runs.states import Status
from aft.runs.waits import WaitKind
from aft.runs.waking import Post
from aft.store.questions import Question
from aft.store.tables import frames, runs

#: Whether a run has children at all; most have none.
ANY = Question.about(f"SELECT 1 FROM {runs.name} WHERE parent_id {{among}} AND parent_id IS NOT NULL LIMIT 1")


def find(connection: Connection, namespace: str, run_id: RunId) -> RunRow | None:
    """Return a run; None if there is none."""
    row = connection.execute(select(*COLUMNS).where(runs.c.id == run_id, runs.c.namespace == namespace)).one_or_none()
    return None if row is None else from_row(row)


def namespace_of(connection: Connection, run_id: RunId) -> str:
    """Tell where a run lives."""
    return str(connection.execute(select(runs.c.namespace).where(runs.c.id == run_id)).scalar_one())


def of(connection: Connection, run_id: RunId) -> list[RunRow]:
    """Return the children of a run, oldest first."""
    statement = select(*COLUMNS).where(runs.c.parent_id == run_id).order_by(runs.c.created_at)
    return [from_row(row) for row in connection.execute(statement)]


def all_of(connection: Connection, root_id: str) -> list[RunRow]:
    """Return a run that has no parent, and all its descendants, oldest first."""
    statement = select(*COLUMNS).where(runs.c.root_id == root_id).order_by(runs.c.created_at)
    return [from_row(row) for row in connection.execute(statement)]


def running(connection: Connection, namespace: str, run_id: RunId, under: str = "") -> list[RunRow]:
    """Return the children that have not ended, of steps under a path or of all."""
    statement = select(*COLUMNS).where(
        runs.c.parent_id == run_id, runs.c.namespace == namespace, runs.c.ended_as.is_(None)
    )
    if under:
        statement = statement.where(runs.c.parent_path.startswith(f"{under}.", autoescape=True))
    return [from_row(row) for row in connection.execute(statement)]


def unframed(connection: Connection, run_id: RunId, under: str = "") -> list[RunRow]:
    """Return children that have ended, may owe something, and are no frame of their parent's, in order of their end."""
    framed = select(frames.c.child_id).where(frames.c.run_id == run_id, frames.c.child_id.is_not(None))
    ends = [Status.COMPLETED.value, Status.FAILED.value, Status.CANCELLED.value]
    statement = select(*COLUMNS).where(runs.c.parent_id == run_id, runs.c.ended_as.in_(ends), runs.c.id.not_in(framed))
    if under:
        statement = statement.where(runs.c.parent_path.startswith(f"{under}.", autoescape=True))
    found = [from_row(row) for row in connection.execute(statement.order_by(runs.c.ended_at))]
    return [child for child in found if child.ended_as is Status.FAILED or owes(connection, child.id)]


def owes(connection: Connection, run_id: RunId) -> bool:
    """Tell whether anything of a run would have to be undone."""
    pending = ("armed", "owed", "late")
    statement = select(exists().where(frames.c.run_id == run_id, frames.c.state.in_(pending)))
    return bool(connection.execute(statement).scalar())


def order(connection: Connection, namespace: str, run_id: RunId, post: Post) -> bool:
    """Ask something of a child, whatever state it is in; False if that was asked before, or it is gone."""
    run = waking.lock(connection, namespace, run_id)
    return run is not None and waking.send(connection, run, post, _may_obey)


def _may_obey(row: RunRow) -> bool:
    """Whether it can do as its parent asks now; one whose undoing is parked waits for a person first."""
    return row.status is not Status.PARKED or row.cause is None


def tell_parent(connection: Connection, child: RunRow, at: datetime, grace: timedelta) -> None:
    """Say that a child has ended; in the transaction in which it does."""
    if child.parent_id is None:
        return
    parent = waking.lock(connection, child.namespace, child.parent_id)
    if parent is None:
        return
    post = Post(Verb.CHILD, {"child": child.id}, child.id, at, grace, key=f"child/{child.id}/{child.epoch}")
    waking.send(connection, parent, post, lambda row: _awaits_child(row, child.id))


def _awaits_child(row: RunRow, child_id: RunId) -> bool:
    callable_in = (Status.WAITING, Status.RECOVERING, Status.COMPENSATING)
    return row.status in callable_in and any(
        wait.kind is WaitKind.CHILD and wait.name == child_id for wait in row.waits
    )
