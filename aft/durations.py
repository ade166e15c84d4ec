"""Parses and formats durations like "10s", for settings, levels and queue names; counts the waits of a back-off."""

from __future__ import annotations

import math
import random
import re
from datetime import timedelta

from aft.texts import format_value

#: Milliseconds in each unit, longest first: the order in which a duration is formatted.
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_TEXT = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[dhms]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")

#: No wait is longer than ten years: longer ones are typing errors.
LONGEST = timedelta(days=3650)
#: Doublings after which a back-off stays as it is: a number that is doubled for ever has no float.
_MOST_DOUBLINGS = 60


def parse(value: timedelta | float | str) -> timedelta:
    """Parse ``"10s"``, ``"1h30m"``, ``"250ms"``, a number of seconds, or a timedelta.

    Raises ValueError that says what would have been right.
    """
    try:
        found = value if isinstance(value, timedelta) else timedelta(seconds=_seconds(value))
    except OverflowError:
        found = timedelta.max
    if not timedelta(0) <= found <= LONGEST:
        raise ValueError(f"{format_value(value)} is not a duration between 0 and ten years")
    return found


def _seconds(value: float | str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float("inf") if math.isnan(value) else float(value)
    if isinstance(value, str) and _TEXT.fullmatch(text := value.strip().lower()):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)) / 1000
    raise ValueError(f"{format_value(value)} is not a duration; write '250ms', '10s', '5m', '1h30m' or '2d'")


def format(value: timedelta) -> str:
    """Format a duration in its shortest whole units: ``10s``, ``1h30m``, ``250ms``; ``0s`` for zero."""
    rest = round(value / timedelta(milliseconds=1))
    parts: list[str] = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def back_off(failures: int, first: float, longest: float, *, spread: float = 0.0) -> float:
    """Return the seconds to wait after this many failures in a row: ``first``, doubled by each further one.

    It is ``longest`` at most. Up to the share ``spread`` of it is left out at random, so that processes which failed
    together do not all try again together.
    """
    wait = min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return wait * random.uniform(1.0 - spread, 1.0) if spread else wait
