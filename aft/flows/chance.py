"""Chance that a replay repeats: identifiers and random numbers that follow from the run alone."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable


class Chance:
    """The chance of one pass over a flow's code; ``make_key`` makes a text of the run's own from a name."""

    def __init__(self, make_key: Callable[[str], str]) -> None:
        self._make_key = make_key
        self._uuids = 0
        self._random: random.Random | None = None

    def uuid(self) -> uuid.UUID:
        """Make the next identifier."""
        self._uuids += 1
        return uuid.uuid5(uuid.NAMESPACE_OID, self._make_key(f"uuid/{self._uuids}"))

    def random(self) -> random.Random:
        """Give the generator of random numbers."""
        if self._random is None:
            self._random = random.Random(self._make_key("random"))
        return self._random
