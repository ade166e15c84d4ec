"""Five activities, of which the last fails for good and the four before it are undone: sagas a second."""

from __future__ import annotations

from bench.contests import Contest, Goal, Metric
from bench.setting import Setting

SAGAS = Metric("flows", "sagas/s")


def contests(setting: Setting) -> list[Contest]:
    """Return a contest on all of the machine, beside a saga written by hand and one of error callbacks."""
    count = setting.pick(200, 600)
    job = {"kind": "saga", "count": count, "processes": 2, "threads": 4, "seconds": setting.loop}
    job["most"] = setting.most
    ours = {"flow": "saga", "status": "compensated", "faults": 1, "processes": 2}
    ours["count"] = setting.pick(400, 2000)
    # All of them: none ends before all have failed.
    ours["most"] = 60.0
    entrants = (
        *(
            setting.ours(f"aft, 2 dispatchers × {slots}", "bench.ours.drain", concurrency=slots, **ours)
            for slots in setting.pick([64], [32, 64])
        ),
        *setting.peer("DBOS, by hand", "dbos", **job),
        *([] if setting.quick else setting.peer("Celery, link_error", "celery", **job)),
    )
    goals = (Goal("flows", 7, "DBOS, by hand"),)
    return [Contest("saga", "saga of 5 activities, 4 undone", (SAGAS,), entrants, goals)]
