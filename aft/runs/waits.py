"""The waits of a run: for a signal, a time, the end of a child, or a signal before a retry.

A run's waits are stored in its own row, written by its owner when it releases the run, so that a sender can decide
under the lock of that one row whether to wake it. They stay there while the run is executed: the next owner reads when
a wait began, and when it times out. Times are the database's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from aft.codec.text import StoredJson
from aft.ids import StepPath


class WaitKind(StrEnum):
    """The kind of a wait."""

    SIGNAL = "signal"
    SLEEP = "sleep"
    CHILD = "child"
    FAULT = "fault"  #: a failed step waits for a signal before it is tried again


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of a step; ``until`` is when it times out, None: never."""

    path: StepPath
    kind: WaitKind
    name: str
    since: datetime
    until: datetime | None = None

    def __str__(self) -> str:
        what = {
            WaitKind.SIGNAL: f"signal {self.name!r}",
            WaitKind.FAULT: f"signal {self.name!r} before the next try",
            WaitKind.CHILD: f"child {self.name}",
            WaitKind.SLEEP: "its time",
        }
        return what[self.kind]


_STORED: StoredJson[tuple[Wait, ...]] = StoredJson(tuple[Wait, ...])


def encode(waits: Iterable[Wait]) -> str | None:
    """Encode waits as JSON; None for none."""
    found = [{name: getattr(wait, name) for name in Wait.__slots__} for wait in waits]
    return json.dumps(found, ensure_ascii=False, default=datetime.isoformat) if found else None


def decode(text: str | None) -> tuple[Wait, ...]:
    """Decode what ``encode`` wrote; raises ValueError on anything else."""
    return _STORED.read(text) if text else ()


def awaits_signal(waits: Iterable[Wait], name: str) -> bool:
    """Return whether one of the waits is for a signal of this name."""
    return any(wait.kind in (WaitKind.SIGNAL, WaitKind.FAULT) and wait.name == name for wait in waits)
