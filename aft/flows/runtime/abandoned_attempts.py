"""Tracks abandoned attempts, whose function has not returned after it was given up, and bounds their number.

Python cannot end a thread. A function that was given up, after its time limit or because rules objected, goes on until
it returns by itself; its result is then a late effect (``flows.session.keep_late_effect``). It occupies no slot, and no
drain waits for it; but its thread stays, with the resources that it holds. So each process has a bound: at it, a
process claims no run, begins no step, and releases its runs, for other workers to continue.

The threads that give up and those that return after all run at the same time. This state is lost with the process, as
are the threads. The worker's row shows it to others, written with the next heartbeat, which is requested at once
(``store.leases``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from aft.clock import Clock
from aft.ids import RunId
from aft.telemetry import AttemptAbandoned, AttemptReturned, Telemetry, WorkerResumed, WorkerSaturated

#: Attempts that the worker's row names, the oldest first; the others are counted.
MOST_NAMED = 20


@dataclass(slots=True, eq=False)
class WatchedCall:
    """One call that may be given up; giving up and returning may come in either order."""

    run: RunId
    path: str
    activity: str
    attempt: int
    began: float
    given_up_at: datetime | None = None
    returned: bool = False


class AbandonedAttempts:
    """The attempts of this process that were given up and have not returned. Thread-safe.

    Emits: AttemptAbandoned, AttemptReturned, WorkerSaturated, WorkerResumed.
    """

    def __init__(self, clock: Clock, telemetry: Telemetry, most: int) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._most = most
        self._changed = threading.Condition()
        self._calls: list[WatchedCall] = []
        #: Called after each change; must be quick.
        self.on_change: Callable[[], None] = _nothing

    @property
    def is_full(self) -> bool:
        """Whether the bound is reached, so that this process begins nothing new."""
        return len(self._calls) >= self._most

    def watch(self, run: RunId, path: str, activity: str, attempt: int) -> WatchedCall:
        """Make the record of a call that is about to begin."""
        return WatchedCall(run, path, activity, attempt, self._clock.ticks())

    def give_up(self, call: WatchedCall, why: str) -> None:
        """Count a call as abandoned, unless it has returned."""
        with self._changed:
            if call.returned:
                return
            call.given_up_at = self._clock.now()
            self._calls.append(call)
            filled = len(self._calls) == self._most
        self._telemetry.emit(
            AttemptAbandoned(run=call.run, path=call.path, activity=call.activity, attempt=call.attempt, why=why)
        )
        if filled:
            self._telemetry.emit(WorkerSaturated(abandoned=self._most))
        self.on_change()

    def end(self, call: WatchedCall) -> None:
        """Note that a call has returned, and that its result is stored if it must be. Idempotent."""
        with self._changed:
            known, call.returned = call.returned, True
            if known or call.given_up_at is None:
                return
            was_full = self.is_full
            self._calls.remove(call)
            refills = was_full and not self.is_full
            self._changed.notify_all()
        elapsed = timedelta(seconds=self._clock.ticks() - call.began)
        self._telemetry.emit(AttemptReturned(run=call.run, path=call.path, activity=call.activity, elapsed=elapsed))
        if refills:
            self._telemetry.emit(WorkerResumed(abandoned=self._most - 1))
        self.on_change()

    def wait(self, timeout: float) -> bool:
        """Wait until all have returned; False if one has not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout)

    def encode(self) -> str | None:
        """Return the worker row's report of them, as JSON; None: there are none."""
        with self._changed:
            calls = list(self._calls)
        if not calls:
            return None
        named = [
            {
                "run": call.run,
                "path": call.path,
                "activity": call.activity,
                "since": None if call.given_up_at is None else call.given_up_at.isoformat(),
            }
            for call in calls[:MOST_NAMED]
        ]
        return json.dumps({"count": len(calls), "most": self._most, "oldest": named})


def _nothing() -> None:
    """Do nothing: the default of ``on_change``."""
