"""Reports activities that take longer than expected, each once, if possible while it still runs.

An activity with ``expected=`` is registered here while it is executed; ``report_overdue`` is called after each
heartbeat and reports those that are overdue. One that ends between two calls is reported at its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from aft.clock import Clock
from aft.telemetry import ActivityOverdue, Telemetry


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    run: str
    path: str
    activity: str
    expected: timedelta
    began: float


class SlowActivityWatch:
    """The activities with an expected duration that this process executes. Thread-safe.

    Emits: ActivityOverdue.
    """

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._lock = threading.Lock()
        #: Those that were not reported yet.
        self._watched: set[_Watched] = set()

    @contextmanager
    def watched(self, run: str, path: str, activity: str, expected: timedelta | None) -> Iterator[None]:
        """Watch an activity for the duration of this block, however it ends; does nothing without ``expected``."""
        if expected is None:
            yield
            return
        watched = _Watched(run, path, activity, expected, self._clock.ticks())
        with self._lock:
            self._watched.add(watched)
        try:
            yield
        finally:
            self._report_if_over(watched)
            with self._lock:
                self._watched.discard(watched)

    def report_overdue(self) -> None:
        """Report the activities that are overdue now."""
        with self._lock:
            running = list(self._watched)
        for watched in running:
            self._report_if_over(watched)

    def _report_if_over(self, watched: _Watched) -> None:
        elapsed = timedelta(seconds=self._clock.ticks() - watched.began)
        if elapsed <= watched.expected:
            return
        with self._lock:
            if watched not in self._watched:
                return  # another thread has just reported it
            self._watched.discard(watched)
        self._telemetry.emit(
            ActivityOverdue(
                run=watched.run,
                path=watched.path,
                activity=watched.activity,
                expected=watched.expected,
                elapsed=elapsed,
            )
        )
