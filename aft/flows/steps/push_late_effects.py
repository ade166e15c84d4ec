"""Turns late effects that a run's owner finds into frames, or drops them (``runs.records.late_effects`` decides which).

The owner checks when a step has failed for good, before the flow's code sees the failure, and when the run or a
savepoint is undone; not while all goes well. What it finds is undone before the run goes on. An effect that nothing
can undo is left to the sweeper, which parks the run.

Who may run at the same time: the run's other branches, whose steps have no outcome yet, and writers of further late
effects; the sweeper does not touch those of an owned run. Nothing is being undone meanwhile: only the flow's own thread
undoes recorded steps. Each effect is its own guarded write, because each frame takes the write's ``seq``; a crash
between two leaves the rest open, and the frames that were pushed are undone before the next owner goes on.
"""

from __future__ import annotations

import json
from functools import partial

from sqlalchemy import Connection

from aft.compensation import late_frames
from aft.flows.steps.run_session import RunSession
from aft.runs.records import late_effects
from aft.runs.records.late_effects import FoundEffect, LateDecision
from aft.telemetry import EffectLate


def find_late(session: RunSession) -> bool:
    """Whether there are open late effects; False without a query if the owner has checked since its last write."""
    owner, step_states = session.owner, session.step_states
    if step_states.late_checked_at == owner.seq:
        return False  # a replay returns many failures: one query is enough for all of them
    step_states.late_checked_at = owner.seq
    return bool(owner.query([(late_effects.OPEN, json.dumps([owner.run_id]))])[0])


def take_late(session: RunSession) -> bool:
    """Decide about late effects as far as possible now; return whether any became a frame. Emits: EffectLate."""
    owner, deps = session.owner, session.deps
    owner.late_checked_to = owner.inbox_seq
    found = owner.read(lambda connection: late_effects.find_ours(connection, owner.run_id))
    decisions = [(each, late_effects.decide(each)) for each in found]
    decided = [(each, decision) for each, decision in decisions if decision in (LateDecision.UNDO, LateDecision.DROP)]
    for each, decision in decided:
        owner.write(partial(_apply_decision, session, each, decision))
        effect = each.effect
        deps.telemetry.emit(
            EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, decision=decision.value)
        )
    return any(decision is LateDecision.UNDO for _, decision in decided)


def _apply_decision(
    session: RunSession, found: FoundEffect, decision: LateDecision, connection: Connection, seq: int
) -> None:
    if decision is LateDecision.UNDO:
        late_frames.push_late_frame(connection, found, seq, session.deps.clock.now())
    else:
        late_effects.close(connection, found.id, decision)
