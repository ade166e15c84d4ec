"""Ids: unique, and ordered by creation, so that new rows go to the end of an index."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import NewType

RunId = NewType("RunId", str)
FaultId = NewType("FaultId", str)
OrderId = NewType("OrderId", str)
WorkerId = NewType("WorkerId", str)
NoticeId = NewType("NoticeId", str)

#: A step's place in its run: "3", or "3.1" for the first step under savepoint 3.
StepPath = NewType("StepPath", str)


def new_id() -> str:
    """Return a UUID of version 7: 48 bits of milliseconds, 12 bits of their fraction, then random bits."""
    millis, nanos = divmod(time.time_ns(), 1_000_000)
    fraction = (nanos << 12) // 1_000_000
    value = (millis << 80) | (0x7 << 76) | (fraction << 64) | (0x2 << 62) | (int.from_bytes(os.urandom(8)) >> 2)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def first_id_at(at: datetime, *, slack: float = 0.0) -> str:
    """Return a text below all ids that were made ``slack`` seconds after this time, and above earlier ones."""
    millis = min(max(int((at.timestamp() + slack) * 1000), 0), 2**48 - 1)
    text = f"{millis:012x}"
    return f"{text[:8]}-{text[8:]}"
