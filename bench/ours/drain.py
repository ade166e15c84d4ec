"""aft draining a backlog: all runs are submitted first, then all dispatcher processes begin at once.

Rates are by the rows, with the database's own clock: from the first attempt to the last end, or to what there is after
``most`` seconds.
"""

from __future__ import annotations

from typing import Any

import psycopg

import aft
from bench import jobs
from bench.ours.harness import NAMESPACE, Counting, clean, flow_named, make_app

_SPENT = """
SELECT extract(epoch FROM CASE WHEN count(*) = count(ended_at) THEN max(ended_at) ELSE statement_timestamp() END
                          - min(started_at)),
       count(ended_at), (SELECT count(*) FROM aft_faults WHERE namespace = %(namespace)s)
FROM aft_runs WHERE namespace = %(namespace)s
"""


def drain(app: aft.Aft, job: dict[str, Any]) -> dict[str, float]:
    """Drain a backlog, and return the flows and faults per second."""
    crew = jobs.Crew("bench.ours.dispatcher", [{**job, "late": True}] * job["processes"])
    crew.wait_until_ready()
    flow, arguments = flow_named(job["flow"]), job.get("arguments", [])
    # Their messages are sent as they come; otherwise the first thing that is measured would be the relay.
    with app.dispatcher(concurrency=1, only=["relay"]):
        for _ in range(job["count"]):
            app.submit(flow, *arguments)
    crew.tell("GO")
    ended = Counting(job["database"], job.get("status", "completed")).wait_until(job["count"], job["most"])
    found = rates(job, whole=ended == job["count"])
    crew.end()
    return found


def rates(job: dict[str, Any], *, whole: bool) -> dict[str, float]:
    """Return the rates by the rows; raises JobFailed if all have ended with another number of faults."""
    with psycopg.connect(job["database"]) as connection:
        row = connection.execute(_SPENT, {"namespace": NAMESPACE}).fetchone()
    spent, runs, faults = row or (0.0, 0, 0)
    if whole and faults != job["faults"] * job["count"]:
        raise jobs.JobFailed(f"{faults} faults of {job['count']} runs that fail {job['faults']} times each")
    return {"flows": float(runs) / float(spent), "faults": float(faults) / float(spent)}


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    with make_app(job) as app:
        clean(job, app)
        jobs.answer(drain(app, job))


if __name__ == "__main__":
    main()
