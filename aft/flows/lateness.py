"""Keeping an effect that nobody waited for any more: the function was given up, or the run has another owner by now.

Whoever owns the run now is not asked; the sweeper settles what is kept (see ``runs.late``). Emits: EffectLate.
"""

from __future__ import annotations

from typing import Any

from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from aft.errors import CodecError, StoreError
from aft.flows.activity import Activity
from aft.flows.tools import Tools
from aft.ids import StepPath, new_id
from aft.runs import late
from aft.runs.late import LateEffect
from aft.runs.owner import Owner
from aft.store import Store
from aft.telemetry import EffectLate

#: Seconds for which a late effect is tried to be kept while the database is away; then only the log knows of it.
LATE_PATIENCE = 300.0


def keep_late(
    tools: Tools,
    owner: Owner,
    activity: Activity[Any, Any],
    path: StepPath,
    scope: str,
    generation: int,
    args: str,
    value: Any,
) -> None:
    """Keep an effect if it can be kept, and tell what became of it."""
    try:
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
            value=activity.result.encode(value, "result"),
        )
        _keep(tools.store, new_id(), effect)
        fate = "kept"
    except (StoreError, CodecError) as error:
        fate = f"unknown: {error}"
    tools.telemetry.emit(EffectLate(run=owner.run_id, path=path, activity=activity.name, fate=fate))


@retry(
    retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.transient),
    stop=stop_after_delay(LATE_PATIENCE),
    wait=wait_random_exponential(multiplier=0.05, max=5.0),
    reraise=True,
)
def _keep(store: Store, effect_id: str, effect: LateEffect) -> None:
    with store.write() as connection:
        late.write(connection, effect_id, effect)
