"""Did a scenario end as its data file declares? Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from aft.app.timeline import What
from aft.cli.replay.play import Played
from aft.fault import Fault, FaultKind, FaultState


def judge(played: Played) -> list[str]:
    """Return what is not as declared, one line each; nothing if all is."""
    expected = played.scenario.expected
    pairs = {
        "run": (expected.run.value, played.row.status.value),
        "tables": (expected.tables, played.tables),
        "done": (_join(expected.done), _join(names(played, What.ACTIVITY))),
        "undone": (_join(expected.undone), _join(names(played, What.POPPED))),
        "faults": (_join(expected.faults), _join(tell_fault(fault) for fault in played.faults)),
        "worker": (_died(signal.SIGKILL if played.scenario.kill else None), _died(_signal(played))),
    }
    differ = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    return [f"{what}: declared {declared}; found {found}" for what, (declared, found) in differ.items()]


def names(played: Played, what: What) -> list[str]:
    """Name what happened so, in order."""
    return [happening.name for happening in played.story if happening.what is what]


def tell_fault(fault: Fault) -> str:
    """Word a fault as data files do: ``approve_slot: CmsBusy, level 1``, or ``worker lost``."""
    if fault.kind is FaultKind.ABORT:
        return "worker lost"
    if fault.level is not None:
        return f"{fault.name}: {fault.short_type}, level {fault.level}"
    fate = "parked" if fault.state is FaultState.PARKED else "final"
    return f"{fault.name}: {fault.short_type}, {fate}"


def _signal(played: Played) -> int | None:
    return None if played.killed is None else played.killed.signal


def _died(number: int | None) -> str:
    return "lives" if number is None else f"dies of {signal.Signals(number).name}" if number > 0 else "ends by itself"


def _join(parts: Iterable[str]) -> str:
    return " | ".join(parts) or "nothing"
