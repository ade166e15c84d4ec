"""Wakes runs that nothing else would ever wake: the last fallback, for a bug in aft or a row that was changed by hand.

A run without an owner that has not ended is continued by one of these: a wake, a timer, something it waits for, a fault
that is to be decided about or retried, a person. A run that has none of them is stranded. Its next owner does as any
owner does: it replays, and goes on where the journal ends.

Who may run at the same time: any number of sweepers, and all who wake or claim the run. Locked rows are skipped; a run
that is not stranded any more is not found. A crash before the commit leaves it for the next round.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, exists, select, update

from aft.fault import FaultState
from aft.ids import OrderId, RunId, new_id
from aft.runs.states import GOING, Status
from aft.runs.wakes import wake as waking
from aft.store.db_time import later
from aft.store.tables import faults, runs

#: Seconds without a change after which a run counts as stranded.
QUIET = 60.0


def any_stranded(connection: Connection, namespace: str) -> bool:
    """Return whether there is a stranded run; locks nothing."""
    return connection.execute(select(runs.c.id).where(*_stranded(namespace)).limit(1)).first() is not None


def wake(connection: Connection, namespace: str, limit: int) -> list[RunId]:
    """Wake up to ``limit`` stranded runs, due at once for any worker's timer; returns their ids."""
    statement = select(runs.c.id).where(*_stranded(namespace)).limit(limit).with_for_update(skip_locked=True)
    found = [RunId(id) for id in connection.execute(statement).scalars()]
    for run_id in found:
        due = waking.wake_up(OrderId(new_id()), timedelta(0))
        connection.execute(update(runs).where(runs.c.id == run_id).values(**due))
    return found


def _stranded(namespace: str) -> tuple[ColumnElement[bool], ...]:
    awaits_signal = (faults.c.state == FaultState.WAITING.value) & faults.c.signal.is_not(None)
    # What the dispatcher acts on. A fault that waits for a time is none of that: its run has a timer, too.
    is_decided = (faults.c.state == FaultState.OPEN.value) & (faults.c.epoch == runs.c.epoch)
    acted_on = is_decided | (faults.c.state == FaultState.HANDLED.value) | awaits_signal
    return (
        runs.c.namespace == namespace,
        runs.c.status.in_([status.value for status in (*GOING, Status.COMPENSATING)]),
        runs.c.worker_id.is_(None),
        runs.c.wake_id.is_(None),
        runs.c.sweep_at.is_(None),
        runs.c.updated_at <= later(-QUIET),
        ~exists().where(faults.c.run_id == runs.c.id, acted_on),
    )
