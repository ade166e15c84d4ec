"""Analyses the ledger lines of a run: repeated executions, kills during attempts, times without progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from chaos.facts import Facts, RunFacts
from chaos.ledger import Entry
from chaos.load import LADDER, Plan, StepPlan

#: Seconds for which a process that is being killed may still write: its death is noted before the signal is sent.
DYING = 0.05
#: What begins, and how that may end.
ENDINGS = {"begin": ("done", "raised"), "undoing": ("undone", "undo_raised")}
#: One attempt at a step of a run, or at its undo: the run's name, the step, what begins, and the attempt's number.
Attempt = tuple[str, str, str, int]


def by_load(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Group the lines by run."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.load].append(entry)
    return found


def executions(lines: Iterable[Entry]) -> dict[Attempt, list[int]]:
    """Return the positions of the lines with which each attempt began; several if it was repeated."""
    found: dict[Attempt, list[int]] = defaultdict(list)
    for place, line in enumerate(lines):
        if line.what in ENDINGS:
            found[line.load, line.step, line.what, line.attempt].append(place)
    return found


def killed_in(lines: Sequence[Entry], place: int, deaths: Mapping[int, float]) -> bool:
    """Whether the process that began an attempt was killed during it, or before it could report its end.

    If it began something else itself, it was past that; if somebody else had a word before its death, it was overtaken.
    """
    begun = lines[place]
    death = deaths.get(begun.pid)
    if death is None or death < begun.at - DYING:
        return False
    for line in lines[place + 1 :]:
        if line.pid != begun.pid:
            return line.at >= death
        if line.step != begun.step or line.what not in ENDINGS[begun.what]:
            return False
    return True


def longest_still(plan: Plan, lines: Sequence[Entry], deaths: Mapping[int, float], run: RunFacts | None) -> float:
    """Return the longest time, in seconds, in which a run made no progress though it should have.

    Between two of its lines; and from being submitted to the first, and from the last to its end, if that is known.
    What comes after its end is a late effect, and its undo: they come when whoever had it is heard again.
    """
    lines = before_end(lines, run)
    gaps = [_still(plan, *pair, deaths) for pair in pairwise(lines)]
    if lines and run is not None and run.made is not None:
        gaps.append(lines[0].at - run.made)
    if lines and run is not None and run.ended is not None:
        gaps.append(run.ended - lines[-1].at)
    return max([0.0, *gaps])


def before_end(lines: Sequence[Entry], run: RunFacts | None) -> Sequence[Entry]:
    """Return the lines that a run had when it ended; all, if it has not."""
    end = None if run is None else run.ended
    return lines if end is None else [line for line in lines if line.at <= end]


def _still(plan: Plan, before: Entry, after: Entry, deaths: Mapping[int, float]) -> float:
    wait = _planned(plan.steps[int(before.step)], before)
    death = deaths.get(before.pid)
    if death is None or not before.at < death < after.at or before.what in ("raised", "undo_raised"):
        return after.at - before.at - wait
    # It was in its worker's hands until that was killed.
    return max(death - before.at - wait, after.at - death)


def _planned(step: StepPlan, line: Entry) -> float:
    """Return the seconds that pass after a line by plan: the step's duration, or the wait of its level."""
    if line.what == "begin" and line.attempt > step.failures:
        return step.seconds
    failures = {"raised": step.failures, "undo_raised": step.undo_failures}.get(line.what, 0)
    return LADDER[line.attempt - 1] if line.attempt <= min(failures, len(LADDER)) else 0.0


def figures(
    plans: Iterable[Plan], entries: Sequence[Entry], facts: Facts, deaths: Mapping[int, float]
) -> Mapping[str, Any]:
    """Return how much was executed more than once, and the longest time without progress."""
    attempts = executions(entries)
    again = sum(len(places) > 1 for places in attempts.values())
    lines = by_load(entries)
    runs = ((plan, facts.runs.get(plan.name)) for plan in plans)
    longest = max((longest_still(plan, lines[plan.name], deaths, run) for plan, run in runs), default=0.0)
    share = round(100 * again / len(attempts), 4) if attempts else 0.0
    return {
        "attempts executed more than once": {"count": again, "of": len(attempts), "share in %": share},
        "longest that a run lay still": round(longest, 2),
    }
