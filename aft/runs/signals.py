"""Signals: values that others send to a run, kept in order until it waits for them.

How many a run keeps is limited, because each of its owners loads them all. They are not counted for each signal, but
for each hundredth item of an inbox, and for each large one: so a run may get some more than the limits say, and no
large ones. The caller has locked the run's row, so none is sent meanwhile.
"""

from __future__ import annotations

from sqlalchemy import Connection

from aft.errors import OrderRefused
from aft.runs.records import audit, inbox
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import awaits_signal
from aft.runs.wakes import wake
from aft.runs.wakes.wake import NewInboxItem

#: Characters of a signal's name and its key together.
MOST_KEY = 380
#: Signals that a run may have without having taken them, and their characters in all.
MOST_UNREAD, MOST_UNREAD_TEXT = 10_000, 64_000_000
#: They are counted for items whose number is a multiple of this, and for signals of more characters than that.
_COUNTED_EACH, _COUNTED_ABOVE = 100, 64_000
#: States in which a signal does not make a run go on: it is kept.
_STOPPED = (Status.PARKED, Status.SUSPENDED)


def send(connection: Connection, run: RunRow, name: str, post: NewInboxItem) -> bool:
    """Send a signal to a run that is locked; False if one with that key was sent before.

    Raises OrderRefused if the run has ended and does not wait for it, or has too many that it has not taken.
    """
    awaited = awaits_signal(run.waits, name)
    if run.ended_as is not None and not awaited:
        raise OrderRefused(f"run {run.id} has ended, it is {run.status.value}; nobody would take signal {name!r}")
    _check_room(connection, run, name, post)
    is_new = wake.send(connection, run, post, lambda row: awaited and row.status not in _STOPPED)
    if is_new:
        audit.write(connection, run.id, post.actor, audit.SIGNAL, name)
    return is_new


def _check_room(connection: Connection, run: RunRow, name: str, post: NewInboxItem) -> None:
    """Raise OrderRefused if a run has too many signals that it has not taken for this one, which is new."""
    size = len(str(post.payload.get("value")))
    is_counted = (run.inbox_seq + 1) % _COUNTED_EACH == 0 or size > _COUNTED_ABOVE
    if not is_counted or wake.is_known(connection, run, post):
        return
    number, characters = inbox.measure_signals(connection, run.id)
    if number >= MOST_UNREAD or characters + size > MOST_UNREAD_TEXT:
        raise OrderRefused(
            f"signal {name!r} of {size:,} characters is refused: run {run.id} has {number:,} that it has not taken, "
            f"of {characters:,} characters, and {MOST_UNREAD:,} of {MOST_UNREAD_TEXT:,} are the most; it takes them "
            f"when its flow waits for them: see with `aft runs show {run.id}` what it waits for, and send it after that"
        )


def format_key(name: str, key: str) -> str:
    """Return the inbox key of a signal: distinct for each name and key, whatever characters they hold.

    Without a ``/`` in either it has the format of older versions, so that keys which those have stored still match.
    """
    if "/" in name or "/" in key:
        return f"signal:{len(name)}/{name}/{key}"
    return f"signal/{name}/{key}"
