"""What a fault stores of its step: facts for rules, and what exlets have changed so far.

It is one JSON text in the fault's row, encoded only here; ``runs.records.step_snapshots`` decodes it. Each fault of a
step takes over the exlets' changes from the one before it: they hold for every try.
"""

from __future__ import annotations

import json
from typing import Any

from aft.fault import Fault, FaultKind
from aft.rules.cases.case import Facts, StepFacts, read_tags
from aft.rules.rule_types import RuleType
from aft.runs.records import step_snapshots
from aft.runs.records.step_snapshots import StepSnapshot
from aft.runs.rulings import Ruling, RulingAction

#: Facts about a run that change while it goes on.
_CHANGING = ("run.status", "run.tags")


def encode(step: StepFacts, before: Fault | None = None, facts: Facts | None = None, abreast: int = 0) -> str:
    """Encode what a fault stores of its step; ``before`` is the fault that it had until now.

    ``facts``: what rules were asked with, if they found a constraint violated. ``abreast``: how many steps of its call
    are executed at a time.
    """
    run = {name: facts[name] for name in _CHANGING if facts is not None and name in facts}
    restarts = _restarts_until_now(before)
    kept = StepSnapshot(step.args, step.result, step.elapsed, step.attempts, changes(before), restarts, run, abreast)
    return json.dumps({name: value for name in StepSnapshot.__slots__ if (value := getattr(kept, name))})


def read_snapshot(fault: Fault) -> StepSnapshot:
    """Decode what a fault stores."""
    return step_snapshots.decode(fault.step_snapshot)


def run_facts(fault: Fault) -> Facts:
    """Return the facts about a fault's run that change, as they were when rules were asked.

    Empty for a fault that is not decided about yet: rules see the run as it is now.
    """
    if known := read_snapshot(fault).run:
        return dict(known)
    if fault.run_status is None:
        return {}
    return {"run.status": fault.run_status, "run.tags": read_tags(json.loads(fault.run_tags or "{}"))}


def failures(fault: Fault) -> int:
    """Return how often the step of a fault has failed; a violated constraint is no failure."""
    return read_snapshot(fault).failures if fault.kind is FaultKind.CONSTRAINT else fault.attempt


def changes(fault: Fault | None) -> dict[str, Any]:
    """Return the arguments of a step that rules have changed, by name: they hold for every try of it."""
    if fault is None:
        return {}
    return {**read_snapshot(fault).changed, **(Ruling.decode(fault.ruling).args or {})}


def begin_again(fault: Fault) -> str | None:
    """Return the encoded ruling that restarts a step, on a person's order, with the arguments that rules have changed.

    A step that had its effect before rules objected to it is undone first. None: no ruling is needed.
    """
    if fault.path is None:
        return None
    changed = changes(fault)
    return Ruling(RulingAction.RESTART, changed or None).encode() if changed or had_effect(fault) else None


def had_effect(fault: Fault) -> bool:
    """Return whether the step of a fault had its effect: rules have objected to its result."""
    return fault.rule_type == RuleType.ACTIVITY_POST.value


def _restarts_until_now(before: Fault | None) -> int:
    if before is None:
        return 0
    return read_snapshot(before).restarts + (Ruling.decode(before.ruling).do is RulingAction.RESTART)
