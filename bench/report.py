"""Formats the results: a table in the terminal, JSON, and the tables of PERFORMANCE.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contests import Goal, Metric, Outcome, file_name

#: Between these lines of PERFORMANCE.md the figures stand.
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


@dataclass(frozen=True, slots=True)
class About:
    """The kind of a run, and the versions that it measured."""

    quick: bool
    rounds: int
    versions: dict[str, str]
    #: How busy the machine was with other things when it began: processes that wanted a processor.
    load: float


def number(value: float) -> str:
    """Format a figure with its significant digits."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


HEADINGS = ("", "median", "", "least–most", "aft is better by")


def lines(outcome: Outcome) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield entrant, median, unit, spread and ratio for each figure of a contest."""
    for metric in outcome.contest.metrics:
        best = outcome.best(metric)
        for entrant, figure in outcome.figures.get(metric.name, {}).items():
            low, high = figure.spread
            ratio = None if entrant.startswith("aft") else outcome.ratio(metric, entrant)
            told = "" if ratio is None else f"{number(ratio)}×"
            mark = " ◂" if entrant == best and len(outcome.figures[metric.name]) > 1 else ""
            spread = f"{number(low)}–{number(high)}" if len(figure.values) > 1 else "one round"
            yield entrant + mark, number(figure.median), metric.unit, spread, told
    for entrant, why in outcome.failures.items():
        yield entrant, "failed", why.splitlines()[-1][:120], "", ""


def goals(outcome: Outcome) -> Iterator[tuple[str, bool | None]]:
    """Yield each goal, and whether it was reached."""
    metrics = {metric.name: metric for metric in outcome.contest.metrics}
    for goal in outcome.contest.goals:
        yield _spell(goal, metrics[goal.metric]), outcome.reached(goal)


def _spell(goal: Goal, metric: Metric) -> str:
    if goal.rival is None:
        return f"{'≥' if metric.more else '≤'} {number(goal.limit)} {metric.unit}"
    if goal.limit < 1:
        # Of a limit a share is asked for: of what it does, or of what it takes.
        return f"≥ {goal.limit:.0%} of {goal.rival}" if metric.more else f"≤ {1 / goal.limit:g}× {goal.rival}"
    return f"≥ {goal.limit:g}× {goal.rival}{'' if goal.ours is None else f' by {goal.ours}'}"


def show(console: Console, outcome: Outcome) -> None:
    """Print a contest's table."""
    table = Table(title=outcome.contest.title, title_justify="left", title_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for line in lines(outcome):
        table.add_row(*line)
    console.print(table)
    for text, reached in goals(outcome):
        console.print(f"  {_mark(reached)} {text}", style="green" if reached else "yellow", markup=False)


def _mark(reached: bool | None) -> str:
    return {True: "reached", False: "missed ", None: "not measured"}[reached]


def as_json(outcomes: Sequence[Outcome], about: About) -> dict[str, Any]:
    """Return everything that was measured, with every round."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": about.quick,
        "rounds": about.rounds,
        "processors": os.cpu_count(),
        "load": about.load,
        "versions": about.versions,
        "contests": [_contest(outcome) for outcome in outcomes],
    }


def _contest(outcome: Outcome) -> dict[str, Any]:
    contest = outcome.contest
    return {
        "workload": contest.workload,
        "title": contest.title,
        "metrics": [
            {
                "name": metric.name,
                "unit": metric.unit,
                "more": metric.more,
                "figures": {
                    entrant: {
                        "median": figure.median,
                        "values": figure.values,
                        "ratio": None if entrant.startswith("aft") else outcome.ratio(metric, entrant),
                    }
                    for entrant, figure in outcome.figures.get(metric.name, {}).items()
                },
            }
            for metric in contest.metrics
        ],
        "goals": [{"goal": text, "reached": reached} for text, reached in goals(outcome)],
        "failures": outcome.failures,
        "seconds": outcome.seconds,
    }


def as_markdown(outcomes: Sequence[Outcome], about: About, pictures: Path, page: Path) -> str:
    """Return the tables of PERFORMANCE.md."""
    kind = "quick" if about.quick else "full"
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    parts = [
        f"A {kind} run of {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} processors: {versions}.",
        f"Medians of {about.rounds} rounds with the least and the most; load {about.load:.1f} at the beginning.",
        "",
    ]
    for outcome in outcomes:
        parts += [f"### {outcome.contest.title[0].upper()}{outcome.contest.title[1:]}", ""]
        parts += [f"| {' | '.join(HEADINGS)} |", "| --- | ---: | --- | ---: | ---: |"]
        parts += [f"| {' | '.join(line)} |" for line in lines(outcome)]
        told = [f"{text}: **{_mark(reached).strip()}**" for text, reached in goals(outcome)]
        parts += ["", *(["Wanted: " + "; ".join(told) + ".", ""] if told else [])]
        parts += [outcome.contest.note, ""] if outcome.contest.note else []
        picture = pictures / file_name(outcome.contest.title)
        if picture.exists():
            parts += [f"![{outcome.contest.title}]({picture.relative_to(page.parent)})", ""]
    return "\n".join(parts)


def put_into(page: Path, text: str) -> None:
    """Replace the tables between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def save(outcomes: Sequence[Outcome], about: About, to: Path) -> Path:
    """Write the JSON."""
    to.mkdir(parents=True, exist_ok=True)
    path = to / "latest.json"
    path.write_text(json.dumps(as_json(outcomes, about), indent=1, ensure_ascii=False) + "\n")
    return path
