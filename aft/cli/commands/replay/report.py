"""The report of a replay: each run as a timeline and whether it ended as declared, then all of them in a table."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from aft.app import Aft
from aft.app.views.timeline import StoryEventKind
from aft.cli.show.draw import draw_timeline
from aft.cli.show.output import Column, print_table
from aft.cli.show.styles import status_style
from aft.scenarios.check import find_differences, format_fault, names
from aft.scenarios.play import ScenarioOutcome
from aft.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Result:
    """A scenario that was played, and what differs from its declaration."""

    played: ScenarioOutcome
    wrong: list[str]

    @classmethod
    def of(cls, played: ScenarioOutcome) -> Result:
        """Judge what was played."""
        return cls(played, find_differences(played))


def show_result(console: Console, result: Result) -> None:
    """Draw one run, and print whether it ended as declared."""
    played = result.played
    console.print(Text.assemble((played.scenario.name, "bold"), f"  {played.scenario.title}"))
    for line in textwrap.wrap(played.scenario.shows, console.width):
        console.print(Text(line, "italic"))
    draw_timeline(console, played.row, played.story)
    console.print(_outcome(console, result))
    for line in result.wrong:
        console.print(Text(f"  {line}", "red"), soft_wrap=True)
    console.print()


def show_summary(console: Console, results: Sequence[Result], app: Aft) -> None:
    """Print all scenarios in a table, and the command that shows their runs."""
    columns = [
        Column("SCENARIO"),
        Column("RUN"),
        Column("TABLES", flexible=True),
        Column("TIME", right=True),
        Column(""),
    ]
    print_table(columns, [_summary_row(console, result) for result in results])
    wrong = sum(bool(result.wrong) for result in results)
    end = f"{wrong} of {len(results)} not as declared" if wrong else f"{len(results)} played, all as declared"
    console.print(Text(f"\n{end}", "bold red" if wrong else "bold green"))
    console.print(f"The runs are kept: {_looking_at(app)}", soft_wrap=True)


def _looking_at(app: Aft) -> str:
    """Return a command that shows the runs and can be typed as it is, in any directory."""
    program = "aft" if shutil.which("aft") else sys.argv[0]
    database = "" if app.store.file is None else f" --database {app.store.url}"
    return f"{program}{database} --namespace {app.namespace} runs list"


def show_list(scenarios: Sequence[Scenario]) -> None:
    """Print the scenarios that can be played."""
    columns = [Column("SCENARIO"), Column("TITLE", flexible=True), Column("SHOWS", flexible=True)]
    print_table(columns, [[scenario.name, scenario.title, scenario.shows] for scenario in scenarios])


def result_as_json(result: Result) -> dict[str, Any]:
    """Return a result for JSON."""
    played = result.played
    return {
        "scenario": played.scenario.name,
        "ok": not result.wrong,
        "wrong": result.wrong,
        "run_id": played.row.id,
        "run": played.row.status.value,
        "tables": played.tables,
        "done": played.done,
        "undone": names(played, StoryEventKind.POPPED),
        "faults": [format_fault(fault) for fault in played.faults],
        "sent": played.sent,
        "dropped": played.dropped,
        "taught": played.taught,
        "notices": played.notices,
        "killed": None if played.killed is None else {"pid": played.killed.pid, "signal": played.killed.signal},
        "seconds": round(played.seconds, 3),
    }


def scenario_as_json(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario for JSON."""
    return {"scenario": scenario.name, "title": scenario.title, "shows": scenario.shows}


def _outcome(console: Console, result: Result) -> Text:
    sign = _sign(console, ok=not result.wrong)
    if result.wrong:
        return Text.assemble(sign, (" not as declared", "bold red"))
    return Text.assemble(sign, f" as declared: run {result.played.row.status.value}, tables {result.played.tables}")


def _summary_row(console: Console, result: Result) -> list[str | Text]:
    played = result.played
    status = played.row.status
    return [
        played.scenario.name,
        Text(status.value, status_style(status)),
        played.tables,
        f"{played.seconds:.1f} s",
        _sign(console, ok=not result.wrong),
    ]


def _sign(console: Console, *, ok: bool) -> Text:
    if console.options.ascii_only:
        return Text("ok" if ok else "NOT OK", "green" if ok else "bold red")
    return Text("✓" if ok else "✗", "green" if ok else "bold red")
