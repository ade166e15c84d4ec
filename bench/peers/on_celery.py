"""Celery on RabbitMQ: late acks, rejection on a lost worker, prefetch 1, confirmed publishes, quorum queues.

``results``: kept in PostgreSQL, without which nobody learns what became of a flow; else none. The worker is a process
of its own with two prefork children; a flow is a chain; a retry is Celery's own.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery, Task, chain
from kombu import Queue

from bench import jobs
from bench.peers.queues import FAILURES, Tallies, measure
from bench.takeovers import Notes


def make_app(job: dict[str, Any]) -> Celery:
    """Make the application as the documentation recommends for tasks that must not be lost."""
    app = Celery("bench", broker=job["broker"])
    results = job.get("results", True)
    # A queue for each round: what a stopped round has left must not meet the next one.
    queue = f"celery-{job['file'].rpartition('/')[2]}"
    app.conf.update(
        result_backend=job["database"].replace("postgresql://", "db+postgresql+psycopg://") if results else None,
        task_ignore_result=not results,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_detect_quorum_queues=True,
        broker_transport_options={"confirm_publish": True},
        task_default_queue=queue,
        task_queues=[Queue(queue, queue_arguments={"x-queue-type": "quorum", "x-expires": 600_000})],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    return app


job = jobs.given()
app = make_app(job)
tallies = Tallies(job)


@app.task(name="step")
def step() -> int:
    """Return at once."""
    tallies.ended.add()
    return 1


@app.task(
    name="failing",
    bind=True,
    autoretry_for=(ConnectionError,),
    max_retries=FAILURES,
    retry_kwargs={"countdown": job.get("wait", 0)},
)
def failing(self: Task) -> int:
    """Fail twice."""
    tallies.fail_twice(self.request.retries, self.request.id)
    return 1


@app.task(name="lasting")
def lasting() -> None:
    """Note the beginning; the first process to do so does not return for a long time."""
    Notes(job["file"] + ".notes").begin()


@app.task(name="refuse")
def refuse() -> int:
    """Fail for good."""
    raise ValueError("no")


@app.task(name="undo_all")
def undo_all() -> None:
    """Undo the steps, one after the other."""
    chain(*(step.si() for _ in range(4))).apply_async()


def send_saga() -> None:
    """Send a chain whose last task fails, with the callback that undoes the others."""
    undo = undo_all.si()
    chain(*(step.si() for _ in range(4)), refuse.si().on_error(undo)).apply_async()


def send_happy() -> None:
    """Send a chain."""
    chain(*(step.si() for _ in range(job["steps"]))).apply_async()


def start_worker() -> None:
    """Start a worker of two processes; for a takeover of one, as there are two workers."""
    count = "1" if job.get("kind") == "takeover" else "2"
    name = f"worker-{time.monotonic_ns()}@%h"
    command = ("celery", "-A", "bench.peers.on_celery", "worker", "-c", count, "-l", "CRITICAL", "-n", name)
    jobs.start(job, *command)


def main() -> None:
    """Send flows and wait until the worker has finished them."""
    measure(
        job,
        tallies,
        start_worker,
        {"happy": send_happy, "faults": failing.delay, "saga": send_saga, "takeover": lasting.delay},
    )


if __name__ == "__main__":
    main()
