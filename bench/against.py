"""Compare what two commits of aft cost: ``python -m bench.against COMMIT [--only WORK …] [--rounds N]``.

Both play the same work (``bench.ours.cost``) in turn, on the same services, in processes of their own: the code as it
is here, and that of the commit. Counted is CPU, not time, so that others on the machine spoil it little; and of several
rounds the least, which was disturbed least. Exits with 1 if a kind of work costs more than ``TOLERANCE`` times as much
as before.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from bench import jobs
from bench.jobs import ROOT
from bench.places import BROKER, DATABASE, Places, places

#: How much more a kind of work may cost before that counts: two rounds of the same code differ by as much.
TOLERANCE = 1.1
SETUPS = ("sqlite", "postgresql")
WORK = ("start", "threads", "submit", "faults", "saga", "idle")


@dataclass
class Cost:
    """The µs of CPU of each round: Python's, and the database's."""

    python: list[float] = field(default_factory=list)
    database: list[float] = field(default_factory=list)

    def add(self, answer: Mapping[str, float]) -> None:
        """Add a round."""
        self.python.append(answer["python"])
        self.database.append(answer["database"])

    @property
    def least(self) -> float:
        """The least of all rounds, Python and the database together."""
        return min(map(sum, zip(self.python, self.database, strict=True)))


@dataclass(frozen=True)
class Comparison:
    """What one kind of work cost before, and what it costs now."""

    setup: str
    work: str
    before: Cost
    now: Cost

    @property
    def ratio(self) -> float:
        """Above 1 where it costs more now."""
        return self.now.least / self.before.least


class Player(Protocol):
    """Plays rounds."""

    def play(self, setup: str, work: str) -> dict[str, float]:
        """Play one round, and return what it cost."""
        ...


@dataclass(frozen=True)
class Side:
    """The code of one commit, and the places that it works on."""

    code: Path
    places: Mapping[str, Mapping[str, str | None]]

    def play(self, setup: str, work: str) -> dict[str, float]:
        """Play one round in a process of its own, and return what it cost."""
        return jobs.run(sys.executable, "bench.ours.cost", {**self.places[setup], "work": work}, code=self.code)


def compare(before: Player, now: Player, setups: list[str], works: list[str], rounds: int) -> Iterator[Comparison]:
    """Play all rounds, each side first in every second one."""
    for setup in setups:
        for work in works:
            found = Comparison(setup, work, Cost(), Cost())
            for number in range(rounds):
                sides: list[tuple[Player, Cost]] = [(before, found.before), (now, found.now)]
                for side, cost in sides if number % 2 else reversed(sides):
                    cost.add(side.play(setup, work))
            yield found


def export(commit: str, folder: Path) -> Path:
    """Write a commit's package and migrations into a folder, and return it."""
    listed = _git("ls-tree", "--name-only", commit).decode().split()
    packed = _git("archive", commit, *(name for name in ("aft", "migrations") if name in listed))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def make_side(code: Path, name: str, made: Places, folder: Path) -> Side:
    """Create the databases of one side, with its own tables."""
    found: dict[str, dict[str, str | None]] = {
        "sqlite": {"database": f"sqlite:///{folder / name}.db", "broker": None},
        "postgresql": {"database": made.database(name), "broker": made.broker},
    }
    for place in found.values():
        given = {**jobs.environment(code), "AFT_DATABASE_URL": str(place["database"])}
        upgrade = [sys.executable, "-m", "aft", "db", "upgrade"]
        subprocess.run(upgrade, cwd=folder, env=given, check=True, capture_output=True, timeout=120)
    return Side(code, found)


def _table(commit: str) -> Table:
    title = f"µs of CPU for each run, against {commit}; idle: for each second"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("set-up", "work", "Python before", "now", "database before", "now", "ratio"):
        table.add_column(heading, justify="left" if heading in ("set-up", "work") else "right")
    return table


def _row(found: Comparison) -> tuple[str, ...]:
    figures = (found.before.python, found.now.python, found.before.database, found.now.database)
    mark = "" if found.ratio <= TOLERANCE else "slower: "
    return (found.setup, found.work, *(f"{min(each):,.0f}" for each in figures), f"{mark}{found.ratio:.2f}")


def main() -> int:
    """Compare and print; return 1 if something became slower."""
    given = _arguments()
    console = Console()
    table, slower = _table(given.commit), False
    with places(given.database, given.broker) as made, tempfile.TemporaryDirectory(prefix="aft-against-") as name:
        folder = Path(name)
        before = make_side(export(given.commit, folder / "code"), "before", made, folder)
        now = make_side(ROOT, "now", made, folder)
        try:
            for found in compare(before, now, given.setups, given.only, given.rounds):
                table.add_row(*_row(found))
                slower |= found.ratio > TOLERANCE
                console.print(*_row(found), markup=False)
        finally:
            jobs.end_all()
    console.print(table)
    return int(slower)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Compare the cost of two commits.")
    parser.add_argument("commit", help="what the code here is compared with")
    parser.add_argument("--only", nargs="*", choices=WORK, default=list(WORK), metavar="WORK", help=str(WORK))
    parser.add_argument("--setups", nargs="*", choices=SETUPS, default=list(SETUPS), metavar="NAME", help=str(SETUPS))
    parser.add_argument("--rounds", type=int, default=5, help="of each kind of work (5)")
    parser.add_argument("--database", default=os.environ.get("AFT_BENCH_DATABASE", DATABASE))
    parser.add_argument("--broker", default=os.environ.get("AFT_BENCH_BROKER", BROKER))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
