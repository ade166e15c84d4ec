"""Watching a run until it has ended or is parked.

The rows are read again whenever an event says that something happened to the run, and every second in any case: events
may be lost. On a terminal the drawing is renewed in place; in a pipe each new happening is one line.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from aft.app import Aft, timeline
from aft.app.timeline import Happening, What
from aft.brokers.base import Subscription
from aft.cli.drawing import draw_timeline
from aft.cli.errors import one_line, printable
from aft.cli.output import console, exactly
from aft.errors import BrokerError
from aft.ids import RunId
from aft.runs.rows import RunRow
from aft.runs.states import Status

#: Seconds after which the rows are read again although no event came.
PATIENCE = 1.0

Show = Callable[[RunRow, list[Happening]], None]


def follow(app: Aft, run_id: RunId) -> None:
    """Show a run's story as it goes on; returns when the run has ended or is parked."""
    out = console()
    with _events(app) as wait, _redrawing(out) if out.is_terminal else _line_by_line() as show:
        while True:
            with app.store.read() as connection:
                row, story = timeline.read(connection, app.namespace, run_id)
            show(row, story)
            if row.status.ended or row.status is Status.PARKED:
                break
            wait(run_id)
    if out.is_terminal:
        draw_timeline(out, row, story)


@contextmanager
def _events(app: Aft) -> Iterator[Callable[[RunId], None]]:
    """Give what waits for the next event of a run, at most for our patience."""
    subscription = _subscribe(app)
    try:
        yield lambda run_id: _wait(app, subscription, run_id)
    finally:
        if subscription is not None:
            subscription.close()


def _subscribe(app: Aft) -> Subscription | None:
    try:
        return app.broker.subscribe(app.namespace)
    except BrokerError:
        return None  # looking every second is slower, and shows the same


def _wait(app: Aft, subscription: Subscription | None, run_id: RunId) -> None:
    until = app.clock.ticks() + PATIENCE
    while (left := until - app.clock.ticks()) > 0:
        if subscription is None:
            time.sleep(left)
            return
        body = subscription.receive(left)
        if body is None or _is_about(body, run_id):
            return


def _is_about(body: bytes, run_id: RunId) -> bool:
    try:
        event = json.loads(body)
    except ValueError:
        return False
    return isinstance(event, dict) and event.get("run") == run_id


@contextmanager
def _redrawing(out: Console) -> Iterator[Show]:
    """Give what draws the story in place of the last drawing."""
    with Live(console=out, auto_refresh=False, transient=True) as live:

        def show(row: RunRow, story: list[Happening]) -> None:
            drawn = _drawn(out, row, story).split("\n")
            # What does not fit on the screen cannot be renewed; its end is what is new.
            live.update(Text("\n").join(drawn[-(out.height - 1) :]), refresh=True)

        yield show


def _drawn(out: Console, row: RunRow, story: list[Happening]) -> Text:
    paper = io.StringIO()
    pen = Console(
        file=paper,
        width=out.width,
        force_terminal=True,
        color_system=None if out.no_color else "256",
        highlight=False,
        markup=False,
        emoji=False,
    )
    draw_timeline(pen, row, story)
    return Text.from_ansi(paper.getvalue().rstrip("\n"))


@contextmanager
def _line_by_line() -> Iterator[Show]:
    """Give what prints each happening that it has not printed yet."""
    printed: set[tuple[object, ...]] = set()

    def show(row: RunRow, story: list[Happening]) -> None:
        for one in story:
            key = (one.at, one.what, one.path, one.name)
            if key not in printed:
                printed.add(key)
                click.echo(line(one))

    yield show


def line(one: Happening) -> str:
    """Spell a happening on one line."""
    where = f" [{one.path}]" if one.path else ""
    # Of a pushed frame the detail is its state now, which is no news of then.
    said = f"  {one_line(one.detail)}" if one.detail and one.what is not What.PUSHED else ""
    return f"{exactly(one.at)}  {one.what.value:<8}  {printable(one.name)}{where}{said}"
