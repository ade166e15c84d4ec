"""Measures how soon runs start, and come back from a fault, if not every dispatcher has their flow.

Dispatchers of one crew, each a process with flows of its own, and runs that come in evenly. A run is one activity that
fails once, so that it is woken twice: by its submission, and by its level's queue.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import psycopg

import aft
from aft.flows.declare.registry import Registry
from bench import jobs
from bench.ours.harness import NAMESPACE, Counting, clean, make_app

#: From when a run was made to its first attempt, and from when its second one was due to its end.
_TIMES = """
SELECT extract(epoch FROM r.started_at - r.created_at), extract(epoch FROM r.ended_at - f.due_at)
FROM aft_runs AS r JOIN aft_faults AS f ON f.run_id = r.id WHERE r.namespace = %s
"""


class Busy(Exception):
    """A recoverable failure."""


@aft.activity(levels=["10ms"], recoverable=(Busy,))
def fail_once() -> int:
    """Fail at the first attempt."""
    if aft.current().attempt == 1:
        raise Busy
    return 1


def flow(name: str, version: int) -> aft.Flow[[], int]:
    """Make a flow of this name, with one activity."""

    def run() -> int:
        return fail_once()

    return aft.Flow(run, name=name, version=version)


def registry(flows: Iterable[tuple[str, int]]) -> Registry:
    """Make the registry of one process."""
    made = Registry()
    made.add_activity(fail_once)
    for name, version in flows:
        made.add_flow(flow(name, version))
    return made


def measure(app: aft.Aft, job: dict[str, Any]) -> dict[str, float]:
    """Submit runs of the job's flows at a steady rate, one flow after the other, and measure their starts."""
    crew = jobs.Crew("bench.ours.fleets", [{**job, "has": has} for has in job["fleet"]])
    crew.wait_until_ready()
    crew.tell("GO")
    flows = [flow(name, version) for name, version in job["runs"]]
    began = time.perf_counter()
    for number in range(job["count"]):
        time.sleep(max(0.0, began + number / job["rate"] - time.perf_counter()))
        app.submit(flows[number % len(flows)])
    Counting(job["database"]).wait_for(job["count"])
    crew.end()
    with psycopg.connect(job["database"]) as connection:
        times = connection.execute(_TIMES, (NAMESPACE,)).fetchall()
    starts, backs = (sorted(1000 * float(one[place]) for one in times) for place in (0, 1))
    return {
        "start p50": statistics.median(starts),
        "start p95": _p95(starts),
        "back p95": _p95(backs),
        "most": starts[-1],
    }


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[18]


def main() -> None:
    """Run the job of this program, or one of its dispatchers."""
    job = jobs.given()
    with make_app(job) as app:
        if (has := job.get("has")) is not None:
            app.registry = registry(has)
            with app.dispatcher(concurrency=8):
                jobs.wait_for_go()
                jobs.wait_for_go()
        clean(job, app)
        jobs.answer(measure(app, job))
    jobs.leave()


if __name__ == "__main__":
    main()
