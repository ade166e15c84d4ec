"""Measures the bytes that PostgreSQL logs for a flow.

After a checkpoint the first change of each page is logged with the whole page; so the tables are warmed first.
"""

from __future__ import annotations

from typing import Any

import psycopg

import aft
from bench import jobs
from bench.ours import flows
from bench.ours.harness import Counting, clean, make_app

_LOGGED = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"


def logged(connection: psycopg.Connection[Any]) -> float:
    """Return the bytes that the server has logged so far."""
    (found,) = connection.execute(_LOGGED).fetchone() or (0,)
    return float(found)


def play(app: aft.Aft, job: dict[str, Any], count: int, counting: Counting) -> None:
    """Execute this many flows."""
    if job["way"] == "start":
        for _ in range(count):
            app.start(flows.happy, job["steps"])
        return
    before = counting.count()
    with app.dispatcher(concurrency=16):
        for _ in range(count):
            app.submit(flows.happy, job["steps"])
        counting.wait_for(before + count)


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    with make_app(job) as app, psycopg.connect(job["database"], autocommit=True) as connection:
        clean(job, app)
        connection.execute("CHECKPOINT")
        counting = Counting(job["database"])
        play(app, job, job["count"], counting)
        before = logged(connection)
        play(app, job, job["count"], counting)
        jobs.answer({"log": (logged(connection) - before) / job["count"] / 1000})
        jobs.leave()


if __name__ == "__main__":
    main()
