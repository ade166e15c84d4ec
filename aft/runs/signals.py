"""Signals: values that others send to a run, kept in order until it asks for them."""

from __future__ import annotations

from sqlalchemy import Connection

from aft.errors import OrderRefused
from aft.runs import waking
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import awaits_signal
from aft.runs.waking import Post

#: Characters of a signal's name and its key together.
MOST_KEY = 380
#: States in which a signal does not make a run go on: it is kept.
_STOPPED = (Status.PARKED, Status.SUSPENDED)


def send(connection: Connection, run: RunRow, name: str, post: Post) -> bool:
    """Send a signal to a run that is locked; False: one with that key was sent before. Raises OrderRefused."""
    awaited = awaits_signal(run.waits, name)
    if run.ended_as is not None and not awaited:
        raise OrderRefused(f"run {run.id} has ended, it is {run.status.value}; nobody would take signal {name!r}")
    return waking.send(connection, run, post, lambda row: awaited and row.status not in _STOPPED)


def spell_key(name: str, key: str) -> str:
    """Spell the key of a signal as its run knows it: another one for each name and key, whatever they hold.

    Where neither holds a ``/`` it is as it always was: a key that an older aft has stored is still known.
    """
    if "/" in name or "/" in key:
        return f"signal:{len(name)}/{name}/{key}"
    return f"signal/{name}/{key}"
