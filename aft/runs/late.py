"""Effects that finished after their owner had lost the run.

Writing one is the one write without an epoch: the former owner has no right to the run any more, but what it did is
done. The sweeper settles each, whatever has become of the run by then:

- somebody has the run at this moment: he may record that step, or be undoing it; looked at again later;
- the same step was recorded under the same key, and stands: the effect is the recorded one; dropped. A run that began
  anew has no journal of before: then the step's frame tells that it was recorded, and a step that nothing undoes is
  taken to have been, as the run went past it;
- the run goes on: it may still record that step; looked at again later;
- the run has ended without it, or had undone that step before the effect arrived: its compensator undoes it, as a
  frame of its own (``late``); a step without compensator parks the run, "late effect".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, exists, insert, select, update

from aft.ids import RunId, StepPath
from aft.runs.journal import RESTARTED, Outcome
from aft.runs.states import ENDS, FrameState, Status
from aft.store.moments import now
from aft.store.tables import frames, journal, late_effects, runs


class Fate(StrEnum):
    """What becomes of a late effect."""

    WAIT = "wait"
    DROP = "drop"
    UNDO = "undo"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class LateEffect:
    """An effect that happened outside the journal."""

    run_id: RunId
    namespace: str
    path: StepPath
    scope: str
    activity: str
    key: str
    key_generation: int
    compensator: str | None
    epoch: int
    args: str
    value: str


@dataclass(frozen=True, slots=True)
class Found:
    """A late effect, and how its run and step stand now; ``stands``: it is a recorded one that nobody has undone."""

    id: str
    effect: LateEffect
    status: Status
    owned: bool
    stands: bool


_FIELDS = tuple(LateEffect.__slots__)
#: Frames whose step was recorded and stands, and frames that were taken off, maybe before a late effect arrived.
_STANDING = (FrameState.OWED, FrameState.KEPT)
_UNDONE = (FrameState.UNDONE, FrameState.DONE, FrameState.SKIPPED)


def write(connection: Connection, effect_id: str, effect: LateEffect, *, unless_recorded: bool = False) -> None:
    """Record a late effect; harmless if that was done under this id.

    ``unless_recorded``: not if its own owner has recorded it after all, in a commit that had no answer.
    """
    known = connection.execute(select(late_effects.c.id).where(late_effects.c.id == effect_id)).first()
    if known is not None or (unless_recorded and _is_recorded(connection, effect)):
        return
    values = {name: getattr(effect, name) for name in _FIELDS}
    connection.execute(insert(late_effects).values(id=effect_id, state="open", at=now(), **values))


def _is_recorded(connection: Connection, effect: LateEffect) -> bool:
    statement = select(journal.c.seq).where(
        journal.c.run_id == effect.run_id,
        journal.c.path == effect.path,
        journal.c.key_generation == effect.key_generation,
        journal.c.outcome == Outcome.OK.value,
        journal.c.epoch == effect.epoch,
    )
    return connection.execute(statement).first() is not None


def find_open(connection: Connection, namespace: str, limit: int) -> list[Found]:
    """Return late effects that can be settled now, oldest first, locked against other sweepers."""
    stands = _stands()
    statement = (
        select(late_effects, runs.c.status, runs.c.worker_id, stands.label("stands"))
        .join(runs, runs.c.id == late_effects.c.run_id)
        .where(
            late_effects.c.namespace == namespace,
            late_effects.c.state == "open",
            # Not while somebody has the run, who may be undoing the step at this moment.
            runs.c.worker_id.is_(None),
            stands | runs.c.status.in_([status.value for status in ENDS]),
        )
        .order_by(late_effects.c.at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=late_effects)
    )
    found = [
        Found(
            id=row.id,
            effect=LateEffect(**{name: getattr(row, name) for name in _FIELDS}),
            status=Status(row.status),
            owned=row.worker_id is not None,
            stands=row.stands,
        )
        for row in connection.execute(statement)
    ]
    return sorted(found, key=lambda each: each.effect.run_id)  # as everybody who locks several runs


def _stands() -> ColumnElement[bool]:
    """Whether the effect's step was recorded under the same key, and its effect is still there."""
    recorded = exists().where(
        journal.c.run_id == late_effects.c.run_id,
        journal.c.path == late_effects.c.path,
        journal.c.key_generation == late_effects.c.key_generation,
        journal.c.outcome == Outcome.OK.value,
    )
    # The journal began anew since: the frame was kept.
    past = late_effects.c.key_generation % RESTARTED < runs.c.key_generation
    return (recorded | (past & (late_effects.c.compensator.is_(None) | _has_frame(_STANDING)))) & ~_has_frame(_UNDONE)


def _has_frame(states: Collection[FrameState]) -> ColumnElement[bool]:
    return exists().where(
        frames.c.run_id == late_effects.c.run_id,
        frames.c.path == late_effects.c.path,
        frames.c.key_generation == late_effects.c.key_generation,
        frames.c.state.in_([state.value for state in states]),
    )


def decide(found: Found) -> Fate:
    """Say what becomes of a late effect."""
    if found.owned:
        return Fate.WAIT
    if found.stands:
        return Fate.DROP
    if not found.status.ended:
        return Fate.WAIT
    return Fate.PARK if found.effect.compensator is None else Fate.UNDO


def settle(connection: Connection, effect_id: str, fate: Fate) -> None:
    """Say that a late effect was dealt with."""
    statement = update(late_effects).where(late_effects.c.id == effect_id)
    connection.execute(statement.values(state=fate.value, settled_at=now()))
