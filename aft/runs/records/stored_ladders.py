"""The stored form of ladders: JSON, ``[[wait in milliseconds, tries], …]``. Pure.

``recovery.levels`` makes ladders of it; whoever reads the row of a fault checks it.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from aft import durations
from aft.codec.text import StoredJson

#: Levels of one ladder; each distinct wait needs a delay queue of its own.
MOST_LEVELS = 32
#: Tries on one level.
MOST_TRIES = 1_000_000

_Wait = Annotated[int, Field(strict=True, ge=0, le=durations.LONGEST // timedelta(milliseconds=1))]
_Tries = Annotated[int, Field(strict=True, ge=1, le=MOST_TRIES)]
_STORED: StoredJson[tuple[tuple[int, int], ...]] = StoredJson(
    Annotated[tuple[tuple[_Wait, _Tries], ...], Field(max_length=MOST_LEVELS)]
)


@functools.lru_cache(maxsize=256)
def decode(stored: str) -> tuple[tuple[int, int], ...]:
    """Decode the levels of a ladder. Cached: there are few ladders and many faults. Raises ValueError."""
    return _STORED.read(stored)
