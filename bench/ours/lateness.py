"""Measures how late retries begin at a given rate, or at half of the maximum, which a drained backlog shows first.

An attempt notes when it begins; its fault's row has when it was due. Both are clocks of one machine. ``since``
``failure``: against the failure before and the wait, as peers are measured, who write down no time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg

import aft
from bench import jobs
from bench.lateness import Attempts, come_in, summarize
from bench.ours.drain import drain
from bench.ours.harness import NAMESPACE, Counting, clean, flow_named, make_app

_DUE = "SELECT run_id, attempt, extract(epoch FROM due_at) FROM aft_faults WHERE namespace = %s"


def measure(app: aft.Aft, job: dict[str, Any]) -> dict[str, float]:
    """Submit runs at a steady rate, and compare when each attempt began with when it was due."""
    rate = job.get("rate")
    if rate is None:
        rate = drain(app, {**job, "flow": "failing_1ms"})["faults"] / job["faults"] / 2
        clean(job, app)
    notes = job["file"] + ".begun"
    attempts = Attempts(notes)
    crew = jobs.Crew("bench.ours.dispatcher", [{**job, "notes": notes}] * job["processes"])
    crew.wait_until_ready()
    crew.tell("GO")
    count = come_in(partial(app.submit, flow_named(job["flow"])), rate, job["seconds"])
    Counting(job["database"]).wait_for(count)
    crew.end()
    late = _lateness(job, attempts)
    return {**summarize(late), "rate": job["faults"] * rate}


def _lateness(job: dict[str, Any], attempts: Attempts) -> list[float]:
    if job.get("since") == "failure":
        return attempts.lateness(job["wait"], 0.0)
    began = attempts.begun()
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
