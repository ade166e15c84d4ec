"""The long profile: ``python -m chaos [PART…] [--seed N] [--quick] [--again]``.

Each part's result is kept in ``docs/chaos/``, beside the report ``docs/chaos.md``: one that is there for this seed and
of the same code is not repeated, so a profile that was interrupted goes on where it was, on another machine, too. Those
of a quick profile stay in ``.chaos/``, like everything that a part leaves behind.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.report import write_report
from chaos.results import Context, Part, Result, digest

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = ROOT / "docs" / "chaos"
WORK = ROOT / ".chaos"
#: Broken promises that are shown at once; the report has more.
SHOWN = 10


def main() -> int:
    """Run parts, save their results and write the report; return 1 if a promise was broken or a figure missed."""
    codes, given = {part: digest(part) for part in parts()}, _arguments()
    console = Console()
    # As with Ctrl-C: whoever is asked to stop takes its servers with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    results = {part: _result(part, given, console) for part in given.parts or parts()}
    kept = {part: result for part in parts() if (result := _kept(part, given)) is not None}
    report = WORK / "quick.md" if given.quick else KEPT.with_suffix(".md")
    report.write_text(write_report(kept, codes))
    console.print(f"written: {report.relative_to(ROOT)}")
    return int(any(result.failed for result in results.values()))


def parts() -> list[str]:
    """Return the names of all parts."""
    return sorted(path.stem.removeprefix("part_") for path in HERE.glob("part_*.py"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Try to break aft's promises.")
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *parts()], help=", ".join(parts()))
    parser.add_argument("--seed", type=int, default=1, help="what is drawn is drawn from this (1)")
    parser.add_argument("--quick", action="store_true", help="a small version of each part")
    parser.add_argument("--again", action="store_true", help="also what there is a result for")
    return parser.parse_args()


def _place(part: str, *, quick: bool) -> Path:
    return (WORK / "quick" if quick else KEPT) / f"{part}.json"


def _kept(part: str, given: argparse.Namespace) -> Result | None:
    return Result.load(_place(part, quick=given.quick))


def _result(part: str, given: argparse.Namespace, console: Console) -> Result:
    result = _kept(part, given)
    if result is None or not result.is_of(given.seed, part) or given.again:
        result = _run(part, given, console)
        result.save(_place(part, quick=given.quick), part)
    faults = sum(result.faults.values())
    console.print(f"{part}: {result.runs:,} runs, {faults:,} faults, {len(result.violations)} broken promises")
    for violation in result.violations[:SHOWN]:
        console.print(f"  {violation}", style="red", markup=False)
    for missed in result.missed:
        console.print(f"  missed: {missed}", style="red", markup=False)
    return result


def _run(part: str, given: argparse.Namespace, console: Console) -> Result:
    module = cast(Part, importlib.import_module(f"chaos.part_{part}"))
    directory = WORK / f"{part}-{given.seed}"
    directory.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(part, total=1)

        def progress(done: float, total: float, text: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{part}: {text}")

        made = module.run(Context(given.seed, directory, given.quick, progress))
        result = replace(made, quick=given.quick)
    if result.failed:
        console.print(f"ledgers and logs: {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
