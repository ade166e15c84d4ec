"""Measures an activity at growing lengths of its journal, a replayed row, and full tables."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

#: Finished runs that lie in full tables.
FULL = 1_000_000


def contests(setting: Setting) -> list[Contest]:
    """Return a contest on empty tables, and one on full ones."""
    lengths: list[int] = setting.pick([10, 100, 1000], [10, 100, 1000, 10_000])
    metrics = (
        *(Metric(f"at {length}", f"µs/activity at journal length {length:,}", more=False) for length in lengths),
        Metric("growth", "× from the shortest to the longest", more=False),
        Metric("replay", "µs/row replayed", more=False),
    )
    goals = (Goal("growth", 1.1),)
    entrants = (setting.ours("aft", "bench.ours.growth", lengths=lengths),)
    made = [Contest("growth", "cost growth with the journal", metrics, entrants, goals, setting.pick(1, None))]
    if not setting.quick:
        entrants = (setting.ours("aft", "bench.ours.growth", database="full", lengths=lengths, finished=FULL),)
        made.append(Contest("growth", "the same with 1,000,000 finished runs", metrics, entrants, goals))
        made.append(_happy(setting))
    return made


def _happy(setting: Setting) -> Contest:
    job = {"steps": 3, "threads": 1, "processes": 1, "seconds": setting.loop, "way": "start"}
    entrants = (
        setting.ours("aft, full tables", "bench.ours.happy", database="full", finished=FULL, **job),
        setting.ours("empty tables", "bench.ours.happy", **job),
    )
    title = "happy path, 3 activities, 1 thread, 1,000,000 finished runs"
    return Contest("growth", title, (Metric("flows", "flows/s"),), entrants)
