"""A dispatcher process of a crew: executes what is submitted until it is told to stop."""

from __future__ import annotations

import resource
import sys

from bench import jobs
from bench.ours import failing_flows
from bench.ours.harness import make_app


def main() -> None:
    """Run a dispatcher until a line is read, and answer with its cost; ``late``: begin only when all are told to."""
    job = jobs.given()
    if "notes" in job:
        failing_flows.note_attempts(job["notes"])
    with make_app(job) as app:
        app.check()
        if job.get("late"):
            jobs.wait_for_go()
        with app.dispatcher(concurrency=job.get("concurrency")):
            if not job.get("late"):
                jobs.wait_for_go()
            sys.stdin.readline()
            used = resource.getrusage(resource.RUSAGE_SELF)
            jobs.answer({"cpu": used.ru_utime + used.ru_stime})
            jobs.leave()


if __name__ == "__main__":
    main()
