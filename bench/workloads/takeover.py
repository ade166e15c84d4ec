"""Measures how long another process takes to begin the work of a killed worker again."""

from __future__ import annotations

from bench.contests import Contest, Metric
from bench.setting import Setting

TAKEOVER = Metric("takeover", "ms", more=False)
#: Seconds of work after which aft holds no delivery any more.
LONG = 8.0


def contests(setting: Setting) -> list[Contest]:
    """Return contests of a kill soon after the beginning, and for aft also later."""
    entrants = (
        setting.ours("aft, after 1 s of work", "bench.ours.takeover"),
        *([] if setting.quick else setting.peer("Celery", "celery", kind="takeover")),
        *setting.peer("Dramatiq", "dramatiq", kind="takeover"),
        *([] if setting.quick else setting.peer("DBOS, started again at once", "dbos", kind="takeover")),
        *([] if setting.quick else setting.peer("Procrastinate", "procrastinate", kind="takeover")),
    )
    made = [Contest("takeover", "takeover after SIGKILL", (TAKEOVER,), entrants, most_rounds=setting.pick(1, None))]
    if not setting.quick:
        later = (setting.ours("aft", "bench.ours.takeover", long=LONG),)
        made.append(Contest("takeover", "takeover after SIGKILL, in long work", (TAKEOVER,), later))
    return made
