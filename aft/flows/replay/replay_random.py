"""Deterministic randomness: identifiers and random numbers that follow from the run alone, so a replay repeats them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable


class ReplayRandom:
    """The identifiers and random numbers of one pass; ``make_key`` makes a text unique to the run from a name."""

    def __init__(self, make_key: Callable[[str], str]) -> None:
        self._make_key = make_key
        self._uuids = 0
        self._random: random.Random | None = None

    def uuid(self) -> uuid.UUID:
        """Return the next identifier."""
        self._uuids += 1
        return uuid.uuid5(uuid.NAMESPACE_OID, self._make_key(f"uuid/{self._uuids}"))

    def random(self) -> random.Random:
        """Return the run's random number generator."""
        if self._random is None:
            self._random = random.Random(self._make_key("random"))
        return self._random
