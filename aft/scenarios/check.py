"""Checks that a scenario ended as its data file declares. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from aft.app.views.timeline import StoryEventKind
from aft.fault import Fault, FaultKind, FaultState
from aft.rules.trees.choose import RuleChoice
from aft.scenarios.play import ScenarioOutcome

#: What data files call a worker's death.
LOST = "worker lost"


def find_differences(played: ScenarioOutcome) -> list[str]:
    """Return how the result differs from the declaration, one line for each difference."""
    expected = played.scenario.expected
    pairs = {
        "run": (expected.run.value, played.row.status.value),
        "tables": (expected.tables, played.tables),
        "done": (_join(expected.done), _join(played.done)),
        "undone": (_join(expected.undone), _join(names(played, StoryEventKind.POPPED))),
        "notices": (_join(expected.notices), _join(played.notices)),
        "taught": (_join(rule.exlet for rule in played.scenario.to_teach), _join(played.taught)),
        "faults": (_join(expected.faults), _join(_format_faults(played))),
        "sent": (_join(each.name for each in played.scenario.signals), _join(played.sent)),
        "dropped": (_join(expected.dropped), _join(played.dropped)),
        "worker": (_died(signal.SIGKILL if played.scenario.kills else None), _died(_signal(played))),
    }
    differ = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    return [f"{what}: declared {declared}; found {found}" for what, (declared, found) in differ.items()]


def names(played: ScenarioOutcome, what: StoryEventKind) -> list[str]:
    """Return the names of the events of this kind, in order."""
    return [happening.name for happening in played.story if happening.what is what]


def _format_faults(played: ScenarioOutcome) -> list[str]:
    """Format the faults; a lost worker more than declared is ignored.

    On a busy machine a worker may fail to renew its lease in time. That the run ends as declared all the same is
    just what is promised.
    """
    lines = [format_fault(fault) for fault in played.faults]
    for _ in range(lines.count(LOST) - played.scenario.expected.faults.count(LOST)):
        lines.remove(LOST)
    return lines


def format_fault(fault: Fault) -> str:
    """Format a fault as data files do: ``approve_slot: CmsBusy, level 1``, or ``worker lost``.

    For a constraint, where the rules were asked and what they chose: ``do_show: activity_pre, change_to_mid_venue``.
    """
    if fault.kind is FaultKind.ABORT:
        return LOST
    if fault.kind is FaultKind.CONSTRAINT and fault.decision is not None:
        return f"{fault.name}: {fault.rule_type}, {RuleChoice.decode(fault.decision).exlet}"
    if fault.level is not None:
        return f"{fault.name}: {fault.short_type}, level {fault.level}"
    fate = "parked" if fault.state is FaultState.PARKED else "final"
    return f"{fault.name}: {fault.short_type}, {fate}"


def _signal(played: ScenarioOutcome) -> int | None:
    return None if played.killed is None else played.killed.signal


def _died(number: int | None) -> str:
    return "lives" if number is None else f"dies of {signal.Signals(number).name}" if number > 0 else "ends by itself"


def _join(parts: Iterable[str]) -> str:
    return " | ".join(parts) or "nothing"
