"""Clocks: time is injected. Besides ids and user-facing code, nothing else in aft reads the system's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two kinds of time: a wall clock for records, a boot-time clock for leases and waits."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        ...

    def ticks(self) -> float:
        """Return seconds since some fixed moment; never jumps, and goes on while the machine is suspended."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    if hasattr(time, "CLOCK_BOOTTIME"):

        def ticks(self) -> float:
            # A lease must also run out while the machine is suspended; CLOCK_MONOTONIC stands still there.
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def ticks(self) -> float:
            return time.monotonic()
