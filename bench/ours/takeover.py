"""aft when a worker is killed: seconds until another process continues its run."""

from __future__ import annotations

import time

import aft
from bench import jobs
from bench.ours.harness import clean, make_app
from bench.takeovers import Notes, time_takeover


@aft.activity(levels=["1ms"])
def last_long(notes: str) -> int:
    """Note the beginning; the first process to do so does not return for a long time."""
    Notes(notes).begin()
    return 1


@aft.flow
def lasting(notes: str) -> int:
    """Call one long activity."""
    return last_long(notes)


def main() -> None:
    """Start two dispatchers and a run, kill its worker, and measure the takeover."""
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
