"""Times takeovers, of all entrants in the same way: kills the process that began the work, waits for another.

The work notes its process and that one's parent, then lasts longer than anybody waits. Only the standard library: the
peers use it, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.jobs import JobFailed

#: Seconds that the first attempt lasts, if nobody ends it.
LONG = 120.0
#: Seconds between two looks.
LOOK = 0.001


class Notes:
    """A file with a line for each beginning: process, its parent, seconds since 1970."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def begin(self) -> None:
        """Note that the work was begun; the first to begin it does not return for a long time."""
        first = not self._path.exists() or not self._path.read_text()
        with self._path.open("a") as file:
            file.write(f"{os.getpid()} {os.getppid()} {time.time():.6f}\n")
        if first:
            time.sleep(LONG)

    def wait_for(self, count: int, patience: float = 90.0) -> list[list[str]]:
        """Wait for this many lines, and return them."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            lines = self._path.read_text().splitlines() if self._path.exists() else []
            if len(lines) >= count:
                return [line.split() for line in lines]
            time.sleep(LOOK)
        raise JobFailed(f"nobody had taken the work over after {patience:.0f} s")


def time_takeover(
    notes: Notes, *, parent_too: bool, then: Callable[[], object] | None = None, patience: float = 90.0
) -> float:
    """Kill the process that has begun, and return the seconds until another one has; ``then`` is called in between."""
    process, parent, _ = notes.wait_for(1)[0]
    # It has time to settle down: what is killed at once may not have told anybody yet that it had begun.
    time.sleep(1.0)
    killed = time.time()
    for pid in [parent, process] if parent_too else [process]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    if then is not None:
        then()
    return float(notes.wait_for(2, patience)[1][2]) - killed
