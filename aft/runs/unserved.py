"""Runs of flows that no live worker has the code of: looked at with back-off, and undone by any worker that can.

- **Going on** needs the flow. Such a run is left untouched; no attempt is counted. The sweeper moves its ``sweep_at``
  ahead, each time by as long as the run has waited already, so that workers do not look over it at every turn. Whoever
  becomes a worker, at its start or because its lease had run out, brings the runs of its own flows back.
- **Undoing** needs compensators only. A run that is being undone, that was ordered to be undone or ended, or that has
  ended and owes something late, is claimed by any worker that has the compensators of all frames that it owes.

Who may run at the same time: any number of sweepers and workers. A run is postponed only while nobody owns it. Who
becomes a worker just then may miss a run that a sweeper postpones in the same moment: it is taken ``LONGEST`` later at
most.
A crash leaves nothing half done: each of these is one statement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, String, and_, case, cast, exists, or_, select, update

from aft.ids import RunId
from aft.runs.claiming import Known, Wake
from aft.runs.inbox import Verb
from aft.runs.owner import MOST_SHARED_DEATHS
from aft.store.moments import later, now
from aft.store.tables import frames, inbox, runs, workers

#: Seconds after which a run that nobody has the flow of is looked at again, at most.
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
    inbox.c.run_id == runs.c.id, inbox.c.read_epoch.is_(None), inbox.c.kind == Verb.CANCEL.value
)
#: The flow is not played any more, whatever else comes.
_TO_BE_UNDONE = or_(runs.c.ended_as.is_not(None), runs.c.cause.is_not(None), _CANCELLED)


class Undoable(NamedTuple):
    """A run that is only to be undone: its wake, its flow and version, and whether it must be executed alone."""

    wake: Wake
    flow: tuple[str, int]
    alone: bool


def served_flows(connection: Connection, namespace: str) -> set[str]:
    """Return the flows, as ``name@version``, that some live worker has; a process that only starts runs is none."""
    statement = select(workers.c.roles, workers.c.flows).where(
        workers.c.namespace == namespace, workers.c.stopped_at.is_(None), workers.c.expires_at > now()
    )
    found = connection.execute(statement)
    return {flow for roles, flows in found if "work" in json.loads(roles) for flow in json.loads(flows)}


def any_unserved(connection: Connection, namespace: str, served: Iterable[str]) -> bool:
    """Tell whether a run would be postponed."""
    return connection.execute(_due(namespace, served).limit(1)).first() is not None


def postpone(connection: Connection, namespace: str, served: Iterable[str], grace: float) -> list[tuple[str, int]]:
    """Look at due runs of flows that nobody has again later; returns the flow and version of each."""
    due = _due(namespace, served).order_by(runs.c.sweep_at).limit(BATCH).with_for_update(skip_locked=True).cte("due")
    waits = sorted({grace, 15.0, 30.0} - {LONGEST})
    # As long as it has waited already, in steps: moments are compared, which both databases do alike.
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
    """Make runs of these flows due that may have been postponed, for one that has become a worker; tells how many.

    A run whose message is still on its way looks the same, and may be brought forward, too: whichever comes first has
    it. One whose own time has not come is left alone.
    """
    postponed = and_(runs.c.sweep_at > now(), runs.c.sweep_at <= later(LONGEST), runs.c.due_at <= now())
    found = (
        select(runs.c.id)
        .where(runs.c.namespace == namespace, _FREE, postponed, _SPELLED.in_(_spell(known)))
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
    """Find due runs of flows that nobody has, which are only to be undone, with compensators that the caller has.

    ``compensators`` are (activity, compensator) pairs; ``pending`` are the states of frames that are owed. A message
    that wakes one reaches nobody, so it is not waited for: whose ``sweep_at`` is further away than a message may take
    was put off.
    """
    spelled = [f"{activity}\n{compensator}" for activity, compensator in compensators]
    missing = exists().where(
        frames.c.run_id == runs.c.id,
        frames.c.child_id.is_(None),
        frames.c.state.in_(list(pending)),
        (frames.c.activity + "\n" + frames.c.compensator).not_in(spelled),
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


def _due(namespace: str, served: Iterable[str]) -> Select[tuple[str]]:
    """Due runs that need the code of a flow which nobody has."""
    return select(runs.c.id).where(
        runs.c.namespace == namespace,
        _FREE,
        runs.c.sweep_at <= later(-SLACK),
        _SPELLED.not_in(sorted(served)),
        # What any worker may undo is left to them for longer.
        or_(~_TO_BE_UNDONE, runs.c.sweep_at <= later(-UNDO_SLACK)),
    )


def _spell(known: Known) -> list[str]:
    return [f"{flow}@{version}" for flow, version in known]
