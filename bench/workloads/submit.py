"""Measures how fast runs are accepted: one producer, without a dispatcher."""

from __future__ import annotations

from bench.contests import Contest, Metric
from bench.setting import Setting

SUBMITS = Metric("submits", "submits/s")


def contests(setting: Setting) -> list[Contest]:
    """Return the contest of one thread, and of sixteen for aft."""
    job = {"kind": "submit", "steps": 1, "seconds": setting.loop}
    others = [
        setting.ours("aft, 16 threads", "bench.ours.submit", threads=16, **job),
        *setting.peer("Celery, confirms", "celery", **job),
        *setting.peer("Procrastinate", "procrastinate", **job),
    ]
    entrants = (
        setting.ours("aft, 1 thread", "bench.ours.submit", threads=1, **job),
        *setting.peer("Dramatiq, confirms", "dramatiq", **job),
        *([] if setting.quick else others),
        setting.ours(
            "limit: run and outbox, one statement", "bench.limits.statements", database="limits", way="submit", **job
        ),
    )
    return [Contest("submit", "submit", (SUBMITS,), entrants)]
