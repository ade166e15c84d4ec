"""Late effects: those that finished after their owner had lost the run, or had given up the attempt.

Writing one is the only write without an epoch: the former owner does not own the run any more, but its effect exists.
A late effect is decided about by the run's owner, where a step has failed for good and where the run is undone
(``flows.steps.push_late_effects``), or by the sweeper, if the run has no owner. Both decide by the same rules:

- another worker owns the run: it may record that step, or be undoing it; wait, look again later;
- the same step was recorded under the same key, and stands: the effect is the recorded one; drop it. After
  ``continue_as_new`` the earlier journal is gone: then the step's frame proves that it was recorded, and a step without
  compensator is taken to have been recorded, as the run went past it;
- the run goes on, and has no outcome of that step: it may still record it; wait, look again later;
- the run has ended or gone on without it, or is being undone: the step failed for good, was undone before the effect
  arrived, belongs to an earlier generation that had not recorded it, or is not tried any more. Its compensator undoes
  it at once, as a frame of its own (``late``), before the run goes on; for a step without compensator the sweeper, and
  only the sweeper, parks the run, "late effect". A run without an owner that is suspended, parked or being undone is
  not touched: a person or its unwinding comes first.

Who may run at the same time: writers of effects, the run's owner, and sweepers. Each locks the run's row before it
writes. Writing an effect raises the length of the run's inbox, though there is no entry: the owner's end names the
length at its last look, and is refused if the inbox has grown since (``flows.session.release.end``). So an effect
arrives before the owner's last look, which handles it; or between that look and the end, and the owner looks again; or
after the end, and the sweeper handles it. One that arrives after a step's failure was raised in the flow is handled
when the run is released, undone, or has ended. A crash leaves it open: the next owner looks again where a failure is
raised in the flow, and where the run is undone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, insert, select, true, update

from aft.ids import RunId, StepPath
from aft.runs.records.journal import RESTARTED, Outcome
from aft.runs.states import ENDS, GOING, FrameState, Status
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import now
from aft.store.tables import frames, journal, late_effects, runs


class LateDecision(StrEnum):
    """The decision about a late effect."""

    WAIT = "wait"
    DROP = "drop"
    UNDO = "undo"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class LateEffect:
    """An effect that is not in the journal."""

    run_id: RunId
    namespace: str
    path: StepPath
    scope: str
    activity: str
    key: str
    key_generation: int
    compensator: str | None
    epoch: int
    args: str = field(repr=False)
    #: Its result; None: it could not be stored.
    value: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class FoundEffect:
    """A late effect, and the state of its run and step; ``stands``: it is the recorded one, and was not undone."""

    id: str
    effect: LateEffect
    status: Status
    owned: bool
    stands: bool
    #: Whether the run went on without it, and will not record that step under this key any more.
    over: bool = False
    #: Whether the run's owner decides, and not a sweeper.
    ours: bool = False


#: Whether an effect is open in a namespace.
ANY_OPEN = PreparedQuery.of(
    select(late_effects.c.id).where(late_effects.c.namespace == GIVEN, late_effects.c.state == "open").limit(1)
)
#: Whether an effect is open about which the run's owner may have to decide.
OPEN = PreparedQuery.about(f"SELECT 1 FROM {late_effects.name} WHERE run_id {{among}} AND state = 'open' LIMIT 1")
_FIELDS = tuple(LateEffect.__slots__)
#: Stored instead of a result that could not be encoded.
_UNKNOWN = ""
#: Frames whose step was recorded and stands, and frames that were popped, maybe before a late effect arrived.
_STANDING = (FrameState.OWED, FrameState.KEPT)
_UNDONE = (FrameState.UNDONE, FrameState.DONE, FrameState.SKIPPED)


def write(connection: Connection, effect_id: str, effect: LateEffect, *, unless_recorded: bool = False) -> None:
    """Record a late effect; idempotent by its id.

    ``unless_recorded``: do nothing if its own owner has recorded it after all, in a commit that had no answer.
    """
    # First: it locks the row, so that the run's owner sees the effect, or we see what the owner has written.
    connection.execute(update(runs).where(runs.c.id == effect.run_id).values(inbox_seq=runs.c.inbox_seq + 1))
    known = connection.execute(select(late_effects.c.id).where(late_effects.c.id == effect_id)).first()
    if known is not None or (unless_recorded and _is_recorded(connection, effect)):
        return
    values = {name: getattr(effect, name) for name in _FIELDS} | {"value": effect.value or _UNKNOWN}
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


def find_open(
    connection: Connection, namespace: str, limit: int, just: str | None = None, *, lock: bool = True
) -> list[FoundEffect]:
    """Return late effects that can be decided about now, or ``just`` one, of runs without an owner; ordered by run.

    With ``lock`` they are locked with their runs, to be closed in this transaction. Rows locked by others are skipped:
    waiting for a run here, with its effect locked, would deadlock with an owner that waits for the effect.
    """
    statement = (
        _found()
        .where(
            late_effects.c.namespace == namespace,
            true() if just is None else late_effects.c.id == just,
            # Not while the run has an owner: it may be undoing the step at this moment.
            runs.c.worker_id.is_(None),
            _stands()
            | runs.c.status.in_([status.value for status in ENDS])
            | (_is_over() & runs.c.status.in_([status.value for status in GOING])),
        )
        .limit(limit)
    )
    if lock:
        statement = statement.with_for_update(skip_locked=True, of=(late_effects, runs))
    found = [_read_found(row, owned=row.worker_id is not None) for row in connection.execute(statement)]
    return sorted(found, key=lambda each: each.effect.run_id)  # the lock order of all who lock several runs


def find_ours(connection: Connection, run_id: RunId) -> list[FoundEffect]:
    """Return the open late effects of a run, oldest first, for its owner: no sweeper handles them meanwhile."""
    statement = _found().where(late_effects.c.run_id == run_id)
    return [_read_found(row, ours=True) for row in connection.execute(statement)]


def any_undoable(connection: Connection, run_id: RunId) -> bool:
    """Return whether a run has an open late effect with a compensator."""
    here = (late_effects.c.run_id == run_id, late_effects.c.state == "open", late_effects.c.compensator.is_not(None))
    return connection.execute(select(late_effects.c.id).where(*here).limit(1)).first() is not None


def _found() -> Select[Any]:
    return (
        select(late_effects, runs.c.status, runs.c.worker_id, _stands().label("stands"), _is_over().label("over"))
        .join(runs, runs.c.id == late_effects.c.run_id)
        # A run in a state that there is not must not stop what is decided about the others.
        .where(late_effects.c.state == "open", runs.c.status.in_([status.value for status in Status]))
        .order_by(late_effects.c.at)
    )


def _read_found(row: Row[Any], *, owned: bool = False, ours: bool = False) -> FoundEffect:
    return FoundEffect(row.id, _read(row), Status(row.status), owned, row.stands, row.over, ours)


def _read(row: Row[Any]) -> LateEffect:
    values = {name: getattr(row, name) for name in _FIELDS}
    return LateEffect(**values | {"value": None if row.value == _UNKNOWN else row.value})


def _stands() -> ColumnElement[bool]:
    """Return the condition that the effect's step was recorded under the same key, and was not undone."""
    recorded = exists().where(
        journal.c.run_id == late_effects.c.run_id,
        journal.c.path == late_effects.c.path,
        journal.c.key_generation == late_effects.c.key_generation,
        journal.c.outcome == Outcome.OK.value,
    )
    # The journal was emptied since; frames were kept.
    past = late_effects.c.key_generation % RESTARTED < runs.c.key_generation
    return (recorded | (past & (late_effects.c.compensator.is_(None) | _has_frame(_STANDING)))) & ~_has_frame(_UNDONE)


def _is_over() -> ColumnElement[bool]:
    """Return the condition that the run went on without the effect, unless it stands.

    Its step has another outcome, belongs to an earlier generation, or was undone.
    """
    generation = late_effects.c.key_generation % RESTARTED
    decided = exists().where(journal.c.run_id == late_effects.c.run_id, journal.c.path == late_effects.c.path)
    past = generation < runs.c.key_generation
    return past | ((generation == runs.c.key_generation) & decided) | _has_frame(_UNDONE)


def _has_frame(states: Collection[FrameState]) -> ColumnElement[bool]:
    return exists().where(
        frames.c.run_id == late_effects.c.run_id,
        frames.c.path == late_effects.c.path,
        frames.c.key_generation == late_effects.c.key_generation,
        frames.c.state.in_([state.value for state in states]),
    )


def decide(found: FoundEffect) -> LateDecision:
    """Decide about a late effect. Pure."""
    if found.owned:
        return LateDecision.WAIT
    if found.stands:
        return LateDecision.DROP
    if not _is_left_behind(found):
        return LateDecision.WAIT
    return LateDecision.PARK if found.effect.compensator is None else LateDecision.UNDO


def _is_left_behind(found: FoundEffect) -> bool:
    """Return whether the run will not record the effect any more, and the effect may be handled now."""
    if found.status.ended:
        return True
    if found.status is Status.COMPENSATING:
        return found.ours
    return found.over and (found.ours or found.status in GOING)


def close(connection: Connection, effect_id: str, decision: LateDecision) -> None:
    """Close a late effect with the decision that was carried out."""
    statement = update(late_effects).where(late_effects.c.id == effect_id)
    connection.execute(statement.values(state=decision.value, settled_at=now()))
