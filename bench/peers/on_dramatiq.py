"""Dramatiq on RabbitMQ: confirmed publishes, acks after the work, its own retries. It stores no state of flows.

Two processes of four threads; a flow is a pipeline.
"""

from __future__ import annotations

from functools import partial

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage

from bench import jobs
from bench.peers.queues import FAILURES, Tallies, measure
from bench.takeovers import Notes

job = jobs.given()
tallies = Tallies(job)
broker = RabbitmqBroker(url=job["broker"], confirm_delivery=True)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
#: A queue for each round: what a stopped round has left must not meet the next one.
QUEUE = f"dramatiq-{job['file'].rpartition('/')[2]}"
#: Milliseconds between two tries.
WAIT = max(1, round(job.get("wait", 0) * 1000))


@dramatiq.actor(queue_name=QUEUE)
def step() -> None:
    """Return at once."""
    tallies.ended.add()


@dramatiq.actor(queue_name=QUEUE, max_retries=FAILURES, min_backoff=WAIT, max_backoff=WAIT)
def failing() -> None:
    """Fail twice."""
    message = CurrentMessage.get_current_message()
    tallies.fail_twice(message.options.get("retries", 0), message.message_id)


@dramatiq.actor(queue_name=QUEUE, time_limit=600_000)
def lasting() -> None:
    """Note the beginning; the first process to do so does not return for a long time."""
    Notes(job["file"] + ".notes").begin()


def send_happy() -> None:
    """Send a pipeline."""
    dramatiq.pipeline([step.message_with_options(pipe_ignore=True) for _ in range(job["steps"])]).run()


def main() -> None:
    """Send flows and wait until the workers have finished them."""
    processes, threads = ("1", "1") if job.get("kind") == "takeover" else ("2", "4")
    size = ("--processes", processes, "--threads", threads)
    command = ("dramatiq", "bench.peers.on_dramatiq", *size, "--log-file", "/dev/null")
    sends = {"happy": send_happy, "faults": failing.send, "takeover": lasting.send}
    measure(job, tallies, partial(jobs.start, job, *command), sends)


if __name__ == "__main__":
    main()
