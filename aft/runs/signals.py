"""Signals: values that others send to a run, kept in order until it waits for them."""

from __future__ import annotations

from sqlalchemy import Connection

from aft.errors import OrderRefused
from aft.runs.records import audit
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import awaits_signal
from aft.runs.wakes import wake
from aft.runs.wakes.wake import NewInboxItem

#: Characters of a signal's name and its key together.
MOST_KEY = 380
#: States in which a signal does not make a run go on: it is kept.
_STOPPED = (Status.PARKED, Status.SUSPENDED)


def send(connection: Connection, run: RunRow, name: str, post: NewInboxItem) -> bool:
    """Send a signal to a run that is locked; False if one with that key was sent before.

    Raises OrderRefused if the run has ended and does not wait for it.
    """
    awaited = awaits_signal(run.waits, name)
    if run.ended_as is not None and not awaited:
        raise OrderRefused(f"run {run.id} has ended, it is {run.status.value}; nobody would take signal {name!r}")
    is_new = wake.send(connection, run, post, lambda row: awaited and row.status not in _STOPPED)
    if is_new:
        audit.write(connection, run.id, post.actor, audit.SIGNAL, name)
    return is_new


def format_key(name: str, key: str) -> str:
    """Return the inbox key of a signal: distinct for each name and key, whatever characters they hold.

    Without a ``/`` in either it has the format of older versions, so that keys which those have stored still match.
    """
    if "/" in name or "/" in key:
        return f"signal:{len(name)}/{name}/{key}"
    return f"signal/{name}/{key}"
