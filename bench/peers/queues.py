"""How is a peer measured that takes its work from queues? Alike for all of them.

``happy`` and ``saga``: workers are there and warm; from the first send to the last end. ``faults``: everything is sent
first, then workers are started; from the first attempt to the last end, so that starting them does not count. Either is
cut off after ``most`` seconds, and what was done by then counts. ``submit``: nobody takes what is sent. ``takeover``:
whoever has begun is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bench import jobs
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
    """What the processes of a peer have begun, what failed, and what they have ended."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.begun = jobs.Tally(job["file"] + ".begun")
        self.failed = jobs.Tally(job["file"] + ".failed")
        self.ended = jobs.Tally(job["file"])

    def fail_twice(self, earlier: int) -> None:
        """Do what an activity of the fault path does, after so many earlier failures."""
        if earlier == 0:
            self.begun.add()
        if earlier < FAILURES:
            self.failed.add()
            raise ConnectionError("not now")
        self.ended.add()


def measure_flows(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Flows a second: as many as the steps that were done are worth, since all flows get on together."""
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
    """Faults a second."""
    for _ in range(job["count"]):
        send()
    start()
    began = tallies.begun.wait_for(1)
    _, at = tallies.ended.wait_until(job["count"], job["most"])
    return {"faults": tallies.failed.count() / (at - began)}


def measure_submits(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Sends a second."""
    return {"submits": jobs.in_threads(1, job["seconds"], lambda number: send())}


def measure_takeover(job: dict[str, Any], tallies: Tallies, start: Start, send: Send) -> dict[str, float]:
    """Milliseconds until the other of two workers, each with its own processes, begins anew."""
    start()
    start()
    time.sleep(READY)
    send()
    return {"takeover": 1000 * time_takeover(Notes(job["file"] + ".notes"), parent_too=True)}


_WAYS = {"faults": measure_faults, "submit": measure_submits, "takeover": measure_takeover}


def measure(job: dict[str, Any], tallies: Tallies, start: Start, sends: Mapping[str, Send]) -> None:
    """Do the job: ``sends`` has a way to send one flow for each kind of job."""
    kind = job.get("kind", "happy")
    send = sends["happy" if kind == "submit" else kind]
    jobs.answer(_WAYS.get(kind, measure_flows)(job, tallies, start, send))
    jobs.leave()
