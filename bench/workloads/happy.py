"""The happy path: flows of 1, 3 and 10 activities, in one thread and on all of the machine."""

from __future__ import annotations

from bench.contests import Contest, Entrant, Goal, Metric
from bench.setting import Setting

FLOWS = Metric("flows", "flows/s")
ACTIVITY = Metric("activity", "µs/activity", more=False)
#: Activities of a flow by which the cost of one is told: begin and end do not count for much.
MANY = 100
STATEMENTS, BATCHES = "limit: one statement each", "limit: 2 × batches of 32"
SUBMIT = "aft submit, 2 dispatchers × 32"


def contests(setting: Setting) -> list[Contest]:
    """Return contests for each length, alone and on all of the machine, and the cost of one activity."""
    lengths = setting.pick([3], [1, 3, 10])
    made = [contest for steps in lengths for contest in (_alone(setting, steps), _machine(setting, steps))]
    made.append(_activity(setting, owing=False))
    if not setting.quick:
        made.append(_activity(setting, owing=True))
    return made


def _alone(setting: Setting, steps: int) -> Contest:
    job = {"steps": steps, "threads": 1, "processes": 1, "seconds": setting.loop}
    entrants = (
        setting.ours("aft", "bench.ours.happy", way="start", **job),
        *setting.peer("DBOS", "dbos", **job),
        setting.ours(STATEMENTS, "bench.limits.statements", database="limits", **job),
    )
    goals = (Goal("flows", 6.5, "DBOS"), Goal("flows", 0.7, STATEMENTS)) if steps == 3 else ()
    return Contest("happy", f"happy path, {_activities(steps)}, 1 thread", (FLOWS,), entrants, goals)


def _machine(setting: Setting, steps: int) -> Contest:
    seconds, count = setting.loop, setting.pick(300, 1000)
    job = {"steps": steps, "processes": 2, "seconds": seconds, "count": count, "most": setting.most}
    entrants: list[Entrant] = [
        setting.ours(f"aft 2 × {threads}", "bench.ours.happy", way="start", threads=threads, **job)
        for threads in setting.pick([16], [4, 16, 32, 64])
    ]
    # By another name: what goes through queues is not what the threads are measured with.
    queued = {**job, "count": setting.pick(1000, 5000), "concurrency": 32}
    others = [
        *setting.peer("Celery, no results", "celery", results=False, **job),
        *setting.peer("Procrastinate", "procrastinate", **job),
    ]
    entrants += [
        setting.ours(SUBMIT, "bench.ours.happy", way="submit", **queued),
        *setting.peer("DBOS", "dbos", threads=4, **job),
        *setting.peer("Celery, results", "celery", **job),
        *setting.peer("Dramatiq", "dramatiq", **job),
        *([] if setting.quick else others),
        setting.ours(BATCHES, "bench.limits.statements", database="limits", batch=32, **job),
    ]
    rivals = ("DBOS", 20.0), ("Celery, results", 10.0), ("Dramatiq", 4.5), (BATCHES, 0.35)
    goals = (*(Goal("flows", times, rival) for rival, times in rivals), Goal("flows", 2, "Dramatiq", ours=SUBMIT))
    title = f"happy path, {_activities(steps)}, all of the machine"
    return Contest("happy", title, (FLOWS,), tuple(entrants), goals if steps == 3 else ())


def _activity(setting: Setting, *, owing: bool) -> Contest:
    job = {"steps": MANY, "threads": 1, "processes": 1, "seconds": setting.loop, "owing": owing}
    limit = "limit: one prepared statement"
    entrants = (
        setting.ours("aft", "bench.ours.happy", way="start", **job),
        setting.ours(limit, "bench.limits.statements", database="limits", **job),
    )
    title = f"one durable activity{' with a frame' if owing else ''}, 1 thread"
    return Contest("happy", title, (ACTIVITY,), entrants, (Goal("activity", 0.5, limit),))


def _activities(count: int) -> str:
    return "1 activity" if count == 1 else f"{count} activities"
