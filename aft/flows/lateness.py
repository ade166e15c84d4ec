"""Keeping an effect that nobody waited for any more: the function was given up, the run has another owner by now, or
the database was away for so long that nobody knows whether it was recorded.

Whoever owns the run now is not asked; the sweeper settles what is kept (see ``runs.late``). Emits: EffectLate.
"""

from __future__ import annotations

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
        encoded = activity.result.encode(value, "result")
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
        kept = tools.belated.keep(tools.store, effect, unless_recorded=refused)
        fate = "kept" if kept else "kept when the database is back"
    except (StoreError, CodecError) as error:
        fate = f"unknown: {error}"
    tools.telemetry.emit(EffectLate(run=owner.run_id, path=path, activity=activity.name, fate=fate))
