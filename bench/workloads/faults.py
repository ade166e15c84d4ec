"""The fault path: every run fails twice, then succeeds; faults per second, with two lengths of waits."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

FAULTS = Metric("faults", "faults/s")
LIMIT = "limit: the same hops, batches of 200"


def contests(setting: Setting) -> list[Contest]:
    """Return a contest for the shortest wait, and one for a second."""
    return [_contest(setting, wait) for wait in setting.pick(["1ms"], ["1ms", "1s"])]


def _contest(setting: Setting, wait: str) -> Contest:
    seconds = {"1ms": 0, "1s": 1}[wait]
    count = setting.pick(300, 1000)
    job = {"kind": "faults", "wait": seconds, "count": count, "processes": 2, "threads": 4, "most": setting.most}
    ours = {
        "flow": f"failing_{wait}",
        "faults": 2,
        "count": setting.pick(1000, 5000),
        "processes": 2,
        "most": setting.most,
    }
    entrants = [
        *(
            setting.ours(f"aft, 2 dispatchers × {slots}", "bench.ours.drain", concurrency=slots, **ours)
            for slots in setting.pick([64], [32, 64])
        ),
        *setting.peer("DBOS", "dbos", seconds=setting.loop, **job),
        *setting.peer("Celery, results", "celery", **job),
        *setting.peer("Dramatiq", "dramatiq", **job),
        *([] if setting.quick else setting.peer("Procrastinate", "procrastinate", **job)),
    ]
    goals: tuple[Goal, ...] = ()
    if wait == "1ms":
        entrants.append(setting.ours(LIMIT, "bench.limits.hops", database="limits", count=setting.pick(3000, 10_000)))
        rivals = ("DBOS", 2.5), ("Celery, results", 9.0), ("Dramatiq", 2.0), (LIMIT, 0.6)
        goals = tuple(Goal("faults", times, rival) for rival, times in rivals)
    title = f"fault path, two failures each, wait {wait}"
    return Contest("faults", title, (FAULTS,), tuple(entrants), goals)
