"""Measures the share of a processor that an idle dispatcher uses, or its sessions at PostgreSQL."""

from __future__ import annotations

import aft
from bench import jobs
from bench.ours.cost import NAMESPACE, Watch, measure


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    database, broker = job["database"], job["broker"]
    if job.get("setup") == "sqlite":
        database, broker = f"sqlite:///{job['file']}", ""
    with aft.Aft(database=database, broker=broker or None, namespace=NAMESPACE) as app:
        app.check()
        found = measure(app, Watch(database), "idle")
        jobs.answer({"processor": found[job.get("of", "python")] / 10_000})
        jobs.leave()


if __name__ == "__main__":
    main()
