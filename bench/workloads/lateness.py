"""Measures how late retries begin at half of the maximum rate."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

METRICS = (
    Metric("p50", "ms late, median", more=False),
    Metric("p99", "ms late, p99", more=False),
    Metric("rate", "faults/s came in"),
)


def contests(setting: Setting) -> list[Contest]:
    """Return a contest for each wait, at half of the maximum rate that the same process has measured."""
    waits = setting.pick(["1s"], ["1ms", "1s"])
    return [_contest(setting, wait) for wait in waits]


def _contest(setting: Setting, wait: str) -> Contest:
    count, seconds = setting.pick(500, 3000), setting.pick(3.0, 8.0)
    job = {"flow": f"failing_{wait}", "faults": 2, "count": count, "processes": 2, "seconds": seconds}
    job["concurrency"] = 32
    job["most"] = setting.most
    entrants = (setting.ours("aft, 2 dispatchers × 32", "bench.ours.lateness", **job),)
    title = f"lateness of retries at half of the most, wait {wait}"
    return Contest("lateness", title, METRICS, entrants, (Goal("p99", 40.0),))
