"""Finds out how late tries begin, of all entrants in the same way: against the failure before them and the wait.

Only the standard library: the peers use it, too.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class Attempts:
    """A file with a line for each attempt of any process: flow, number, seconds since 1970."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, flow: object, number: int) -> None:
        """Note that an attempt begins, which fails at once."""
        os.write(self._file, f"{flow} {number} {time.time():.6f}\n".encode())

    def begun(self) -> dict[tuple[str, int], float]:
        """Return when each attempt began, by flow and number."""
        lines = map(str.split, self._path.read_text().splitlines())
        return {(flow, int(number)): float(at) for flow, number, at in lines}

    def lateness(self, wait: float, since: float) -> list[float]:
        """Return the seconds by which tries came too late, of flows that were begun after ``since``."""
        begun = self.begun()
        late = []
        for (flow, number), at in begun.items():
            if number > 1 and begun.get((flow, 1), 0.0) >= since:
                late.append(at - begun[flow, number - 1] - wait)
        return late


def come_in(send: Callable[[], object], rate: float, seconds: float) -> int:
    """Send flows at a steady rate for so long; return how many."""
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < seconds:
        if now * rate < count:
            time.sleep(count / rate - now)
        send()
        count += 1
    return count


def summarize(late: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the most, in milliseconds."""
    cuts = statistics.quantiles(late, n=100, method="inclusive")
    return {"p50": 1000 * cuts[49], "p99": 1000 * cuts[98], "most": 1000 * max(late)}
