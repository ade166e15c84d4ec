"""aft when a worker is killed: seconds until another process goes on with its run."""

from __future__ import annotations

import time

import aft
from bench import jobs
from bench.ours.running import clean, make_app
from bench.takeovers import Notes, time_takeover


@aft.activity(levels=["1ms"])
def last_long(notes: str) -> int:
    """Last long for the first one that begins it."""
    Notes(notes).begin()
    return 1


@aft.flow
def lasting(notes: str) -> int:
    """One activity that lasts."""
    return last_long(notes)


def main() -> None:
    """Two dispatchers, a run, and a kill."""
    job = jobs.given()
    if job.get("crew"):
        with make_app(job) as app, app.dispatcher(concurrency=1):
            jobs.wait_for_go()
            jobs.wait_for_go()
    with make_app(job) as app:
        clean(job, app)
        crew = jobs.Crew("bench.ours.takeover", [{**job, "crew": True}] * 2)
        crew.wait_until_ready()
        crew.tell("GO")
        app.submit(lasting, job["file"])
        if job.get("long"):
            # Past the time for which its delivery is held: then only the lease and the sign tell.
            Notes(job["file"]).wait_for(1)
            time.sleep(job["long"])
        jobs.answer({"takeover": 1000 * time_takeover(Notes(job["file"]), parent_too=False)})
    jobs.leave()


if __name__ == "__main__":
    main()
