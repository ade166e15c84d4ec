"""Back-off for items that failed: each is tried again after twice the wait."""

from __future__ import annotations

from collections.abc import Iterable

from aft import durations
from aft.clock import Clock

#: Seconds until an item is tried again: the first wait, and the longest.
FIRST, LONGEST = 1.0, 300.0
#: How many are remembered; others are tried again at once.
MOST = 500


class Backoff:
    """Tracks failed items by id, and how long each is left alone; belongs to one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When each is tried again, and how often in a row it has failed.
        self._waits: dict[str, tuple[float, int]] = {}

    def waiting(self) -> set[str]:
        """Return the ids that must not be tried yet."""
        here = self._clock.ticks()
        return {one for one, (at, _) in self._waits.items() if at > here}

    def note(self, failed: Iterable[str]) -> None:
        """Note the ids that have failed now; others that were due have succeeded, and are forgotten."""
        here, before = self._clock.ticks(), self._waits
        self._waits = {one: (at, failures) for one, (at, failures) in before.items() if at > here}
        for one in failed:
            if len(self._waits) < MOST:
                failures = before[one][1] + 1 if one in before else 1
                self._waits[one] = (here + durations.back_off(failures, FIRST, LONGEST), failures)
