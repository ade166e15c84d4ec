"""Measures what a dispatcher costs that has nothing to do."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

PROCESSOR = Metric("processor", "% of one", more=False)


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of both set-ups; the database's share is shown, and not in the goal."""
    entrants = (
        setting.ours("aft on PostgreSQL and RabbitMQ", "bench.ours.idle"),
        setting.ours("aft on SQLite", "bench.ours.idle", setup="sqlite"),
        setting.ours("its sessions at PostgreSQL", "bench.ours.idle", of="database"),
    )
    goal = Goal("processor", 1.0, each=True)
    return [Contest("idle", "a dispatcher with nothing to do", (PROCESSOR,), entrants, (goal,))]
