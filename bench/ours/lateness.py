"""Measures how late retries begin at half of the maximum rate, which a drained backlog shows first.

An attempt notes when it begins; its fault's row has when it was due. Both are clocks of one machine.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psycopg

import aft
from bench import jobs
from bench.ours.drain import drain
from bench.ours.harness import NAMESPACE, Counting, clean, flow_named, make_app

_DUE = "SELECT run_id, attempt, extract(epoch FROM due_at) FROM aft_faults WHERE namespace = %s"


def measure(app: aft.Aft, job: dict[str, Any]) -> dict[str, float]:
    """Submit runs at a steady rate, and compare when each attempt began with when it was due."""
    most = drain(app, {**job, "flow": "failing_1ms"})["faults"] / job["faults"]
    clean(job, app)
    notes = job["file"] + ".begun"
    crew = jobs.Crew("bench.ours.dispatcher", [{**job, "notes": notes}] * job["processes"])
    crew.wait_until_ready()
    crew.tell("GO")
    count = _come_in(app, job, most / 2)
    Counting(job["database"]).wait_for(count)
    crew.end()
    late = _lateness(job, Path(notes))
    cuts = statistics.quantiles(late, n=100, method="inclusive")
    return {"p50": 1000 * cuts[49], "p99": 1000 * cuts[98], "most": 1000 * max(late), "rate": job["faults"] * most / 2}


def _come_in(app: aft.Aft, job: dict[str, Any], rate: float) -> int:
    flow = flow_named(job["flow"])
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < job["seconds"]:
        if now * rate < count:
            time.sleep(count / rate - now)
        app.submit(flow)
        count += 1
    return count


def _lateness(job: dict[str, Any], notes: Path) -> list[float]:
    began = {}
    for line in notes.read_text().splitlines():
        run, attempt, at = line.split()
        began[run, int(attempt)] = float(at)
    with psycopg.connect(job["database"]) as connection:
        due = connection.execute(_DUE, (NAMESPACE,)).fetchall()
    return [began[run, attempt + 1] - float(at) for run, attempt, at in due]


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    with make_app(job) as app:
        clean(job, app)
        jobs.answer(measure(app, job))


if __name__ == "__main__":
    main()
