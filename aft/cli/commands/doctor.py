"""``aft doctor``: checks the installation, and says what to do about each problem."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from aft.app import Aft
from aft.app.views.health import Health, WorkerStatus
from aft.cli.application import opened
from aft.cli.commands.checks import Check, CheckState, Examination, Setting, format_age, problem, settings_of
from aft.cli.errors import one_line
from aft.cli.modules import load
from aft.cli.options import ConnectionOptions
from aft.cli.show.documents import document
from aft.cli.show.output import Column, console, json_option, moment, print_json, print_table, tame
from aft.errors import ConfigError

MARKS = {
    CheckState.OK: Text("✓", "green"),
    CheckState.WARNING: Text("!", "yellow"),
    CheckState.PROBLEM: Text("✗", "bold red"),
}

#: What ``--json`` prints of a worker, and of what waits.
WORKER = """
id host pid roles flows started_at heartbeat_at expires_at alive abandoned_attempts=hanging.count
"""
COUNTS = """
unfinished unserved parked=parked_count undecided_faults=undecided.count unpublished_messages=unpublished.count
stalled_runs=stalled.count overdue_runs=overdue.count orphaned_runs=orphans late_effects
stuck_exlets=stuck_exlets.count notices_unheard=unheard.count notices_given_up=given_up
quarantined_messages=quarantined
"""


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@json_option
@click.pass_context
def doctor(context: click.Context, modules: tuple[str, ...], as_json: bool) -> None:
    """Check the installation, and say what to do about each problem.

    Checks settings, database, broker, queues, workers and backlogs; with MODULE also the flows and waits that
    it declares. Changes nothing. Exit status 1 if something is wrong.
    """
    given: ConnectionOptions = context.obj
    loaded = load(modules)
    try:
        with opened(given, loaded) as app:
            settings = settings_of(app, given, loaded.app_name)
            found = _examine_for_programs(app, settings) if as_json else _examine(app, settings)
    except ConfigError as error:
        found = [problem("settings", str(error), "correct it; nothing else can be checked until then")]
        if as_json:
            print_json(shape([], found, None, timedelta(0)))
        else:
            _print(console(), found[0])
    context.exit(int(any(check.state is CheckState.PROBLEM for check in found)))


def _examine_for_programs(app: Aft, settings: list[Setting]) -> list[Check]:
    examination = Examination(app)
    found = list(examination.checks())
    print_json(shape(settings, found, examination.health, app.settings.lease))
    return found


def _examine(app: Aft, settings: list[Setting]) -> list[Check]:
    """Print each check when it is done: one that waits for a server that does not answer takes its time."""
    print_table(
        [Column("SETTING"), Column("VALUE", flexible=True), Column("FROM", flexible=True)],
        [[setting.name, setting.value, setting.source] for setting in settings],
    )
    out = console()
    out.print()
    examination = Examination(app)
    found = []
    for check in examination.checks():
        _print(out, check)
        found.append(check)
    if examination.health is not None and (examination.health.workers or examination.health.dead):
        out.print()
        _print_workers(examination.health, app.settings.lease)
    out.print()
    out.print(_summary(found))
    return found


def _print(out: Console, check: Check) -> None:
    """Print a check: its mark, its name, and beside them what it says and what to do."""
    head = Text.assemble(MARKS[check.state], f" {check.name:<10}  ")
    lines = _lines(out, check.says, out.width - head.cell_len)
    if check.advice:
        advice = _lines(out, check.advice, out.width - head.cell_len - 2)
        lines += [Text("→ " if number == 0 else "  ") + line for number, line in enumerate(advice)]
    with out.capture() as drawn:
        for number, line in enumerate(lines):
            out.print(tame((head if number == 0 else Text(" " * head.cell_len)) + line), soft_wrap=True)
    # Click finds a way to show the marks where the terminal's encoding has none for them.
    click.echo(drawn.get(), nl=False)


def _lines(out: Console, text: str, width: int) -> list[Text]:
    whole = Text(one_line(text))
    # In a pipe a line is never broken: it may be searched.
    return list(whole.wrap(out, max(width, 20))) if out.is_terminal else [whole]


def _print_workers(health: Health, lease: timedelta) -> None:
    print_table(
        [
            Column("WORKER"),
            Column("PID", right=True),
            Column("ROLES", flexible=True),
            Column("SINCE UTC"),
            Column("LAST SEEN"),
            Column("FLOWS", flexible=True),
        ],
        [
            [
                worker.host,
                str(worker.pid),
                ",".join(worker.roles) or "(starts runs only)",
                moment(worker.started_at),
                _sign_of_life(worker, health, lease),
                ", ".join(worker.flows),
            ]
            for worker in (*health.workers, *health.dead)
        ],
    )


def _sign_of_life(worker: WorkerStatus, health: Health, lease: timedelta) -> str:
    if worker.dead:
        return f"dead; heartbeat {format_age(health.at, worker.heartbeat(lease))} ago"
    return "now" if worker.watched else f"heartbeat {format_age(health.at, worker.heartbeat(lease))} ago"


def _summary(found: list[Check]) -> str:
    wrong = sum(check.state is CheckState.PROBLEM for check in found)
    if wrong:
        return f"{wrong} problem{'' if wrong == 1 else 's'} found."
    return "No problems found."


def shape(settings: list[Setting], found: list[Check], health: Health | None, lease: timedelta) -> dict[str, Any]:
    """Return what is printed as JSON."""
    return {
        "ok": all(check.state is not CheckState.PROBLEM for check in found),
        "settings": [document(setting, "name value source") for setting in settings],
        "checks": [document(check, "name state says advice") for check in found],
        "workers": [_worker(worker, lease) for worker in ((*health.workers, *health.dead) if health else ())],
        "counts": None if health is None else document(health, COUNTS),
    }


def _worker(worker: WorkerStatus, lease: timedelta) -> dict[str, Any]:
    return document(worker, WORKER, heartbeat_at=worker.heartbeat(lease), alive=not worker.dead)
