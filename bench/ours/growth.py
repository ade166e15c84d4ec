"""Measures the cost of an activity over the length of the journal, and the cost of a replayed row.

One thread. The cost at a length is the lower quartile of the activities around it, in as many runs as give enough.
Replay: a run of so many activities waits for a signal; the time from the signal to its end, against that of a short
run, is what its rows cost.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import aft
from bench import jobs
from bench.ours import flows
from bench.ours.harness import clean, make_app

#: When each activity of the run at hand had ended.
_marks: list[float] = []
#: Activities that are looked at for each length, at least.
ENOUGH = 200
#: Rows of the short run that a long one's replay is held against.
FEW = 10


@aft.flow
def marked(steps: int) -> int:
    """Call this many activities, and note when each has ended."""
    _marks.clear()
    _marks.append(time.perf_counter())
    for number in range(steps):
        flows.step(number)
        _marks.append(time.perf_counter())
    return steps


@aft.flow
def replayed(steps: int) -> int:
    """Call this many activities, then wait for a signal."""
    for number in range(steps):
        flows.step(number)
    aft.wait_for("go")
    return steps


def costs_at(app: aft.Aft, length: int) -> list[float]:
    """Return the microseconds that activities take when the journal is about that long."""
    found: list[float] = []
    around = max(2, length // 10)
    while len(found) < ENOUGH:
        app.start(marked, length + around)
        spent = [after - before for before, after in itertools.pairwise(_marks)]
        found += [1e6 * seconds for seconds in spent[length - around : length + around]]
    return found


def replay(app: aft.Aft, length: int) -> float:
    """Return the seconds from the signal to the end of a run with this many rows."""
    run = app.start(replayed, length)
    began = time.perf_counter()
    run.signal("go")
    while run.status != aft.Status.COMPLETED:
        time.sleep(0.001)
    return time.perf_counter() - began


def measure(app: aft.Aft, job: dict[str, Any]) -> dict[str, float]:
    """Measure both costs for all lengths of the job."""
    lengths: list[int] = job["lengths"]
    costs_at(app, lengths[0])
    found: dict[int, list[float]] = {length: [] for length in lengths}
    # The short ones before and after the longest: the machine's mood changes while that takes its time.
    for length in (*lengths, *reversed(lengths[:-1])):
        found[length] += costs_at(app, length)
    # Their lower quartile: what else the machine does comes on top of some, and is not the journal's.
    costs = {length: statistics.quantiles(of_length, n=4)[0] for length, of_length in found.items()}
    with app.dispatcher(concurrency=1):
        short = min(replay(app, FEW) for _ in range(5))
        long = min(replay(app, lengths[-1]) for _ in range(2))
    return {
        **{f"at {length}": cost for length, cost in costs.items()},
        "growth": costs[lengths[-1]] / costs[lengths[0]],
        "replay": 1e6 * (long - short) / (lengths[-1] - FEW),
    }


def main() -> None:
    """Run the job of this program."""
    job = jobs.given()
    with make_app(job) as app:
        clean(job, app)
        jobs.answer(measure(app, job))


if __name__ == "__main__":
    main()
