"""Procrastinate: a queue in PostgreSQL, two worker processes of concurrency 10, its own retries.

It has no chains: each task defers the next one of its flow.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy, SyncPsycopgConnector

from bench import jobs
from bench.peers.queues import FAILURES, READY, Tallies, measure
from bench.takeovers import Notes, time_takeover

job = jobs.given()
tallies = Tallies(job)
app = App(connector=PsycopgConnector(conninfo=job["database"]))
#: A queue for each round: what a stopped round has left must not meet the next one.
QUEUE = f"procrastinate-{job['file'].rpartition('/')[2]}"
#: Seconds between two looks for what is due; its own default of 5 would make every retry late.
LOOK = 0.1
#: Seconds after which a dead worker's job is certainly begun again: it counts as dead after 30, cron looks each 60.
PATIENCE = 150.0


@app.task(name="step", queue=QUEUE)
async def step(left: int) -> None:
    """Return at once, and defer the next step."""
    if left > 1:
        await step.defer_async(left=left - 1)
    tallies.ended.add()


@app.task(
    name="failing",
    queue=QUEUE,
    pass_context=True,
    retry=RetryStrategy(max_attempts=FAILURES + 1, wait=round(job.get("wait", 0))),
)
async def failing(context: JobContext) -> None:
    """Fail twice."""
    tallies.fail_twice(context.job.attempts, context.job.id)


@app.task(name="lasting", queue=QUEUE)
async def lasting() -> None:
    """Note the beginning; the first process to do so does not return for a long time."""
    Notes(job["file"] + ".notes").begin()


@app.periodic(cron="* * * * *")
@app.task(name="retry_stalled", queue=QUEUE, queueing_lock="retry_stalled")
async def retry_stalled(timestamp: int) -> None:
    """Begin the jobs of dead workers again, as the documentation says; each minute, the most often that cron can."""
    for stalled in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(stalled)


async def work() -> None:
    """Run a worker."""
    async with app.open_async():
        await app.run_worker_async(queues=[QUEUE], concurrency=10, fetch_job_polling_interval=LOOK)


def start() -> None:
    """Start two workers."""
    for _ in range(2):
        jobs.start(job, "bench.peers.on_procrastinate", "work")


def main() -> None:
    """Send flows and wait until the workers have finished them."""
    with app.replace_connector(SyncPsycopgConnector(conninfo=job["database"])) as sending, sending.open():
        if not sending.check_connection():
            sending.schema_manager.apply_schema()
        if job.get("kind") == "takeover":
            start()
            time.sleep(READY)
            sending.tasks["lasting"].defer()
            notes = Notes(job["file"] + ".notes")
            jobs.answer({"takeover": 1000 * time_takeover(notes, parent_too=False, patience=PATIENCE)})
            jobs.leave()
        happy, failing_ = sending.tasks["step"], sending.tasks["failing"]
        sends = {"happy": partial(happy.defer, left=job.get("steps", 1)), "faults": failing_.defer}
        measure(job, tallies, start, sends)


if __name__ == "__main__":
    asyncio.run(work()) if sys.argv[-1] == "work" else main()
