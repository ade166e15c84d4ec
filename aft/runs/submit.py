"""Makes a run durable: once this has committed, the run ends, or is parked where a person sees it."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, select

from aft import names
from aft.codec import is_same, read_by_name
from aft.envelope import Message
from aft.errors import KeyConflict, StoreError
from aft.ids import OrderId, WorkerId, new_id
from aft.runs import run_rows
from aft.runs.new_runs import NEW_RUNS, NewRun, NewRunWrite
from aft.runs.run_rows import RunRow
from aft.store import Store
from aft.store.batch.execute_batch import write_within
from aft.store.db_time import now
from aft.store.tables import runs


def begin_alone(store: Store, new: NewRun, worker: WorkerId) -> tuple[RunRow, bool]:
    """Make a run that ``worker`` owns from the start, in a commit that other threads may share.

    False if the key already names one, which is returned. Raises KeyConflict if that one has other arguments.
    """
    row = _make(store, NewRunWrite(new, worker))
    if row is not None:
        return row, True
    with store.write() as connection:
        return begin(connection, new, worker)


def enqueue_alone(store: Store, new: NewRun, at: datetime, grace: timedelta) -> tuple[RunRow, bool]:
    """Make a run that any worker may claim, as ``enqueue``, in a commit that other threads may share."""
    row = _make(store, _queued(new, at, grace)) if new.options.after is None and new.options.at is None else None
    if row is not None:
        return row, True
    with store.write() as connection:
        return enqueue(connection, new, at, grace)


def begin(connection: Connection, new: NewRun, worker: WorkerId) -> tuple[RunRow, bool]:
    """Make a run that ``worker`` owns from the start; False if the key already names one, which is returned.

    Raises KeyConflict if that one has other arguments.
    """
    return _write(connection, NewRunWrite(new, worker))


def enqueue(connection: Connection, new: NewRun, at: datetime, grace: timedelta) -> tuple[RunRow, bool]:
    """Make a run that any worker may claim: woken by a message dated ``at``, or by the timer if that is lost.

    False if the key already names one, which is returned. Raises KeyConflict if that one has other arguments.
    """
    wait = _wait(connection, new)
    return _write(connection, _queued(new, at, grace) if wait is None else _begun_later(new, wait))


def _queued(new: NewRun, at: datetime, grace: timedelta) -> NewRunWrite:
    """Return the write of a run that begins at once."""
    order = OrderId(new_id())
    address = names.resume_run(new.namespace, new.flow, new.version)
    message = (address, Message.about_order(new.id, order, at).encode())
    return NewRunWrite(new, order=order, message=message, sweep=_patience(new, grace))


def _begun_later(new: NewRun, wait: timedelta) -> NewRunWrite:
    """Return the write of a run that only the timer wakes: a message would arrive too early."""
    given, seconds = new.options, wait.total_seconds()
    begins_at = given.at if given.after is None else None
    options = replace(given, expected=_longer(given.expected, wait), deadline=_longer(given.deadline, wait))
    return NewRunWrite(
        replace(new, options=options), order=OrderId(new_id()), due=seconds, sweep=seconds, begins_at=begins_at
    )


def _patience(new: NewRun, grace: timedelta) -> float:
    """Return the seconds after which the timer claims a run that no message woke."""
    # The timer may claim an urgent run at once: its message is queued behind earlier ones.
    return 0.0 if new.options.priority > 0 else grace.total_seconds()


def _wait(connection: Connection, new: NewRun) -> timedelta | None:
    """Return how long a run waits before it begins, by the database's clock; None: it begins at once."""
    begins_at = new.options.at
    if begins_at is None or new.options.after is not None:
        return new.options.after
    at: datetime = connection.execute(select(now())).scalar_one()
    return None if begins_at <= at else begins_at - at


def _longer(given: timedelta | None, wait: timedelta) -> timedelta | None:
    """Add the wait before a run's start to a time limit; None stays None."""
    return None if given is None else given + wait


def _make(store: Store, write: NewRunWrite) -> RunRow | None:
    """Make a run in a shared commit; None if it exists already, or has to be made in its own transaction."""
    try:
        answer = store.commit(NEW_RUNS, write)
    except StoreError:
        return None
    return None if answer is None else write.row(*answer)


def _write(connection: Connection, write: NewRunWrite) -> tuple[RunRow, bool]:
    """Make a run in a transaction that the caller has begun; False if the key already names one."""
    (answer,) = write_within(connection, NEW_RUNS, [write])
    if answer is not None:
        return write.row(*answer), True
    row = _same_run(connection, write.new)
    # Its own id: an earlier attempt has made it, whose commit had no answer.
    return row, row.id == write.new.id


def _same_run(connection: Connection, new: NewRun) -> RunRow:
    statement = select(*run_rows.COLUMNS, runs.c.first_args, runs.c.defaulted).where(
        runs.c.namespace == new.namespace,
        runs.c.flow == new.flow,
        (runs.c.id == new.id) if new.options.key is None else (runs.c.key == new.options.key),
    )
    *columns, first_args, defaulted = connection.execute(statement).one()
    row = run_rows.read_run(columns)
    differs = []
    if row.id != new.id and row.erased_at is None:
        differs = _differing(new, first_args or row.args, json.loads(defaulted or "[]"))
    if differs:
        raise KeyConflict(
            f"key {new.options.key!r} of flow {new.flow!r} already names run {row.id}, which was started with other "
            f"arguments (what differs: {', '.join(differs)}); use another key, or the same arguments"
        )
    return row


def _differing(new: NewRun, recorded: str, defaulted: Container[str]) -> list[str]:
    """Name the arguments that differ from those that a run was submitted with.

    They are compared as a replay does it, by name and as decoded values. An argument that was left to its default both
    times does not differ, whatever the defaults were, nor does a parameter that the flow got since and that is left to
    its default, or given just that.
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
