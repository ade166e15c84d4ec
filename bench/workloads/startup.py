"""How long does the command line take to begin?"""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting


def contests(setting: Setting) -> list[Contest]:
    """``aft --help`` beside an interpreter that does nothing."""
    entrants = (
        setting.ours("aft --help", "bench.ours.startup"),
        setting.ours("limit: python -c pass", "bench.ours.startup", bare=True),
    )
    metric = Metric("start", "ms", more=False)
    return [Contest("startup", "start-up of the command line", (metric,), entrants, (Goal("start", 150.0),))]
