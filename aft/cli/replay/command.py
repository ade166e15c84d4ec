"""``aft replay``: the command."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.text import Text

from aft.cli.given import Given
from aft.cli.output import console as make_console
from aft.cli.output import json_option, print_json
from aft.cli.replay.example import Example
from aft.cli.replay.load import find, load
from aft.cli.replay.play import Player, Tell
from aft.cli.replay.report import Result, result_as_json, scenario_as_json, show_list, show_result, show_summary
from aft.cli.replay.scenario import Scenario, check_cues, choose, read_scenarios
from aft.cli.replay.stage import Stage


@click.command()
@click.argument("named", metavar="EXAMPLE")
@click.option("--scenario", "wanted", multiple=True, metavar="NAME", help="Play only this one; may be repeated.")
@click.option("--list", "only_list", is_flag=True, help="Say what can be played; play nothing.")
@json_option
@click.pass_context
def replay(context: click.Context, named: str, wanted: tuple[str, ...], only_list: bool, as_json: bool) -> None:
    """Play the scenarios of EXAMPLE, a path or a name, and check how each ends.

    They are played on the configured database and broker, by a worker process of their own, in the namespace
    `<yours>-replay`. Exit status 1 if one does not end as its data file declares.
    """
    directory = find(named)
    chosen = choose(read_scenarios(directory), wanted)
    if only_list:
        print_json([scenario_as_json(scenario) for scenario in chosen]) if as_json else show_list(chosen)
        return
    if isinstance(context.obj, Given):
        _settle(context.obj)
    console = Console(quiet=True) if as_json else make_console()
    example = load(directory)
    check_cues(example.flow, chosen)
    with Stage(directory) as stage:
        results = play_all(stage, example, chosen, console)
        if as_json:
            print_json([result_as_json(result) for result in results])
        else:
            show_summary(console, results, stage.app)
    context.exit(1 if any(result.wrong for result in results) else 0)


def play_all(stage: Stage, example: Example, scenarios: Sequence[Scenario], console: Console) -> list[Result]:
    """Play one scenario after the other, drawing each when it has ended. Raises AftError, ExampleError."""
    results: list[Result] = []
    with _progress(console, "starting a worker"):
        stage.open()
        example.prepare()
    player = Player(stage, example, secrets.token_hex(3))
    for scenario in scenarios:
        with _progress(console, scenario.name) as tell:
            results.append(Result.of(player.play(scenario, tell)))
        show_result(console, results[-1])
    return results


@contextmanager
def _progress(console: Console, name: str) -> Iterator[Tell]:
    """Show on a terminal what goes on in a scenario, and nothing of it afterwards; elsewhere nothing at all."""
    with console.status(Text(name)) as status:
        yield lambda news: status.update(Text(f"{name}: {news}"))


def _settle(given: Given) -> None:
    """Let what stands before the command hold for the example and for the worker processes, too."""
    options = {"DATABASE_URL": given.database, "BROKER_URL": given.broker, "NAMESPACE": given.namespace}
    os.environ.update({f"AFT_{name}": value for name, value in options.items() if value is not None})
