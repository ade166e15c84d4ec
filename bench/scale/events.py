"""Simulates some thousand runs on one shard exactly, event by event.

Runs queue up for a slot; messages are dealt out to dispatchers in turn, as RabbitMQ does. Each attempt visits its
dispatcher's core (one thread at a time) and the database's cores by turns, and queues up at both; the user's code
then only waits. Times are drawn from exponential distributions around the measured means: rougher than they are, on
purpose. A failed attempt waits on its ladder and comes back.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.scale.shape import Shape

#: Whether an attempt fails, by its time and by how often it has failed before.
Fails = Callable[[float, int], bool]


def never(at: float, failures: int) -> bool:
    """Return False: no attempt fails."""
    return False


@dataclass
class Station:
    """A number of servers with one queue."""

    servers: int
    busy: int = 0
    queue: deque[tuple[Attempt, float]] = field(default_factory=deque)


@dataclass
class Attempt:
    """One run, through all of its attempts."""

    born: float
    failures: int = 0
    visits_left: int = 0
    at: Station | None = None  #: the core of the dispatcher that executes it
    home: int = -1
    fails: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a simulation."""

    ended: list[float]  #: when each run ended well
    took: list[float]  #: seconds from its beginning, in the same order
    given_up: int
    attempts: int
    waiting: list[tuple[float, int, int]]  #: each second: the time, runs that wait for a slot, runs in delay queues


class Simulation:
    """An exact simulation of one shard."""

    def __init__(self, shape: Shape, fails: Fails = never, seed: int = 1) -> None:
        self._shape = shape
        self._fails = fails
        self._random = random.Random(seed)
        self._cores = [Station(1) for _ in range(shape.dispatchers)]
        self._free = [shape.slots] * shape.dispatchers
        self._database = Station(max(1, round(shape.cores)))
        self._next = 0
        self._ready: deque[Attempt] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._now = 0.0
        self._delayed = self._given_up = self._attempts = 0
        self._ended: list[float] = []
        self._took: list[float] = []
        self._waiting: list[tuple[float, int, int]] = []

    def run(self, births: Sequence[float]) -> Outcome:
        """Simulate runs that begin at these times, until all have ended."""
        for born in births:
            self._at(born, lambda born=born: self._arrive(Attempt(born)))  # type: ignore[misc]
        left = len(births)
        tick = 0.0
        while len(self._ended) + self._given_up < left:
            at, _, act = heapq.heappop(self._events)
            while at >= tick:
                self._waiting.append((tick, len(self._ready), self._delayed))
                tick += 1.0
            self._now = at
            act()
        return Outcome(self._ended, self._took, self._given_up, self._attempts, self._waiting)

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, act))

    def _arrive(self, attempt: Attempt) -> None:
        self._ready.append(attempt)
        self._deal()

    def _deal(self) -> None:
        """Give ready runs to dispatchers with a free slot, in turn."""
        while self._ready:
            home = self._find_free()
            if home is None:
                return
            attempt = self._ready.popleft()
            self._free[home] -= 1
            self._attempts += 1
            attempt.home, attempt.at = home, self._cores[home]
            attempt.visits_left = self._shape.visits
            attempt.fails = self._fails(self._now, attempt.failures)
            self._at(self._now + self._shape.pause, lambda attempt=attempt: self._visit_core(attempt))  # type: ignore[misc]

    def _find_free(self) -> int | None:
        size = len(self._free)
        for step in range(size):
            home = (self._next + step) % size
            if self._free[home] > 0:
                self._next = home + 1
                return home
        return None

    def _visit_core(self, attempt: Attempt) -> None:
        seconds = self._shape.python_failed if attempt.fails else self._shape.python
        assert attempt.at is not None
        self._join(attempt.at, attempt, seconds / self._shape.spare / self._shape.visits, self._visit_database)

    def _visit_database(self, attempt: Attempt) -> None:
        seconds = self._shape.database_failed if attempt.fails else self._shape.database
        # A part of a core that is left over slows the others down a little.
        seconds *= self._database.servers / self._shape.cores
        self._join(self._database, attempt, seconds / self._shape.visits, self._visited)

    def _visited(self, attempt: Attempt) -> None:
        attempt.visits_left -= 1
        if attempt.visits_left > 0:
            self._visit_core(attempt)
            return
        self._free[attempt.home] += 1
        self._settle(attempt)
        self._deal()

    def _settle(self, attempt: Attempt) -> None:
        if not attempt.fails:
            self._ended.append(self._now)
            self._took.append(self._now - attempt.born)
        elif attempt.failures < len(self._shape.ladder):
            wait = self._shape.ladder[attempt.failures]
            attempt.failures += 1
            self._delayed += 1
            self._at(self._now + wait, lambda: self._come_back(attempt))
        else:
            self._given_up += 1

    def _come_back(self, attempt: Attempt) -> None:
        self._delayed -= 1
        self._arrive(attempt)

    def _join(self, station: Station, attempt: Attempt, mean: float, then: Callable[[Attempt], None]) -> None:
        seconds = self._random.expovariate(1 / mean)
        if station.busy < station.servers:
            station.busy += 1
            self._serve(station, attempt, seconds, then)
        else:
            station.queue.append((attempt, seconds))

    def _serve(self, station: Station, attempt: Attempt, seconds: float, then: Callable[[Attempt], None]) -> None:
        def over() -> None:
            if station.queue:
                self._serve(station, *station.queue.popleft(), then)
            else:
                station.busy -= 1
            then(attempt)

        self._at(self._now + seconds, over)


def births(rate: float, seconds: float, seed: int) -> list[float]:
    """Return random times at which runs begin, independent of each other, ``rate`` a second on average."""
    source = random.Random(seed)
    found: list[float] = []
    at = source.expovariate(rate)
    while at < seconds:
        found.append(at)
        at += source.expovariate(rate)
    return found
