"""Measures how long the command line takes to start."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of ``aft --help`` and an interpreter that does nothing."""
    entrants = (
        setting.ours("aft --help", "bench.ours.startup"),
        setting.ours("limit: python -c pass", "bench.ours.startup", bare=True),
    )
    metric = Metric("start", "ms", more=False)
    return [Contest("startup", "start-up of the command line", (metric,), entrants, (Goal("start", 150.0),))]
