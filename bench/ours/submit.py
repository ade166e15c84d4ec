"""aft accepting runs: submits per second, without a dispatcher to execute them."""

from __future__ import annotations

from bench import jobs
from bench.ours import flows
from bench.ours.harness import clean, make_app


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    with make_app(job) as app:
        clean(job, app)
        for _ in range(20):
            app.submit(flows.happy, 1)
        rate = jobs.in_threads(job["threads"], job["seconds"], lambda number: app.submit(flows.happy, 1))
        jobs.answer({"submits": rate})


if __name__ == "__main__":
    main()
