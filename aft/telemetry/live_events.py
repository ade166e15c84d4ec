"""Broadcasts live events, which name the runs that have changed, for the commands that follow runs.

They say nothing else: on PostgreSQL everyone who may connect can receive them, and those who may know more read the
rows. A follower reads the rows again every second in any case, so a lost event delays it, and does no other harm.

Events are gathered: one message for each would cost a dispatcher a third more processor time on RabbitMQ, whether
anything follows the runs or not.
"""

from __future__ import annotations

import json
import threading
from typing import Protocol

from aft.telemetry.events import Event

#: Seconds for which events are gathered.
PAUSE = 0.1
#: Seconds that a step waits for events.
PATIENCE = 1.0
#: Runs in one message, so that it fits into a notification of PostgreSQL.
MOST_RUNS = 150


class Broadcaster(Protocol):
    """Sends a live event of a namespace, as a broker does."""

    def broadcast(self, namespace: str, body: bytes) -> None: ...


class LiveEvents:
    """Gathers the runs that events are about, on any thread, and broadcasts them, on the thread of a service."""

    def __init__(self, broker: Broadcaster, namespace: str) -> None:
        self._broker = broker
        self._namespace = namespace
        self._runs: set[str] = set()
        #: Set while runs are noted that were not broadcast, and at the end.
        self._noted = threading.Event()

    def note(self, event: Event) -> None:
        """Note the run that an event is about, if any. Subscribe this."""
        if (run := getattr(event, "run", None)) is not None:
            self._runs.add(run)
            if not self._noted.is_set():  # setting it takes a lock
                self._noted.set()

    def step(self) -> float:
        """Wait for something to be noted, and broadcast it; return the seconds until the next step."""
        if not self._noted.wait(PATIENCE):
            return 0.0
        self._noted.clear()  # before the runs are taken: one that is noted from now on sets it again
        while self._runs:
            # Each taken by itself, which needs no lock: others are noted meanwhile.
            runs = [self._runs.pop() for _ in range(min(len(self._runs), MOST_RUNS))]
            self._broker.broadcast(self._namespace, encode(runs))
        return PAUSE

    def interrupt(self) -> None:
        """Make ``step`` stop waiting."""
        self._noted.set()


def encode(runs: list[str]) -> bytes:
    """Encode the ids of runs as a live event."""
    return json.dumps({"runs": runs}).encode()


def runs_of(body: bytes) -> set[str]:
    """Return the runs that a live event is about; none of a body that is not aft's, as anybody may have sent it."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return set()
    runs = event.get("runs") if isinstance(event, dict) else None
    return {run for run in runs if isinstance(run, str)} if isinstance(runs, list) else set()
