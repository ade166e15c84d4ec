"""aft on the happy path: flows a second by ``app.start``, in threads and processes, or by submit and dispatchers."""

from __future__ import annotations

import time
from typing import Any

import aft
from bench import jobs
from bench.delay import delayed
from bench.ours import flows
from bench.ours.harness import Counting, clean, make_app

#: Runs that warm an application up.
WARM = 20


def started(app: aft.Aft, job: dict[str, Any]) -> float:
    """Return the flows per second by ``app.start`` in this process."""
    flow = flows.owing if job.get("owing") else flows.happy
    return jobs.in_threads(job["threads"], job["seconds"], lambda number: app.start(flow, job["steps"]))


def warm(app: aft.Aft, job: dict[str, Any]) -> None:
    """Fill pools and caches."""
    flow = flows.owing if job.get("owing") else flows.happy
    for _ in range(max(2, WARM // job["steps"])):
        app.start(flow, job["steps"])


def as_one_of_crew(job: dict[str, Any]) -> None:
    """Run the job as one process of a crew."""
    with make_app(job) as app:
        warm(app, job)
        jobs.wait_for_go()
        jobs.answer({"flows": started(app, job)})


def by_processes(job: dict[str, Any]) -> float:
    """Return the flows per second by ``app.start`` in several processes."""
    crew = jobs.Crew("bench.ours.happy", [{**job, "crew": True}] * job["processes"])
    crew.wait_until_ready()
    return sum(answer["flows"] for answer in crew.go())


def submitted(app: aft.Aft, job: dict[str, Any]) -> float:
    """Return the flows per second from the first submit to the last end, with dispatcher processes."""
    crew = jobs.Crew("bench.ours.dispatcher", [job] * job["processes"])
    crew.wait_until_ready()
    crew.tell("GO")
    counting = Counting(job["database"])
    _submit(app, job, WARM)
    counting.wait_for(WARM)
    began = time.perf_counter()
    _submit(app, job, job["count"])
    ended = counting.wait_until(WARM + job["count"], began + job["most"] - time.perf_counter()) - WARM
    spent = time.perf_counter() - began
    crew.end()
    return ended / spent


def _submit(app: aft.Aft, job: dict[str, Any], count: int) -> None:
    for _ in range(count):
        app.submit(flows.happy, job["steps"])


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    if job.get("crew"):
        as_one_of_crew(job)
        return
    with make_app(job) as app:
        clean(job, app)
        if job["way"] == "submit":
            rate = submitted(app, job)
        elif job.get("away"):
            with delayed(job["database"], job["away"]) as database:
                rate = by_processes({**job, "database": database})
        elif job["processes"] > 1:
            rate = by_processes(job)
        else:
            warm(app, job)
            rate = started(app, job)
    jobs.answer({"flows": rate, "activity": 1e6 / rate / job["steps"]})


if __name__ == "__main__":
    main()
