"""Making a run durable. From the moment this has committed, it ends or is parked where a person sees it."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from aft import names
from aft.codec import ArgumentsCodec, is_same, read_by_name
from aft.envelope import Message
from aft.errors import KeyConflict
from aft.ids import OrderId, RunId, StepPath, WorkerId, new_id
from aft.runs import rows
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.store import outbox
from aft.store.moments import later, now
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is to be run: flow, encoded arguments, and what the caller said about it."""

    id: RunId
    namespace: str
    flow: str
    version: int
    args: str
    key: str | None = None
    priority: int = 0
    owner: str | None = None
    expected: timedelta | None = None
    resources: tuple[str, ...] = ()
    tags: dict[str, Any] = field(default_factory=dict)
    #: Of a child: its parent, the step there with its generation, and the first ancestor of both.
    parent: tuple[RunId, StepPath, int, RunId] | None = None
    #: How long it may take, from when it is made to its end.
    deadline: timedelta | None = None
    #: How long it waits before it begins.
    after: timedelta | None = None
    #: When it begins, instead; a time that is past means at once.
    at: datetime | None = None
    #: Parameters that the caller left to their defaults.
    defaulted: tuple[str, ...] = ()
    #: How the flow's arguments are read; None: its code is not known here.
    arguments: ArgumentsCodec | None = None


def begin(connection: Connection, new: NewRun, worker: WorkerId) -> tuple[RunRow, bool]:
    """Make a run that ``worker`` owns from the start; False: the key already named one, returned as it is."""
    return _insert(connection, new, worker_id=worker, epoch=1, started_at=now())


def enqueue(connection: Connection, new: NewRun, at: datetime, grace: timedelta) -> tuple[RunRow, bool]:
    """Make a run that some worker will take: woken by a message, which says ``at``, or swept if that is lost."""
    order = OrderId(new_id())
    wait = _wait(connection, new)
    if wait is not None:
        # Its time is the timer's: a message would be there too early.
        begins = new.at if new.after is None else later(wait.total_seconds())
        new = replace(new, expected=_longer(new.expected, wait), deadline=_longer(new.deadline, wait))
        return _insert(connection, new, wake_id=order, due_at=begins, sweep_at=begins)
    row, made = _insert(connection, new, wake_id=order, due_at=now(), sweep_at=later(patience(new, grace)))
    if made and row.wake_id == order:
        message = Message.about_order(row.id, order, at)
        address = names.resume_run(row.namespace, row.flow, row.version)
        outbox.put(connection, new.namespace, [(address, message.encode())])
    return row, made


def patience(new: NewRun, grace: timedelta) -> float:
    """Seconds after which the timer takes a run, if no message woke it."""
    # What is urgent may be taken by time at once: its message comes after those that were sent before.
    return 0.0 if new.priority > 0 else grace.total_seconds()


def _wait(connection: Connection, new: NewRun) -> timedelta | None:
    """How long a run waits that does not begin at once, by the database's clock; None: it does."""
    if new.at is None or new.after is not None:
        return new.after
    at: datetime = connection.execute(select(now())).scalar_one()
    return None if new.at <= at else new.at - at


def _longer(given: timedelta | None, wait: timedelta) -> timedelta | None:
    """What a run may take, from when it is made: what was given, and its wait before that."""
    return None if given is None else given + wait


def _insert(connection: Connection, new: NewRun, **ownership: Any) -> tuple[RunRow, bool]:
    parent_id, parent_path, parent_generation, root_id = new.parent or (None, None, None, new.id)
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = (
        insert(runs)
        .values(
            id=new.id,
            namespace=new.namespace,
            flow=new.flow,
            version=new.version,
            args=new.args,
            defaulted=json.dumps(new.defaulted) if new.defaulted else None,
            key=new.key,
            priority=new.priority,
            owner=new.owner,
            resources=json.dumps(new.resources) if new.resources else None,
            tags=json.dumps(new.tags) if new.tags else None,
            expected_seconds=None if new.expected is None else new.expected.total_seconds(),
            overdue_at=None if new.expected is None else later(new.expected.total_seconds()),
            status=Status.RUNNING.value,
            root_id=root_id,
            parent_id=parent_id,
            parent_path=parent_path,
            parent_generation=parent_generation,
            deadline_at=None if new.deadline is None else later(new.deadline.total_seconds()),
            created_at=now(),
            updated_at=now(),
            **ownership,
        )
        .on_conflict_do_nothing()
        .returning(*rows.COLUMNS)
    )
    made = connection.execute(statement).one_or_none()
    if made is not None:
        return rows.from_row(made), True
    row = _same_run(connection, new)
    # Its own id: an earlier try has made it, whose commit had no answer.
    return row, row.id == new.id


def _same_run(connection: Connection, new: NewRun) -> RunRow:
    statement = select(*rows.COLUMNS, runs.c.first_args, runs.c.defaulted).where(
        runs.c.namespace == new.namespace,
        runs.c.flow == new.flow,
        (runs.c.id == new.id) if new.key is None else (runs.c.key == new.key),
    )
    *columns, first_args, defaulted = connection.execute(statement).one()
    row = rows.read(columns)
    differs = []
    if row.id != new.id and row.erased_at is None:
        differs = _differing(new, first_args or row.args, json.loads(defaulted or "[]"))
    if differs:
        raise KeyConflict(
            f"key {new.key!r} of flow {new.flow!r} already names run {row.id}, which was started with other "
            f"arguments (what differs: {', '.join(differs)}); use another key, or the same arguments"
        )
    return row


def _differing(new: NewRun, recorded: str, defaulted: Container[str]) -> list[str]:
    """Name the arguments that differ from those that a run was submitted with.

    They are compared as a replay does it, by name and as the values that the code makes of them. What was left to its
    default both times is no difference, whatever the defaults were, nor is a parameter that the flow got since and
    that is left to its default, or given just that.
    """
    if recorded == new.args:
        return []
    was, now, codec = read_by_name(recorded), read_by_name(new.args), new.arguments

    def differs(name: str) -> bool:
        left_out = name in new.defaulted or name not in now
        if name in defaulted and left_out:
            return False
        if name not in was:
            return not left_out and (codec is None or not codec.is_default(name, now[name]))
        if name not in now or codec is None:
            return name not in now or not is_same(was[name], now[name], was[name])
        return not codec.is_same(name, was[name], now[name])

    return [name for name in {**was, **now} if differs(name)]
