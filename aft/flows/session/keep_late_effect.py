"""Saves late effects, so that they are undone although no owner waits for their result.

An effect is late if its function was given up, if the run has another owner by now, or if the database was unreachable
for so long that it is unknown whether it was recorded. One that owes no undo (``only_if``) is not saved.

The run's present owner is not involved; the sweeper, or an owner that finds it, decides about a saved effect (see
``runs.records.late_effects``). Emits: EffectLate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aft.errors import CodecError, StoreError
from aft.flows.declare.activity import Activity
from aft.flows.session.dependencies import Dependencies
from aft.ids import StepPath
from aft.runs.ownership.owner import Owner
from aft.runs.records.late_effects import LateEffect
from aft.telemetry import EffectLate


def keep_late(
    deps: Dependencies,
    owner: Owner,
    activity: Activity[Any, Any],
    path: StepPath,
    scope: str,
    generation: int,
    args: str,
    value: Any,
    *,
    refused: bool = False,
) -> None:
    """Save a late effect if possible, and emit its decision; ``refused``: its record was refused, or had no answer."""
    try:
        encoded = _encode(activity, value)
        if encoded is not None and activity.compensator is not None and not activity.owes(args, encoded):
            event = EffectLate(run=owner.run_id, path=path, activity=activity.name, decision="nothing to undo")
            deps.telemetry.emit(event)
            return
        effect = LateEffect(
            run_id=owner.run_id,
            namespace=deps.namespace,
            path=path,
            scope=scope,
            activity=activity.name,
            key=f"{owner.run_id}/{generation}/{path}",
            key_generation=generation,
            compensator=activity.compensator.name if activity.compensator else None,
            epoch=owner.epoch,
            args=args,
            value=encoded,
        )
        kept = _keep(deps, effect, refused)
        decision = "kept" if kept else "kept when the database is back"
    except StoreError as error:
        decision = f"unknown: {error}"
    deps.telemetry.emit(EffectLate(run=owner.run_id, path=path, activity=activity.name, decision=decision))


def _encode(activity: Activity[Any, Any], value: Any) -> str | None:
    """Encode a result; None if it cannot be stored. The effect is saved nevertheless."""
    try:
        return activity.result.encode(value, "result")
    except CodecError:
        return None


def _keep(deps: Dependencies, effect: LateEffect, refused: bool) -> bool:
    """Save an effect, without its result if the database refuses that; False: buffered until the database is back."""
    try:
        return deps.late_buffer.store(deps.store, effect, unless_recorded=refused)
    except StoreError:
        return deps.late_buffer.store(deps.store, replace(effect, value=None), unless_recorded=refused)
