"""What a part of the long profile is given, and what it hands back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

#: Told while a part goes on: how much is done, of how much, and what is going on.
Progress = Callable[[float, float, str], None]


def silent(done: float, total: float, text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a part is given: ``directory`` is its own; ``quick`` asks for a small version of it."""

    seed: int
    directory: Path
    quick: bool = False
    progress: Progress = silent

    def size(self, full: int, quick: int) -> int:
        """Choose a number by how much is asked for."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a part: how many runs, which faults were really injected, and every promise that was broken."""

    name: str
    seed: int
    runs: int
    faults: dict[str, int]
    violations: list[str]
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    quick: bool = False

    def save(self, path: Path) -> None:
        """Keep it, so that an interrupted profile goes on where it was."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: Path) -> Result | None:
        """Read one that was kept; None if there is none."""
        return Result(**json.loads(path.read_text())) if path.exists() else None


class Part(Protocol):
    """A module that is a part."""

    def run(self, ctx: Context) -> Result: ...
