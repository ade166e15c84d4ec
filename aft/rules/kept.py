"""What does a fault keep of its step? What rules may ask about it later, and what exlets have made of it so far.

It is one JSON text in the fault's row, and nothing else reads or spells it. Each fault of a step takes over what the
one before it kept of the exlets' doings: they hold for every try.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aft.fault import Fault, FaultKind
from aft.rules.case import Facts, StepFacts, read_tags
from aft.rules.kinds import On
from aft.runs.rulings import Do, Ruling


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """The text, read. ``failures`` is how often a step had failed that rules objected to."""

    args: str | None = None
    result: str | None = None
    elapsed: float | None = None
    failures: int = 0
    #: Arguments that exlets have changed, by name.
    changed: dict[str, Any] = field(default_factory=dict)
    #: How often exlets have had the step begun anew.
    restarts: int = 0
    #: Facts about the run, where rules were asked before there was a fault.
    run: dict[str, Any] = field(default_factory=dict)
    #: How many steps of its call were executed at a time; 0: it was called alone.
    abreast: int = 0


#: Facts about a run that change while it goes on.
_CHANGING = ("run.status", "run.tags")


def keep(step: StepFacts, before: Fault | None = None, facts: Facts | None = None, abreast: int = 0) -> str:
    """Spell what a fault is to keep of its step; ``before`` stood against it.

    ``facts``: what rules were asked with, where they found that a constraint is violated. ``abreast``: how many steps
    of its call are executed at a time.
    """
    run = {name: facts[name] for name in _CHANGING if facts is not None and name in facts}
    restarts = _restarts_until_now(before)
    kept = StepSnapshot(step.args, step.result, step.elapsed, step.attempts, changes(before), restarts, run, abreast)
    return json.dumps({name: value for name in StepSnapshot.__slots__ if (value := getattr(kept, name))})


def read(fault: Fault) -> StepSnapshot:
    """Read what a fault keeps."""
    return StepSnapshot(**json.loads(fault.step)) if fault.step else StepSnapshot()


def run_facts(fault: Fault) -> Facts:
    """Those facts about a fault's run that may have changed since rules were asked, as they were then.

    None of a fault that nobody has decided about: rules would see the run as it is now.
    """
    if known := read(fault).run:
        return dict(known)
    if fault.run_status is None:
        return {}
    return {"run.status": fault.run_status, "run.tags": read_tags(json.loads(fault.run_tags or "{}"))}


def failures(fault: Fault) -> int:
    """How often the step of a fault has failed; one that rules objected to has not."""
    return read(fault).failures if fault.kind is FaultKind.CONSTRAINT else fault.attempt


def changes(fault: Fault | None) -> dict[str, Any]:
    """The arguments of a step that rules have changed, by name: they hold for every try of it."""
    if fault is None:
        return {}
    return {**read(fault).changed, **(Ruling.decode(fault.ruling).args or {})}


def begin_again(fault: Fault) -> str | None:
    """How a step begins anew, as a person asked: with the arguments that rules have changed, if they have.

    One that had its effect before rules objected to it is undone first. None: nothing has to be known of it any more.
    """
    if fault.path is None:
        return None
    changed = changes(fault)
    return Ruling(Do.RESTART, changed or None).encode() if changed or had_effect(fault) else None


def had_effect(fault: Fault) -> bool:
    """Tell whether the step of a fault had its effect: rules have objected to what came of it."""
    return fault.exception == On.ACTIVITY_POST.value


def _restarts_until_now(before: Fault | None) -> int:
    if before is None:
        return 0
    return read(before).restarts + (Ruling.decode(before.ruling).do is Do.RESTART)
