"""Measures takeovers: the time from a worker's kill to the next line of its run, from the ledger."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chaos.facts import RunFacts
from chaos.fleet import Hit
from chaos.ledger import Entry
from chaos.ledger_lines import before_end, by_load
from chaos.load import Plan

#: A step that takes less than this many seconds is short.
SHORT = 1.0
#: Lines after which a run is still in its worker's hands: inside a step, or about to begin the next one.
IN_HAND = ("begin", "done", "undoing", "undone")
#: Lines with which something is begun.
BEGINS = ("begin", "undoing")


@dataclass(frozen=True, slots=True)
class Takeover:
    """A run that was being executed when its worker was killed, and the seconds until another one went on with it."""

    load: str
    step: str
    seconds: float
    short: bool


def takeovers(
    plans: Iterable[Plan], entries: Sequence[Entry], kills: Iterable[Hit], runs: Mapping[str, RunFacts] | None = None
) -> list[Takeover]:
    """Return the takeovers of all runs that a kill interrupted; runs that had written all lines are left out.

    What ``runs`` did after their end was undoing a late effect, which nobody had taken over.
    """
    steps = {plan.name: plan.steps for plan in plans}
    lines = {name: before_end(found, (runs or {}).get(name)) for name, found in by_load(entries).items()}
    touched: dict[int, set[str]] = defaultdict(set)
    for entry in entries:
        touched[entry.pid].add(entry.load)
    found = []
    for hit in kills:
        for name in touched[hit.pid]:
            before = bisect_right([line.at for line in lines[name]], hit.at)
            last = lines[name][before - 1] if before else None
            if last is None or last.pid != hit.pid or last.what not in IN_HAND:
                continue
            # One that was only cut off or paused may go on by itself, when it is heard again in time.
            after = next((line for line in lines[name][before:] if line.pid != hit.pid or line.what in BEGINS), None)
            if after is not None and after.pid != hit.pid:
                short = last.what != "begin" or steps[name][int(last.step)].seconds < SHORT
                found.append(Takeover(name, last.step, after.at - hit.at, short))
    return found


def percentiles(seconds: Iterable[float]) -> dict[str, float]:
    """Return the number of measurements, their median, 99th percentile and maximum, in seconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {"count": 0}
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    picked = {name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) for name, share in at.items()}
    return {"count": len(ordered), **picked}


def figures(
    plans: Sequence[Plan], entries: Sequence[Entry], kills: Sequence[Hit], runs: Mapping[str, RunFacts] | None = None
) -> Mapping[str, object]:
    """Return the times of takeovers, of all steps and of short ones."""
    found = takeovers(plans, entries, kills, runs)
    return {
        "takeover": percentiles(each.seconds for each in found),
        "takeover of short steps": percentiles(each.seconds for each in found if each.short),
    }
