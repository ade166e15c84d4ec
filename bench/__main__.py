"""Measure aft beside its peers: ``python -m bench [--quick] [--only NAME …] [--rounds N] [--out DIR]``.

Workloads are named by their modules in ``bench/workloads``. Databases and a vhost are made for the run and removed at
its end, also after Ctrl-C; ``AFT_BENCH_DATABASE`` and ``AFT_BENCH_BROKER`` name other servers than this machine's.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import aft
from bench import jobs, report
from bench.contests import Contest, Outcome, play, rounds_of
from bench.environments import PEERS, NotInstalled, install, install_peer, version
from bench.jobs import ROOT
from bench.places import BROKER, DATABASE, Places, places
from bench.setting import Setting

#: Workloads, in the order in which they are played.
WORKLOADS = (
    "limits",
    "happy",
    "faults",
    "saga",
    "lateness",
    "growth",
    "submit",
    "costs",
    "distance",
    "volume",
    "idle",
    "startup",
    "takeover",
    "processes",
    "pending",
    "fleets",
)

#: Seconds after which a quick run is in a hurry.
QUICK = 140.0


def main() -> int:
    """Measure, save and report; return 1 if an entrant failed."""
    given = _arguments()
    console = Console()
    # As with Ctrl-C: whoever is asked to stop removes what it made.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    peers = _peers(given.peers, console)
    # aft takes settings from variables that begin so, and these are none.
    for name in ("AFT_BENCH_DATABASE", "AFT_BENCH_BROKER"):
        os.environ.pop(name, None)
    load = _load(console)
    outcomes: list[Outcome] = []
    try:
        with places(given.database, given.broker) as made:
            about = report.About(given.quick, given.rounds, _versions(made, peers), load)
            setting = Setting(made, given.quick, peers)
            _play_all(_contests(setting, given.only, given.match), given.rounds, console, outcomes, given.seconds)
    except KeyboardInterrupt:
        console.print("interrupted", style="yellow")
    finally:
        jobs.end_all()
    if outcomes:
        _write(given, about, outcomes, console)
    return int(any(outcome.failures for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure aft beside its peers.")
    parser.add_argument("--quick", action="store_true", help="a small version of each workload")
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=WORKLOADS, metavar="NAME", help=str(WORKLOADS))
    parser.add_argument("--match", default="", help="only contests whose title has this in it")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, metavar="NAME", help=str(PEERS))
    parser.add_argument("--rounds", type=int, default=3, help="of each contest (3)")
    parser.add_argument("--seconds", type=float, help="after which contests have one round (quick: 140; else never)")
    parser.add_argument("--out", type=Path, help="where latest.json and plots go (docs/bench; .bench/quick)")
    parser.add_argument("--database", default=os.environ.get("AFT_BENCH_DATABASE", DATABASE))
    parser.add_argument("--broker", default=os.environ.get("AFT_BENCH_BROKER", BROKER))
    given = parser.parse_args()
    if given.seconds is None:
        given.seconds = QUICK if given.quick else math.inf
    return given


def _peers(names: Sequence[str], console: Console) -> dict[str, Path]:
    """Install the requested peers; one that cannot be installed is left out."""
    found = {}
    with console.status("") as status:
        for name in names:
            status.update(f"installing {name}")
            try:
                found[name] = install_peer(name)
            except NotInstalled as error:
                console.print(f"{name} does not take part: {error}", style="yellow", markup=False)
    return found


def _contests(setting: Setting, only: Sequence[str], match: str) -> list[Contest]:
    modules = [importlib.import_module(f"bench.workloads.{name}") for name in WORKLOADS if name in only]
    return [contest for module in modules for contest in module.contests(setting) if match in contest.title]


def _play_all(
    contests: Sequence[Contest], rounds: int, console: Console, outcomes: list[Outcome], seconds: float
) -> None:
    """Play contests one after the other; those that begin after ``seconds`` have one round."""
    until = time.monotonic() + seconds
    total = sum(len(contest.entrants) * rounds_of(contest, rounds) for contest in contests)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        for contest in contests:
            done = -1

            def turn(name: str, title: str = contest.title) -> None:
                nonlocal done
                done += 1
                bar.update(task, description=f"{title}: {name}", advance=1 if done else 0)

            outcomes.append(play(contest, 1 if time.monotonic() > until else rounds, turn))
            bar.update(task, advance=1)
            report.show(console, outcomes[-1])


def _load(console: Console) -> float:
    """Return the load of the machine, and warn if it is too busy for ratios to limits to hold."""
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) / 2:
        console.print(f"the machine is busy (load {load:.1f}): these figures will not carry over", style="yellow")
    return load


def _versions(made: Places, peers: Iterable[str]) -> dict[str, str]:
    own = {"aft": aft.__version__, "Python": platform.python_version()}
    return {**own, **made.versions(), **{name: version(name) for name in peers}}


def _write(given: argparse.Namespace, about: report.About, outcomes: Sequence[Outcome], console: Console) -> None:
    """Save the figures; PERFORMANCE.md is rewritten by a full run of all workloads only."""
    whole = given.out is None and not given.quick and tuple(given.only) == WORKLOADS and not given.match
    out = given.out or (ROOT / "docs" / "bench" if whole else ROOT / ".bench" / "quick")
    figures = report.save(outcomes, about, out)
    console.print(f"written: {figures}", markup=False)
    _draw(figures, out, console)
    if whole:
        page = ROOT / "PERFORMANCE.md"
        report.put_into(page, report.as_markdown(outcomes, about, out, page))


def _draw(figures: Path, out: Path, console: Console) -> None:
    """Draw the plots; if that fails, print why."""
    try:
        python = install("plots", ROOT / "bench" / "plots.txt")
        command = [str(python), "-m", "bench.plots", str(figures), str(out)]
        subprocess.run(command, cwd=ROOT, env=jobs.environment(), check=True, timeout=120)
    except (NotInstalled, subprocess.SubprocessError) as error:
        console.print(f"no plots: {error}", style="yellow", markup=False)


if __name__ == "__main__":
    sys.exit(main())
