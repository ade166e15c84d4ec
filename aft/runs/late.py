"""Effects that finished after their owner had lost the run.

Writing one is the one write without an epoch: the former owner has no right to the run any more, but what it did is
done. The sweeper settles each, whatever has become of the run by then:

- somebody has the run at this moment: he may record that step, or be undoing it; looked at again later;
- the same step was recorded under the same key, and stands: the effect is the recorded one; dropped;
- the run goes on: it may still record that step; looked at again later;
- the run has ended without it, or had undone that step before the effect arrived: its compensator undoes it, as a
  frame of its own (``late``); a step without compensator parks the run, "late effect".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, exists, insert, select, update

from aft.ids import RunId, StepPath, new_id
from aft.runs.journal import Outcome
from aft.runs.states import ENDS, Status
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
    """A late effect, and how its run and step stand now."""

    id: str
    effect: LateEffect
    status: Status
    owned: bool
    recorded: Outcome | None
    recorded_generation: int | None
    undone: bool = False  # the recorded step's frame was taken off, maybe before this effect arrived


_FIELDS = tuple(LateEffect.__slots__)


def write(connection: Connection, effect: LateEffect) -> None:
    """Record a late effect."""
    values = {name: getattr(effect, name) for name in _FIELDS}
    connection.execute(insert(late_effects).values(id=new_id(), state="open", at=now(), **values))


def find_open(connection: Connection, namespace: str, limit: int) -> list[Found]:
    """Return late effects that can be settled now, oldest first, locked against other sweepers."""
    undone = exists().where(
        frames.c.run_id == late_effects.c.run_id,
        frames.c.path == late_effects.c.path,
        frames.c.key_generation == late_effects.c.key_generation,
        frames.c.settled_at.is_not(None),
    )
    stands = (
        (journal.c.outcome == Outcome.OK.value) & ~undone & (journal.c.key_generation == late_effects.c.key_generation)
    )
    ended = runs.c.status.in_([status.value for status in ENDS])
    statement = (
        select(
            late_effects,
            runs.c.status,
            runs.c.worker_id,
            journal.c.outcome,
            journal.c.key_generation.label("recorded_generation"),
            undone.label("undone"),
        )
        .join(runs, runs.c.id == late_effects.c.run_id)
        .outerjoin(journal, (journal.c.run_id == late_effects.c.run_id) & (journal.c.path == late_effects.c.path))
        .where(
            late_effects.c.namespace == namespace,
            late_effects.c.state == "open",
            # Not while somebody has the run, who may be undoing the step at this moment.
            runs.c.worker_id.is_(None),
            stands | ended,
        )
        .order_by(late_effects.c.at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=late_effects)
    )
    return [
        Found(
            id=row.id,
            effect=LateEffect(**{name: getattr(row, name) for name in _FIELDS}),
            status=Status(row.status),
            owned=row.worker_id is not None,
            recorded=None if row.outcome is None else Outcome(row.outcome),
            recorded_generation=row.recorded_generation,
            undone=row.undone,
        )
        for row in connection.execute(statement)
    ]


def decide(found: Found) -> Fate:
    """Say what becomes of a late effect."""
    if found.owned:
        return Fate.WAIT
    same = found.recorded is Outcome.OK and found.recorded_generation == found.effect.key_generation
    if same and not found.undone:
        return Fate.DROP
    if not found.status.ended:
        return Fate.WAIT
    return Fate.PARK if found.effect.compensator is None else Fate.UNDO


def settle(connection: Connection, effect_id: str, fate: Fate) -> None:
    """Say that a late effect was dealt with."""
    statement = update(late_effects).where(late_effects.c.id == effect_id)
    connection.execute(statement.values(state=fate.value, settled_at=now()))
