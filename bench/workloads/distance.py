"""Measures how much of the throughput is left when the database is not on this machine."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

FLOWS = Metric("flows", "flows/s")
#: Seconds that an answer of the distant database takes longer.
AWAY = 0.001
NEAR, FAR = "aft 2 × 32, database here", "aft 2 × 32, database 1 ms away"


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of the same work on a database here, and behind a line that delays."""
    job = {"way": "start", "steps": 3, "threads": 32, "processes": 2, "seconds": setting.loop}
    entrants = (setting.ours(NEAR, "bench.ours.happy", **job), setting.ours(FAR, "bench.ours.happy", away=AWAY, **job))
    return [Contest("distance", "distance of the database", (FLOWS,), entrants, (Goal("flows", 0.6, NEAR, ours=FAR),))]
