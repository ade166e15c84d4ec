"""Sends an item to a run's inbox, and wakes the run if it waits for it.

See ``runs.records.inbox`` for who may run at the same time. A run without an owner has one wake at a time: the last
sender's. The message of an earlier one is stale then, which costs nothing: the next owner reads the whole inbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, select, update

from aft import names
from aft.envelope import Message
from aft.ids import OrderId, RunId, new_id
from aft.runs.records import inbox
from aft.runs.records.inbox import FINDS, InboxVerb
from aft.runs.run_rows import COLUMNS, RunRow, from_row
from aft.runs.states import Status
from aft.store import outbox
from aft.store.db_time import later, now
from aft.store.tables import inbox as items
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class NewInboxItem:
    """An item to send; ``grace`` is the time that its message may take before the timer wakes the run."""

    verb: InboxVerb
    payload: dict[str, Any] = field(repr=False)
    actor: str
    at: datetime
    grace: timedelta
    #: Idempotency key: a second item with the same key is dropped.
    key: str | None = None


def lock(connection: Connection, namespace: str, run_id: RunId) -> RunRow | None:
    """Read a run and lock its row until the transaction ends; None if there is none."""
    statement = select(*COLUMNS).where(runs.c.id == run_id, runs.c.namespace == namespace).with_for_update()
    row = connection.execute(statement).one_or_none()
    return None if row is None else from_row(row)


def send(connection: Connection, run: RunRow, post: NewInboxItem, wakes: Callable[[RunRow], bool]) -> bool:
    """Append an item to the inbox of a run that is locked, and wake it if it has no owner and ``wakes`` returns true.

    Returns False, and changes nothing, if its key was used before.
    """
    if is_known(connection, run, post):
        return False
    seq, order = run.inbox_seq + 1, OrderId(new_id())
    changes: dict[str, Any] = {"inbox_seq": seq}
    if run.worker_id is None and (wakes(run) or _is_damaged(run)):
        changes |= wake_up(order, post.grace)
        message = Message.about_order(run.id, order, post.at)
        find_address = names.resume_run if post.verb in FINDS else names.order_run
        address = find_address(run.namespace, run.flow, run.version)
        outbox.put(connection, run.namespace, [(address, message.encode())])
    connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=now(), **changes))
    inbox.append(connection, run.id, seq, order, post.verb, post.payload, post.actor, post.key)
    return True


def _is_damaged(run: RunRow) -> bool:
    """Return whether a run's waits cannot be read: it is woken, and its next owner parks it with the reason."""
    return run.unreadable is not None and run.status in (Status.WAITING, Status.RECOVERING)


def wake_up(order: OrderId, grace: timedelta) -> dict[str, Any]:
    """Return the columns that wake a run now: by a message about this order, or by the timer after ``grace``."""
    return {"wake_id": order, "due_at": now(), "sweep_at": sooner(grace.total_seconds())}


def sooner(seconds: float) -> Any:
    """Return the time this many seconds from now, or the run's ``sweep_at`` if that is sooner."""
    return case((runs.c.sweep_at < later(seconds), runs.c.sweep_at), else_=later(seconds))


def is_known(connection: Connection, run: RunRow, post: NewInboxItem) -> bool:
    """Return whether an item with the same key was sent to the run before."""
    if post.key is None:
        return False
    statement = select(items.c.seq).where(items.c.run_id == run.id, items.c.key == post.key)
    return connection.execute(statement).first() is not None
