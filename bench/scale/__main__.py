"""Reports how far aft scales: ``python -m bench.scale [--seed N] [--costs FILE] [--out FOLDER]``.

Prints the report. With ``--out`` it also writes ``report.json`` and the plots there. The same costs and seed give the
same figures. Needs no service: ``bench.scale.measure`` is what measures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from bench.scale import costs, report
from bench.scale.findings import encode, find
from bench.scale.plots import plots


def main() -> None:
    """Make the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=Path, default=costs.FILE)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    measured = costs.load(given.costs)
    with Console(stderr=True).status("…") as status:
        found = find(measured, given.seed, lambda what: status.update(f"{what} …"))
    report.show(Console(), measured, found)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "report.json").write_text(encode(measured, found), "utf-8")
        for name, text in plots(found).items():
            (given.out / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
