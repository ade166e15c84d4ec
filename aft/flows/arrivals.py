"""Late effects of a run that its owner finds: taken over as frames, or dropped (see ``runs.late`` for which, and why).

The owner looks where a step has failed for good, before the flow's code hears of it, and where the run or a savepoint
is undone; not where all goes well. What it finds is undone before the run goes on. What nothing undoes is left to the
sweeper, which parks the run.

Who may run at the same time: the branches of the run, whose steps have no outcome then, and whoever writes one more
effect; no sweeper touches those of a run that is owned. Nothing is being undone here meanwhile: only the flow's own
thread undoes what was recorded. Each effect is a guarded write of its own, as each frame takes the write's number; a
crash between two leaves the rest open, and the frames that were made are undone before the next owner goes on.
"""

from __future__ import annotations

import json
from functools import partial

from sqlalchemy import Connection

from aft.compensation import late_frames
from aft.flows.steps import Stepper
from aft.runs import late
from aft.runs.late import Fate, Found
from aft.telemetry import EffectLate


def find_late(stepper: Stepper) -> bool:
    """Tell whether effects came late that were not settled when the owner looked after its last write."""
    owner, standing = stepper.owner, stepper.standing
    if standing.looked_at == owner.seq:
        return False  # a replay hands out many failures: one look finds what came before for all of them
    standing.looked_at = owner.seq
    return bool(owner.ask([(late.OPEN, json.dumps([owner.run_id]))])[0])


def take_late(stepper: Stepper) -> bool:
    """Settle the late effects about which it can be decided now; tells whether any of them is a frame from now on."""
    owner, tools = stepper.owner, stepper.tools
    owner.looked_to = owner.inbox_seq
    found = owner.read(lambda connection: late.find_ours(connection, owner.run_id))
    fates = [(each, late.decide(each)) for each in found]
    settled = [(each, fate) for each, fate in fates if fate in (Fate.UNDO, Fate.DROP)]
    for each, fate in settled:
        owner.write(partial(_settle, stepper, each, fate))
        effect = each.effect
        tools.telemetry.emit(EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, fate=fate.value))
    return any(fate is Fate.UNDO for _, fate in settled)


def _settle(stepper: Stepper, found: Found, fate: Fate, connection: Connection, seq: int) -> None:
    if fate is Fate.UNDO:
        late_frames.owe(connection, found, seq, stepper.tools.clock.now())
    else:
        late.settle(connection, found.id, fate)
