"""The ledger: a file that activities and compensators append to, independent of aft's own records.

One line is one ``os.write`` to a file opened for appending, so lines of different processes never mix, and a process
that is killed has written a line or not. Nothing of aft is imported here: a witness must not know the accused.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

#: What a line may say: of a step forward, and of its undo.
What = Literal["begin", "done", "raised", "undoing", "undone", "undo_raised"]
WHATS: tuple[str, ...] = get_args(What)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: ``at`` is the machine's monotonic clock, the same for all its processes; ``load`` names the plan."""

    at: float
    pid: int
    load: str
    step: str
    what: str
    key: str
    attempt: int


class Ledger:
    """A ledger file. Any number of processes and threads may append to it, also after a fork."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: int | None = None

    def append(self, load: str, step: str, what: What, key: str, attempt: int) -> None:
        """Write one line; it is in the file when this returns, even if the process dies then."""
        entry = Entry(time.monotonic(), os.getpid(), load, step, what, key, attempt)
        line = json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n"
        os.write(self._open(), line)

    def read(self) -> list[Entry]:
        """Return every line, in the order in which they were written; an incomplete last one is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [Entry(**json.loads(line)) for line in lines[:-1] if line]

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self._file
