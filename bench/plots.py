"""The figures as pictures: ``python -m bench.plots latest.json DIR`` draws an SVG for each contest that has rivals.

Runs in an environment of its own, which has matplotlib and nothing of aft.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
# The same figures make the same file, so that a page in version control changes only when they do.
matplotlib.rcParams["svg.hashsalt"] = "aft"

from matplotlib import pyplot as plt  # noqa: E402 - the way of drawing is chosen before

from bench.contests import file_name  # noqa: E402

#: aft, peers, limits.
COLOURS = ("#1f6feb", "#8b949e", "#d29922")
_LENGTH = re.compile(r"at (\d+)")


def colour(entrant: str) -> str:
    """Return the colour of an entrant: aft, a peer or a limit."""
    return COLOURS[0 if entrant.startswith("aft") else 2 if entrant.startswith("limit") else 1]


def draw_bars(title: str, metric: dict[str, Any], path: Path) -> None:
    """Draw one bar for each entrant, with the least and the greatest value of its rounds."""
    figures = dict(reversed(metric["figures"].items()))
    medians = [figure["median"] for figure in figures.values()]
    below = [figure["median"] - min(figure["values"]) for figure in figures.values()]
    above = [max(figure["values"]) - figure["median"] for figure in figures.values()]
    picture, axes = plt.subplots(figsize=(8, 0.8 + 0.4 * len(figures)), layout="constrained")
    bars = axes.barh(
        list(figures), medians, xerr=[below, above], color=[colour(name) for name in figures], ecolor="#57606a"
    )
    axes.bar_label(bars, [f" {median:,.4g}" for median in medians], padding=4)
    axes.margins(x=0.15)
    axes.set_title(f"{title}: {metric['unit']}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    _save(picture, path)


def draw_growth(title: str, metrics: list[dict[str, Any]], path: Path) -> None:
    """Plot the cost of an activity over the length of the journal."""
    found = [(int(match[1]), metric) for metric in metrics if (match := _LENGTH.fullmatch(metric["name"]))]
    lengths = [length for length, _ in found]
    costs = [next(iter(metric["figures"].values()))["median"] for _, metric in found]
    picture, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    axes.plot(lengths, costs, "o-", color=COLOURS[0])
    axes.set_xscale("log")
    axes.set_ylim(0, 1.2 * max(costs))
    axes.set_xlabel("rows in the journal")
    axes.set_title(f"{title}: µs for each activity", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    _save(picture, path)


def draw(contest: dict[str, Any], to: Path) -> Path | None:
    """Draw a contest, if there is something to compare."""
    path = to / file_name(contest["title"])
    metrics = [metric for metric in contest["metrics"] if metric["figures"]]
    if any(_LENGTH.fullmatch(metric["name"]) for metric in metrics):
        draw_growth(contest["title"], metrics, path)
    elif metrics and len(metrics[0]["figures"]) > 1:
        draw_bars(contest["title"], metrics[0], path)
    else:
        return None
    return path


def _save(picture: Any, path: Path) -> None:
    picture.savefig(path, metadata={"Date": None})
    plt.close(picture)


def main() -> None:
    """Draw all contests of a file."""
    found = json.loads(Path(sys.argv[1]).read_text())
    to = Path(sys.argv[2])
    to.mkdir(parents=True, exist_ok=True)
    for contest in found["contests"]:
        draw(contest, to)


if __name__ == "__main__":
    main()
