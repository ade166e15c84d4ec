"""What a run awaits that has let go of its thread: a signal, a moment, or the end of a child.

A run's waits lie in its own row, written by its owner when it lets go, so that whoever wakes it decides under the lock
of that one row. They stay there while the run is executed: the next owner learns since when a wait has lasted, and when
it is over. Times are the database's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from aft.ids import StepPath


class WaitKind(StrEnum):
    """What is awaited."""

    SIGNAL = "signal"
    SLEEP = "sleep"
    CHILD = "child"
    FAULT = "fault"  #: a failed step waits for a signal before it is tried again


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a run awaits; ``until`` is when it goes on without it, None: never."""

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


def encode(waits: Iterable[Wait]) -> str | None:
    """Spell waits as JSON; None for none."""
    found = [
        {
            "path": wait.path,
            "kind": wait.kind.value,
            "name": wait.name,
            "since": wait.since.isoformat(),
            "until": None if wait.until is None else wait.until.isoformat(),
        }
        for wait in waits
    ]
    return json.dumps(found, ensure_ascii=False) if found else None


def decode(text: str | None) -> tuple[Wait, ...]:
    """Read what ``encode`` wrote."""
    return tuple(
        Wait(
            StepPath(found["path"]),
            WaitKind(found["kind"]),
            found["name"],
            datetime.fromisoformat(found["since"]),
            None if found["until"] is None else datetime.fromisoformat(found["until"]),
        )
        for found in json.loads(text or "[]")
    )


def awaits_signal(waits: Iterable[Wait], name: str) -> bool:
    """Tell whether a signal of this name would be taken at once."""
    return any(wait.kind in (WaitKind.SIGNAL, WaitKind.FAULT) and wait.name == name for wait in waits)
