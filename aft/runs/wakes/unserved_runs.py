"""Unserved runs: those of flows that no live worker has. They are postponed with back-off, or undone by another worker.

- **Going on** needs the flow's code. Such a run is left untouched; no attempt is counted. The sweeper moves its
  ``sweep_at`` ahead, each time by about as long as the run has waited already, at most ``LONGEST``, so that workers do
  not find it at every poll. A process that becomes a worker, at its start or after its lease had expired, brings the
  runs of its own flows forward.
- **Undoing** needs compensators only. A run that is being undone, that was cancelled, or that has ended and has
  something to undo, is claimed by any worker that has the compensators of all frames that it owes.

Who may run at the same time: any number of sweepers and workers. A run is postponed only while it has no owner. A new
worker may miss a run that a sweeper postpones at the same time: it is claimed ``LONGEST`` later at most. A crash leaves
nothing half done: each of these is one statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, String, and_, case, cast, exists, or_, select, update

from aft.ids import RunId
from aft.runs.ownership.claims import Known, Wake
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.records.inbox import InboxVerb
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import later, now
from aft.store.leases import read_flows, read_names
from aft.store.tables import frames, inbox, runs, workers

#: The longest time, in seconds, by which an unserved run is postponed.
LONGEST = 60.0
#: Seconds for which a due run is left to its workers before it is postponed.
SLACK = 2.0
#: The same for a run that is only to be undone.
UNDO_SLACK = 10.0
#: Runs that one statement changes.
BATCH = 500

_SPELLED = runs.c.flow + "@" + cast(runs.c.version, String)
_FREE = and_(runs.c.worker_id.is_(None), runs.c.wake_id.is_not(None))
_CANCELLED = exists().where(
    inbox.c.run_id == runs.c.id, inbox.c.read_epoch.is_(None), inbox.c.kind == InboxVerb.CANCEL.value
)
#: The flow's code is not executed any more.
_TO_BE_UNDONE = or_(runs.c.ended_as.is_not(None), runs.c.cause.is_not(None), _CANCELLED)


class Undoable(NamedTuple):
    """A run that is only to be undone: its wake, its flow and version, and whether it must be executed alone."""

    wake: Wake
    flow: tuple[str, int]
    alone: bool


def served_flows(connection: Connection, namespace: str) -> set[str]:
    """Return the flows, as ``name@version``, that a live worker has; a process that only starts runs is no worker."""
    statement = select(workers.c.roles, workers.c.flows).where(
        workers.c.namespace == namespace, workers.c.stopped_at.is_(None), workers.c.expires_at > now()
    )
    found = connection.execute(statement)
    return {flow for roles, flows in found if "work" in read_names(roles) for flow in read_flows(flows)}


def any_unserved(connection: Connection, namespace: str, served: Iterable[str]) -> bool:
    """Return whether a run would be postponed."""
    return connection.execute(_due(namespace, served).limit(1)).first() is not None


def postpone(connection: Connection, namespace: str, served: Iterable[str], grace: float) -> list[tuple[str, int]]:
    """Postpone due runs of flows that are not in ``served``; returns the flow and version of each."""
    due = _due(namespace, served).order_by(runs.c.sweep_at).limit(BATCH).with_for_update(skip_locked=True).cte("due")
    waits = sorted({grace, 15.0, 30.0} - {LONGEST})
    # As long as it has waited already, in steps: comparing times works alike in both databases.
    pause: Any = case(
        *((runs.c.due_at > later(-seconds), later(min(seconds, LONGEST))) for seconds in waits), else_=later(LONGEST)
    )
    statement = (
        update(runs)
        .where(runs.c.id.in_(select(due.c.id)), _FREE)
        .values(sweep_at=pause)
        .returning(runs.c.flow, runs.c.version)
    )
    return [(flow, version) for flow, version in connection.execute(statement)]


def bring_forward(connection: Connection, namespace: str, known: Known) -> int:
    """Make postponed runs of these flows due now, for a process that has become a worker; returns how many.

    A run whose message is still on its way looks the same, and may be brought forward, too: the first of both wakes
    claims it. A run that is not due yet is left alone.
    """
    postponed = and_(runs.c.sweep_at > now(), runs.c.sweep_at <= later(LONGEST), runs.c.due_at <= now())
    found = (
        select(runs.c.id)
        .where(runs.c.namespace == namespace, _FREE, postponed, _SPELLED.in_(_format(known)))
        .limit(BATCH)
        .with_for_update(skip_locked=True)
        .cte("found")
    )
    changed = update(runs).where(runs.c.id.in_(select(found.c.id)), _FREE).values(sweep_at=now())
    return len(connection.execute(changed.returning(runs.c.id)).all())


def find_undoable(
    connection: Connection,
    namespace: str,
    served: Iterable[str],
    compensators: Iterable[tuple[str, str]],
    pending: Sequence[str],
    grace: float,
    limit: int,
) -> list[Undoable]:
    """Find due, unserved runs that are only to be undone, and whose compensators the caller has.

    ``compensators`` are (activity, compensator) pairs; ``pending`` are the states of frames that are owed. A wake's
    message reaches no worker, so it is not waited for, unless ``sweep_at`` is more than ``grace`` away: then the run
    was postponed.
    """
    formatted = [f"{activity}\n{compensator}" for activity, compensator in compensators]
    missing = exists().where(
        frames.c.run_id == runs.c.id,
        frames.c.child_id.is_(None),
        frames.c.state.in_(list(pending)),
        (frames.c.activity + "\n" + frames.c.compensator).not_in(formatted),
    )
    statement = (
        select(runs.c.id, runs.c.wake_id, runs.c.flow, runs.c.version, runs.c.deaths)
        .where(
            runs.c.namespace == namespace,
            _FREE,
            runs.c.sweep_at <= later(grace),
            or_(runs.c.due_at <= now(), runs.c.sweep_at <= now()),
            _SPELLED.not_in(sorted(served)),
            _TO_BE_UNDONE,
            ~missing,
        )
        .order_by(runs.c.sweep_at)
        .limit(limit)
    )
    return [
        Undoable((RunId(run), wake), (flow, version), alone=deaths >= MOST_SHARED_DEATHS)
        for run, wake, flow, version, deaths in connection.execute(statement)
    ]


def _due(namespace: str | ColumnElement[str], served: Iterable[str]) -> Select[tuple[str]]:
    """Select due runs that need the code of a flow that is not in ``served``."""
    return select(runs.c.id).where(
        runs.c.namespace == namespace,
        _FREE,
        runs.c.sweep_at <= later(-SLACK),
        _SPELLED.not_in(sorted(served)),
        # Runs that any worker may undo are left to them for longer.
        or_(~_TO_BE_UNDONE, runs.c.sweep_at <= later(-UNDO_SLACK)),
    )


#: Whether a run in a namespace is due that is only to be undone.
ANY_TO_UNDO = PreparedQuery.of(
    select(runs.c.id)
    .where(runs.c.namespace == GIVEN, _FREE, or_(runs.c.due_at <= now(), runs.c.sweep_at <= now()), _TO_BE_UNDONE)
    .limit(1)
)
#: Whether a run in a namespace is due for so long that it may be one to postpone.
ANY_LONG_DUE = PreparedQuery.of(_due(GIVEN, ()).limit(1))


def _format(known: Known) -> list[str]:
    return [f"{flow}@{version}" for flow, version in known]
