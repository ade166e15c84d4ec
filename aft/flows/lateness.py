"""Keeping an effect that nobody waited for any more: the function was given up, the run has another owner by now, or
the database was away for so long that nobody knows whether it was recorded. One that its compensator's ``only_if`` says
owes nothing is not kept.

Whoever owns the run now is not asked; the sweeper settles what is kept (see ``runs.late``). Emits: EffectLate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aft.errors import CodecError, StoreError
from aft.flows.activity import Activity
from aft.flows.tools import Tools
from aft.ids import StepPath
from aft.runs.late import LateEffect
from aft.runs.owner import Owner
from aft.telemetry import EffectLate


def keep_late(
    tools: Tools,
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
    """Keep an effect if it can be kept, and tell what became of it; ``refused``: its record was, or had no answer."""
    try:
        encoded = _encode(activity, value)
        if encoded is not None and activity.compensator is not None and not activity.owes(args, encoded):
            told = EffectLate(run=owner.run_id, path=path, activity=activity.name, fate="nothing to undo")
            tools.telemetry.emit(told)
            return
        effect = LateEffect(
            run_id=owner.run_id,
            namespace=tools.namespace,
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
        kept = _keep(tools, effect, refused)
        fate = "kept" if kept else "kept when the database is back"
    except StoreError as error:
        fate = f"unknown: {error}"
    tools.telemetry.emit(EffectLate(run=owner.run_id, path=path, activity=activity.name, fate=fate))


def _encode(activity: Activity[Any, Any], value: Any) -> str | None:
    """Encode a result; None: it cannot be stored. The effect is kept nevertheless."""
    try:
        return activity.result.encode(value, "result")
    except CodecError:
        return None


def _keep(tools: Tools, effect: LateEffect, refused: bool) -> bool:
    """Keep an effect, with its result if the database takes that."""
    try:
        return tools.belated.keep(tools.store, effect, unless_recorded=refused)
    except StoreError:
        return tools.belated.keep(tools.store, replace(effect, value=None), unless_recorded=refused)
