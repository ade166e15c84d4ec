"""``aft replay``: the command."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.text import Text

from aft.cli.commands.replay.report import (
    Result,
    result_as_json,
    scenario_as_json,
    show_list,
    show_result,
    show_summary,
)
from aft.cli.errors import Failure
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import console as make_console
from aft.cli.show.output import json_option, print_json
from aft.scenarios.environment import EnvironmentFailed, ReplayEnvironment
from aft.scenarios.example import Example, ExampleError
from aft.scenarios.load import find_example, load_example
from aft.scenarios.play import Player, Tell
from aft.scenarios.scenario import Scenario, check_cues, choose, read_scenarios


class CannotPlay(click.ClickException):
    """Raised when what was named on the command line cannot be played."""

    exit_code = 2


@click.command()
@click.argument("named", metavar="EXAMPLE")
@click.option("--scenario", "wanted", multiple=True, metavar="NAME", help="Play only this one; may be repeated.")
@click.option("--list", "only_list", is_flag=True, help="List the scenarios; play none.")
@json_option
@click.pass_context
def replay(context: click.Context, named: str, wanted: tuple[str, ...], only_list: bool, as_json: bool) -> None:
    """Play the scenarios of EXAMPLE, a path or a name, and check how each ends.

    They are played on the configured database and broker, by a worker process of their own, in the namespace
    `<yours>-replay`. Exit status 1 if one does not end as its data file declares.
    """
    with _translate_errors():
        wrong = _play(context.obj, named, wanted, only_list, as_json)
    context.exit(1 if wrong else 0)


def _play(given: object, named: str, wanted: tuple[str, ...], only_list: bool, as_json: bool) -> bool:
    """Play or list what was named; return whether any scenario did not end as declared."""
    directory = find_example(named)
    chosen = choose(read_scenarios(directory), wanted)
    if only_list:
        print_json([scenario_as_json(scenario) for scenario in chosen]) if as_json else show_list(chosen)
        return False
    if isinstance(given, ConnectionOptions):
        _export_settings(given)
    console = Console(quiet=True) if as_json else make_console()
    example = load_example(directory)
    check_cues(example.flow, chosen)
    with ReplayEnvironment(directory) as stage:
        results = play_all(stage, example, chosen, console)
        if as_json:
            print_json([result_as_json(result) for result in results])
        else:
            show_summary(console, results, stage.app)
    return any(result.wrong for result in results)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of the player to those of the command line: a wrong name is a usage error."""
    try:
        yield
    except ExampleError as error:
        raise CannotPlay(str(error)) from error
    except EnvironmentFailed as error:
        raise Failure(str(error), error.details) from error


def play_all(
    stage: ReplayEnvironment, example: Example, scenarios: Sequence[Scenario], console: Console
) -> list[Result]:
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
    """Show the progress of a scenario on a terminal, and remove it afterwards; elsewhere show nothing."""
    with console.status(Text(name)) as status:
        yield lambda news: status.update(Text(f"{name}: {news}"))


def _export_settings(given: ConnectionOptions) -> None:
    """Export the options before the command to the environment, for the example and for the worker processes."""
    options = {"DATABASE_URL": given.database, "BROKER_URL": given.broker, "NAMESPACE": given.namespace}
    os.environ.update({f"AFT_{name}": value for name, value in options.items() if value is not None})
