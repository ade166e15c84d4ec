"""Sending something to a run, and waking it if it awaits just that.

See ``runs.inbox`` for who may run at the same time. A run that nobody owns has one wake at a time: the last sender's.
An earlier one's message is stale then, which costs nothing: whoever takes the run reads everything that was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, select, update

from aft import names
from aft.envelope import Message
from aft.ids import OrderId, RunId, new_id
from aft.runs import inbox
from aft.runs.inbox import FINDS, Verb
from aft.runs.rows import COLUMNS, RunRow, from_row
from aft.runs.states import Status
from aft.store import outbox
from aft.store.moments import later, now
from aft.store.tables import inbox as letters
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class Post:
    """Something for a run: from whom, when, and how long its message may take before the sweeper comes in."""

    verb: Verb
    payload: dict[str, Any]
    actor: str
    at: datetime
    grace: timedelta
    #: A second one with the same key is dropped.
    key: str | None = None


def lock(connection: Connection, namespace: str, run_id: RunId) -> RunRow | None:
    """Read a run and keep it as it is until the transaction ends; None if there is none."""
    statement = select(*COLUMNS).where(runs.c.id == run_id, runs.c.namespace == namespace).with_for_update()
    row = connection.execute(statement).one_or_none()
    return None if row is None else from_row(row)


def send(connection: Connection, run: RunRow, post: Post, wakes: Callable[[RunRow], bool]) -> bool:
    """Put something into the inbox of a run that is locked, and wake it if it has no owner and ``wakes`` says so.

    Returns False, and changes nothing, if its key was used before.
    """
    if post.key is not None and _is_known(connection, run.id, post.key):
        return False
    seq, order = run.inbox_seq + 1, OrderId(new_id())
    changes: dict[str, Any] = {"inbox_seq": seq}
    if run.worker_id is None and (wakes(run) or _is_spoilt(run)):
        changes |= wake_up(order, post.grace)
        message = Message.about_order(run.id, order, post.at)
        find_address = names.resume_run if post.verb in FINDS else names.order_run
        address = find_address(run.namespace, run.flow, run.version)
        outbox.put(connection, run.namespace, [(address, message.encode())])
    connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **changes))
    inbox.append(connection, run.id, seq, order, post.verb, post.payload, post.actor, post.key)
    return True


def _is_spoilt(run: RunRow) -> bool:
    """Whether nobody can tell what a run waits for: whoever takes it parks it, and says so."""
    return run.unreadable is not None and run.status in (Status.WAITING, Status.RECOVERING)


def wake_up(order: OrderId, grace: timedelta) -> dict[str, Any]:
    """What makes a run go on now: by a message about this order, or when the sweeper finds that it did not come."""
    return {"wake_id": order, "due_at": now(), "sweep_at": sooner(grace.total_seconds())}


def sooner(seconds: float) -> Any:
    """A moment so many seconds from now, unless the run is to be swept before that."""
    return case((runs.c.sweep_at < later(seconds), runs.c.sweep_at), else_=later(seconds))


def _is_known(connection: Connection, run_id: RunId, key: str) -> bool:
    statement = select(letters.c.seq).where(letters.c.run_id == run_id, letters.c.key == key)
    return connection.execute(statement).first() is not None
