"""The input and the result of a part of the long profile."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[1]
#: Where the code is that a result is of: what is tried to be broken, and what tries.
CODE = (
    "aft/**/*.py",
    "migrations/**/*.py",
    "chaos/*.py",
    "tests/contract/proxy.py",
    "tests/servers.py",
    "tests/setups.py",
    "tests/storing.py",
)
#: What keeps results and tells of them, which is no part of what is measured.
KEEPERS = ("__main__.py", "report.py", "results.py")
#: What figures may be at most: by the figure's name, then by the name of one of its numbers.
Wanted = Mapping[str, Mapping[str, float]]
#: Told while a part goes on: how much is done, of how much, and what is going on.
Progress = Callable[[float, float, str], None]


def silent(done: float, total: float, text: str) -> None:
    """Do nothing: the default for progress."""


@dataclass(frozen=True, slots=True)
class Context:
    """The input of a part: ``directory`` is its own; ``quick`` asks for a small version of it."""

    seed: int
    directory: Path
    quick: bool = False
    progress: Progress = silent

    def size(self, full: int, quick: int) -> int:
        """Return the number for a full profile, or for a quick one."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a part: how many runs, the faults that were injected, and every promise that was broken."""

    name: str
    seed: int
    runs: int
    faults: dict[str, int]
    violations: list[str]
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    quick: bool = False
    #: What figures should be at most, and those that were more, or were not there.
    wanted: dict[str, dict[str, float]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    #: The code it was made with and the day; empty in those that were kept before either was.
    code: str = ""
    date: str = ""

    @property
    def failed(self) -> bool:
        """Whether a promise was broken or a figure missed."""
        return bool(self.violations or self.missed)

    def compared(self, wanted: Wanted) -> Result:
        """Return a copy with its figures compared with these bounds."""
        spelt = {name: dict(bounds) for name, bounds in wanted.items()}
        return replace(self, wanted=spelt, missed=list(_missed(self.figures, wanted)))

    def is_of(self, seed: int, part: str | None = None) -> bool:
        """Whether it is of this seed and of the present code (of its part), so that it need not be repeated."""
        return (self.seed, self.code) == (seed, digest(part))

    def save(self, path: Path, part: str | None = None) -> None:
        """Save it with the code's digest and the date, so that an interrupted profile can be continued."""
        path.parent.mkdir(parents=True, exist_ok=True)
        today = datetime.now(UTC).date().isoformat()
        stamped = replace(self, code=self.code or digest(part), date=self.date or today)
        path.write_text(json.dumps(asdict(stamped), indent=1, ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: Path) -> Result | None:
        """Read a saved result; None if there is none."""
        return Result(**json.loads(path.read_text())) if path.exists() else None


def _missed(figures: Mapping[str, Any], wanted: Wanted) -> Iterator[str]:
    for name, bounds in wanted.items():
        for number, bound in bounds.items():
            seen = figures.get(name, {}).get(number)
            if seen is None:
                yield f"{name}: {number} was not measured, wanted {bound} at most"
            elif seen > bound:
                yield f"{name}: {number} {seen}, wanted {bound} at most"


@functools.cache
def digest(part: str | None = None) -> str:
    """Return a short digest of the code of one part, or of all, as it was at the first call.

    Of what one part is made of, or of all: the other parts may change, and what it found is as true as before.
    """
    found = hashlib.sha256()
    files = {path for pattern in CODE for path in ROOT.glob(pattern)}
    if part is not None:
        needed = _needed(part)
        files = {path for path in files if path.name not in KEEPERS and _part_of(path) in (None, *needed)}
    for path in sorted(files):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def _part_of(path: Path) -> str | None:
    return path.stem.removeprefix("part_") if path.match("chaos/part_*.py") else None


def _needed(part: str) -> set[str]:
    """Return a part, and those that it uses."""
    needed, left = set[str](), [part]
    while left:
        needed.add(one := left.pop())
        named = re.findall(r"\bpart_(\w+)", (ROOT / f"chaos/part_{one}.py").read_text())
        left += [each for each in named if each not in needed]
    return needed


class Part(Protocol):
    """The interface of a module that is a part."""

    def run(self, ctx: Context) -> Result: ...
