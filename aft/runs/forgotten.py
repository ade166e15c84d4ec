"""Waking runs that nothing would ever wake: the last net, for a defect of aft or a row that somebody changed by hand.

A run that has not ended and that no worker has goes on for one of these: a wake, a moment, something it waits for, a
fault that is to be decided about or tried again, a person. One that has none of them is forgotten. What it does then
is what any owner does that takes it: it replays, and goes on where the journal ends.

Who may run at the same time: any number of sweepers, and whoever wakes or takes the run. Rows that somebody holds are
skipped; one that is not forgotten any more is not found. A crash before the commit leaves it for the next look.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, exists, select, update

from aft.fault import FaultState
from aft.ids import OrderId, RunId, new_id
from aft.runs import waking
from aft.runs.states import Status
from aft.store.moments import later
from aft.store.tables import faults, runs

#: Seconds for which nothing has changed about a run before it counts as forgotten.
QUIET = 60.0
#: The states of a run that goes on by itself.
_GOING = (Status.RUNNING, Status.WAITING, Status.RECOVERING, Status.COMPENSATING)
#: The states of a fault that somebody acts on. One that waits for a time is not among them: its run has that time, too.
_ACTED_ON = (FaultState.OPEN, FaultState.HANDLED)


def any_forgotten(connection: Connection, namespace: str) -> bool:
    """Tell whether there is anything to wake: a look that locks nothing."""
    return connection.execute(select(runs.c.id).where(*_forgotten(namespace)).limit(1)).first() is not None


def wake(connection: Connection, namespace: str, limit: int) -> list[RunId]:
    """Let up to ``limit`` forgotten runs be taken by the next worker that looks; returns which."""
    statement = select(runs.c.id).where(*_forgotten(namespace)).limit(limit).with_for_update(skip_locked=True)
    found = [RunId(id) for id in connection.execute(statement).scalars()]
    for run_id in found:
        due = waking.wake_up(OrderId(new_id()), timedelta(0))
        connection.execute(update(runs).where(runs.c.id == run_id).values(**due))
    return found


def _forgotten(namespace: str) -> tuple[ColumnElement[bool], ...]:
    awaits_signal = (faults.c.state == FaultState.WAITING.value) & faults.c.signal.is_not(None)
    acted_on = faults.c.state.in_([state.value for state in _ACTED_ON]) | awaits_signal
    return (
        runs.c.namespace == namespace,
        runs.c.status.in_([status.value for status in _GOING]),
        runs.c.worker_id.is_(None),
        runs.c.wake_id.is_(None),
        runs.c.sweep_at.is_(None),
        runs.c.updated_at <= later(-QUIET),
        ~exists().where(faults.c.run_id == runs.c.id, acted_on),
    )
