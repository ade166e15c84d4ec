"""Parses ladders, and returns the level of the nth failure. Pure.

A ladder answers with a wait and a level to try again on, or with None: no level is left, and the failure is final. It
is a value: it can be declared, compared, stored with the fault and read again by a process that has none of the user's
code. It counts nothing itself; the caller passes the number of failures, from the database.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from aft import durations
from aft.runs.records import stored_ladders
from aft.texts import format_value

MOST_LEVELS, MOST_TRIES = stored_ladders.MOST_LEVELS, stored_ladders.MOST_TRIES
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, init=False, repr=False)
class Level:
    """Wait, then try again, ``tries`` times: ``Level("5s*3")``, or ``Level("5s", tries=3)``; without a number, once.

    The wait is a text, a number of seconds or a timedelta, kept in whole milliseconds; 0 means at once.
    Raises ValueError that says what would have been right.
    """

    wait: timedelta
    tries: int

    def __init__(self, wait: timedelta | float | str, tries: int | None = None) -> None:
        if isinstance(wait, str) and "*" in wait:
            if tries is not None:
                raise ValueError(
                    f"{format_value(wait)} with tries={format_value(tries)} says twice how many tries; "
                    "leave one of the two out"
                )
            wait, tries = _split(wait)
        object.__setattr__(self, "wait", _whole(wait))
        object.__setattr__(self, "tries", _counted(1 if tries is None else tries))

    def __str__(self) -> str:
        formatted = durations.format(self.wait)
        return formatted if self.tries == 1 else f"{formatted}*{self.tries}"

    def __repr__(self) -> str:
        return f"Level({str(self)!r})"


def _split(text: str) -> tuple[str, int]:
    """Parse a level in its text form: ``5s*3``."""
    wait, _, tries = (piece.strip() for piece in text.partition("*"))
    if not (tries.isascii() and tries.isdigit() and len(tries) < 10):
        raise ValueError(f"{text.strip()!r} is not a level; write '5s*3' for three tries after 5s each")
    return wait, int(tries)


def _whole(wait: timedelta | float | str) -> timedelta:
    found = durations.parse(wait)
    if timedelta(0) < found < _MILLISECOND:
        raise ValueError(f"a level cannot wait {wait!r}; 1ms is the least, or 0 for no wait at all")
    return round(found / _MILLISECOND) * _MILLISECOND


def _counted(tries: int) -> int:
    if type(tries) is not int or not 1 <= tries <= MOST_TRIES:
        raise ValueError(f"tries={format_value(tries)} of a level must be a whole number from 1 to {MOST_TRIES}")
    return tries


@dataclass(frozen=True)
class LadderPosition:
    """The position of a fault on its ladder: the level, the try within that level, and the wait before it."""

    level: int  #: 1 is the first
    attempt_in_level: int  #: 1 is the first
    wait: timedelta


@dataclass(frozen=True)
class Ladder:
    """The levels that a recoverable fault passes through; without levels every fault is final at once."""

    levels: tuple[Level, ...] = ()

    def __post_init__(self) -> None:
        if len(self.levels) > MOST_LEVELS:
            raise ValueError(f"{len(self.levels)} levels; {MOST_LEVELS} are the most")

    @classmethod
    def of(cls, levels: Sequence[Level | str | float | timedelta] | str) -> Ladder:
        """Make a ladder of a list, ``["5s*3", "10m"]``, or of a setting's text, ``"5s*3, 10m"``. Raises ValueError.

        A bare wait, ``"10m"``, is a level of one try.
        """
        if isinstance(levels, str):
            return cls.parse(levels)
        if isinstance(levels, bytes) or not isinstance(levels, Sequence):
            raise ValueError(f"{format_value(levels)} is not a list of levels; write ['5s*3', '10m']")
        return cls(tuple(level if isinstance(level, Level) else Level(level) for level in levels))

    def __str__(self) -> str:
        return ", ".join(map(str, self.levels)) or "none"

    @classmethod
    def parse(cls, text: str) -> Ladder:
        """Parse a ladder in its text form: ``"5s*3, 1m*2, 10m"``; empty or ``none`` is no level at all."""
        if text.strip().lower() in ("", "none"):
            return cls()
        return cls(tuple(_read_level(part, text) for part in text.split(",")))

    def position_after(self, failures: int) -> LadderPosition | None:
        """Return the position after the nth failure (n from 1), or None when no level is left."""
        if type(failures) is not int or failures < 1:
            raise ValueError(f"failures={format_value(failures)} must be a whole number from 1: nothing has failed yet")
        left = failures
        for number, level in enumerate(self.levels, start=1):
            if left <= level.tries:
                return LadderPosition(number, left, level.wait)
            left -= level.tries
        return None

    @property
    def total_tries(self) -> int:
        """Number of tries that all levels allow together, after the first execution."""
        return sum(level.tries for level in self.levels)

    @property
    def waits(self) -> frozenset[timedelta]:
        """The distinct waits: one delay queue each."""
        return frozenset(level.wait for level in self.levels)

    @functools.cached_property
    def stored(self) -> str:
        """The ladder as stored with a fault: JSON."""
        return json.dumps([[level.wait // _MILLISECOND, level.tries] for level in self.levels])


@functools.lru_cache(maxsize=256)
def read_ladder(formatted: str) -> Ladder:
    """Decode a ladder as stored with a fault. Cached: there are few ladders and many faults. Raises ValueError."""
    return Ladder(tuple(Level(timedelta(milliseconds=wait), tries) for wait, tries in stored_ladders.decode(formatted)))


def _read_level(part: str, text: str) -> Level:
    try:
        return Level(part)
    except ValueError as error:
        raise ValueError(f"{part.strip()!r} in {text!r} is not a level: {error}") from None
