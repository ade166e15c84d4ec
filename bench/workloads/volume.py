"""Measures how much PostgreSQL writes for one flow: its log is what disks and standbys have to keep up with."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

LOG = Metric("log", "KB/flow", more=False)


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of flows of three activities."""
    job = {"steps": 3, "count": setting.pick(300, 2000)}
    entrants = (
        setting.ours("aft, by start", "bench.ours.volume", way="start", **job),
        setting.ours("aft, by submit", "bench.ours.volume", way="submit", **job),
    )
    return [Contest("volume", "log of PostgreSQL, 3 activities", (LOG,), entrants, (Goal("log", 2.5),), most_rounds=1)]
