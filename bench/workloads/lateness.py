"""Measures how late retries begin: at half of the maximum rate, and beside peers at a low one."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

METRICS = (
    Metric("p50", "ms late, median", more=False),
    Metric("p99", "ms late, p99", more=False),
    Metric("rate", "faults/s came in"),
)

#: Faults that come in each second, where all have the same rate; each flow fails so often.
RATE, FAILURES = 50, 2
DUE = "aft, from when it was due"


def contests(setting: Setting) -> list[Contest]:
    """Return a contest for each wait, at half of the maximum rate that the same process has measured."""
    waits = setting.pick(["1s"], ["1ms", "1s"])
    made = [_contest(setting, wait) for wait in waits]
    return made if setting.quick else [*made, _at_a_low_rate(setting)]


def _at_a_low_rate(setting: Setting) -> Contest:
    """Make a contest beside peers at the same rate; none of them says when a try was due."""
    job = {"kind": "lateness", "wait": 1, "rate": RATE / FAILURES, "seconds": 10.0}
    ours = {"flow": "failing_1s", "faults": FAILURES, "processes": 2, "concurrency": 32}
    entrants = (
        setting.ours(DUE, "bench.ours.lateness", **job, **ours),
        setting.ours("aft, from the failure", "bench.ours.lateness", **job, **ours, since="failure"),
        *setting.peer("DBOS, from the failure", "dbos", **job),
        *setting.peer("Celery, from the failure", "celery", **job),
        *setting.peer("Dramatiq, from the failure", "dramatiq", **job),
        *setting.peer("Procrastinate, from the failure", "procrastinate", **job),
    )
    title = f"lateness of retries at {RATE} faults a second, wait 1s"
    goals = (Goal("p99", 15.0),)
    return Contest("lateness", title, METRICS[:2], entrants, goals, most_rounds=1)


def _contest(setting: Setting, wait: str) -> Contest:
    count, seconds = setting.pick(500, 3000), setting.pick(3.0, 8.0)
    job = {"flow": f"failing_{wait}", "faults": 2, "count": count, "processes": 2, "seconds": seconds}
    job["concurrency"] = 32
    job["most"] = setting.most
    entrants = (setting.ours("aft, 2 dispatchers × 32", "bench.ours.lateness", **job),)
    title = f"lateness of retries at half of the most, wait {wait}"
    return Contest("lateness", title, METRICS, entrants, (Goal("p99", 40.0),))
