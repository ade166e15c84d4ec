"""Simulates 10⁹ runs approximately: all shards at once, a second at a time, in numbers of runs.

In each step a shard executes what its fullest resource allows: the cores of its dispatchers, its database's cores, or
its slots. What was ready first goes first; what fails goes into the delay queue of its next try and comes back after
its wait. A delay queue forwards no more than was measured; what is late by the grace is taken by the timer straight
from the table, and its message is stale when it comes: that costs the broker and a look at the row, not the run.

Two kinds of runs are kept apart: those that an outage has *hit*, and all others. Within a step there is no
randomness, so waiting below full load is not seen here; ``events`` is for that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.scale.shape import GRACE, Shape

Numbers = NDArray[np.float64]

#: Rows of every array: runs that an outage has hit, and all others.
HIT, OTHERS = 0, 1
#: Runs, and seconds, that are too few to matter.
NOTHING = 1e-9


@dataclass
class Trace:
    """The state of the simulation, step by step."""

    wait: list[Numbers] = field(default_factory=list)  #: seconds until what is ready now has a slot, by shard
    ready: list[float] = field(default_factory=list)  #: runs that wait for a slot, in all shards
    delayed: list[float] = field(default_factory=list)  #: runs in delay queues, in all shards
    longest: list[float] = field(default_factory=list)  #: runs in the longest delay queue of the fullest shard
    ended: list[Numbers] = field(default_factory=list)  #: runs that ended well, by kind
    given_up: float = 0.0
    given_up_hit: float = 0.0
    failed: float = 0.0  #: attempts that failed
    failed_hit: float = 0.0
    stale: float = 0.0  #: messages that came after the timer had taken their run

    @property
    def waits(self) -> Numbers:
        return np.array(self.wait)


class Fluid:
    """A number of shards of the same shape."""

    def __init__(self, shape: Shape, shards: int, step: float = 1.0) -> None:
        self.step = step
        self.trace = Trace()
        self._shards = shards
        self._tries = len(shape.ladder)
        self._waits = sorted(set(shape.ladder))
        self._queue_of = np.array([self._waits.index(wait) for wait in shape.ladder])
        self._ready = np.zeros((2, self._tries + 1, shards))
        #: What is ready, by the step in which it came.
        self._line: deque[tuple[int, Numbers]] = deque()
        self._rings = [np.zeros((max(1, round(wait / step)), 2, shards)) for wait in shape.ladder]
        self._due = np.zeros((2, self._tries, shards))
        self._turn = 0
        self._delayed = np.zeros((len(self._waits), shards))
        self.reshape(shape)

    def reshape(self, shape: Shape, dead: Numbers | None = None) -> None:
        """Continue with another shape; ``dead`` are the dispatchers that each shard has lost."""
        alive = np.full(self._shards, float(shape.dispatchers)) - (0.0 if dead is None else dead)
        self._shape = shape
        self._core = alive * shape.spare
        self._slot = alive * shape.slots

    @property
    def inside(self) -> float:
        """The number of runs that have not ended."""
        return float(self._ready.sum() + self._delayed.sum())

    def hit(self, runs: Numbers) -> None:
        """Add runs to each shard whose next call is going to fail."""
        came = np.zeros_like(self._ready)
        came[HIT, 0] = runs
        self._queue_up(came)

    @property
    def hit_left(self) -> float:
        """The number of runs that an outage has hit and that have not ended."""
        waiting = sum(float(ring[:, HIT].sum()) for ring in self._rings)
        return float(self._ready[HIT].sum() + self._due[HIT].sum()) + waiting

    @property
    def hit_fresh(self) -> float:
        """The number of runs that an outage has hit and that have not failed yet."""
        return float(self._ready[HIT, 0].sum())

    def advance(self, arrivals: Numbers, fails_hit: float, fails_others: float) -> None:
        """Simulate one step: runs arrive, come back from delay queues, and are executed as far as they fit."""
        came = self._come_back()
        came[OTHERS, 0] += arrivals
        self._queue_up(came)
        failing = np.array([fails_hit, fails_others])[:, None, None]
        seconds = self._seconds(self._ready, failing)
        served = self._serve(failing)
        failed = served * failing
        self._send_away(failed)
        self._look(seconds, (served - failed).sum(axis=1), failed)

    def _queue_up(self, came: Numbers) -> None:
        self._ready += came
        self._line.append((self._turn, came))

    def _serve(self, failing: Numbers) -> Numbers:
        """Take the oldest ready runs that fit into one step of each shard."""
        served = np.zeros_like(self._ready)
        left = np.full(self._shards, float(self.step))
        for number, (came, runs) in enumerate(self._line):
            seconds = self._seconds(runs, failing)
            taken = runs * np.minimum(1.0, left / np.maximum(seconds, NOTHING))
            left -= np.minimum(left, seconds)
            served += taken
            self._line[number] = (came, runs - taken)
            if (self._turn - came) * self.step > GRACE:
                self.trace.stale += float(taken.sum())
            if left.max() <= NOTHING:
                break
        while self._line and self._line[0][1].max() <= NOTHING:
            self._line.popleft()
        self._ready -= served
        return served

    def _seconds(self, runs: Numbers, failing: Numbers) -> Numbers:
        """Return the seconds that each shard needs for these attempts, by its fullest resource."""
        shape = self._shape
        failed = (runs * failing).sum(axis=(0, 1))
        well = runs.sum(axis=(0, 1)) - failed
        python = well * shape.python + failed * shape.python_failed
        database = well * shape.database + failed * shape.database_failed
        slots = (well + failed) * shape.pause + python + database
        found: Numbers = np.maximum.reduce([python / self._core, database / shape.cores, slots / self._slot])
        return found

    def _come_back(self) -> Numbers:
        """Return the runs that delay queues forward in this step, and the late ones that the timer takes."""
        came = np.zeros_like(self._ready)
        for number, ring in enumerate(self._rings):
            place = self._turn % len(ring)
            self._due[:, number] += ring[place]
            ring[place] = 0.0
        for queue in range(len(self._waits)):
            of = self._queue_of == queue
            due = self._due[:, of]
            total = due.sum(axis=(0, 1))
            share, late = self._forwarded(total)
            back = due * share
            self.trace.stale += late
            self._due[:, of] -= back
            came[:, 1:][:, of] += back
            self._delayed[queue] -= back.sum(axis=(0, 1))
        return came

    def _forwarded(self, due: Numbers) -> tuple[Numbers, float]:
        """Return the share of due runs that leave their delay queue now, and how many the timer takes."""
        limit = self._shape.delays_a_second
        if not np.isfinite(limit):
            return np.ones_like(due), 0.0
        late = np.maximum(0.0, due - limit * (self.step + GRACE))
        share: Numbers = np.minimum(1.0, (limit * self.step + late) / np.maximum(due, NOTHING))
        return share, float(late.sum())

    def _send_away(self, failed: Numbers) -> None:
        for number, ring in enumerate(self._rings):
            ring[self._turn % len(ring)] += failed[:, number]
            self._delayed[self._queue_of[number]] += failed[:, number].sum(axis=0)
        self.trace.given_up += float(failed[:, self._tries].sum())
        self.trace.given_up_hit += float(failed[HIT, self._tries].sum())
        self._turn += 1

    def _look(self, seconds: Numbers, ended: Numbers, failed: Numbers) -> None:
        trace = self.trace
        trace.wait.append(np.maximum(0.0, seconds - self.step))
        trace.ready.append(float(self._ready.sum()))
        trace.delayed.append(float(self._delayed.sum()))
        trace.longest.append(float(self._delayed.max()))
        trace.ended.append(ended.sum(axis=1))
        trace.failed += float(failed.sum())
        trace.failed_hit += float(failed[HIT].sum())
