"""Measures peers that take their work from queues, all in the same way.

``happy`` and ``saga``: workers are there and warm; from the first send to the last end. ``faults``: everything is sent
first, then workers are started; from the first attempt to the last end, so that starting them does not count. Either is
cut off after ``most`` seconds, and what was done by then counts. ``lateness``: flows come in at a steady rate.
``submit``: nobody takes what is sent. ``takeover``: whoever has begun is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bench import jobs
from bench.lateness import Attempts, come_in, summarize
from bench.takeovers import Notes, time_takeover

#: Flows that warm workers up.
WARM = 20
#: Seconds in which two workers are certainly there.
READY = 4.0
#: Steps that a saga does and undoes.
STEPS_OF_SAGA = 8
#: How often each activity of the fault path fails.
FAILURES = 2

Send = Callable[[], object]
Start = Callable[[], object]


class Tallies:
    """The counts of what a peer's processes have begun, failed and ended."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.begun = jobs.Tally(job["file"] + ".begun")
        self.failed = jobs.Tally(job["file"] + ".failed")
        self.ended = jobs.Tally(job["file"])
        self.attempts = Attempts(job["file"] + ".attempts")

    def fail_twice(self, earlier: int, flow: object) -> None:
        """Fail as an activity of the fault path does, given the number of earlier failures and the flow's id."""
        self.attempts.note(flow, earlier + 1)
        if earlier == 0:
            self.begun.add()
        if earlier < FAILURES:
            self.failed.add()
            raise ConnectionError("not now")
        self.ended.add()


def measure_flows(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Return the flows per second, computed from the ended steps, as all flows progress together."""
    steps = STEPS_OF_SAGA if job.get("kind") == "saga" else job["steps"]
    start()
    for _ in range(WARM):
        send()
    tallies.ended.wait_for(WARM * steps)
    began = time.perf_counter()
    for _ in range(job["count"]):
        send()
    left = began + job["most"] - time.perf_counter()
    count, at = tallies.ended.wait_until((WARM + job["count"]) * steps, left)
    return {"flows": (count / steps - WARM) / (at - began)}


def measure_faults(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Return the faults per second."""
    for _ in range(job["count"]):
        send()
    start()
    began = tallies.begun.wait_for(1)
    _, at = tallies.ended.wait_until(job["count"], job["most"])
    return {"faults": tallies.failed.count() / (at - began)}


def measure_lateness(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Return how late tries begin, against the failure before and the wait."""
    start()
    for _ in range(WARM):
        send()
    tallies.ended.wait_for(WARM)
    began = time.time()
    sent = come_in(send, job["rate"], job["seconds"])
    tallies.ended.wait_for(WARM + sent)
    return summarize(tallies.attempts.lateness(job["wait"], began))


def measure_submits(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Return the sends per second."""
    return {"submits": jobs.in_threads(1, job["seconds"], lambda number: send())}


def measure_takeover(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Return the milliseconds until the other of two workers begins the work again."""
    start()
    start()
    time.sleep(READY)
    send()
    return {"takeover": 1000 * time_takeover(Notes(job["file"] + ".notes"), parent_too=True)}


_WAYS = {
    "faults": measure_faults,
    "lateness": measure_lateness,
    "submit": measure_submits,
    "takeover": measure_takeover,
}


def measure(job: dict[str, Any], tallies: Tallies, start: Start, sends: Mapping[str, Send]) -> None:
    """Run the job of this program; ``sends`` has a function to send one flow for each kind of job."""
    kind = job.get("kind", "happy")
    send = sends[{"submit": "happy", "lateness": "faults"}.get(kind, kind)]
    jobs.answer(_WAYS.get(kind, measure_flows)(job, tallies, start, send))
    jobs.leave()
