"""Follows a run until it has ended or is parked.

The rows are read again whenever a live event says that something happened to the run, and every second in any case:
events may be lost, and there are none beside a SQLite file. On a terminal the drawing is replaced in place; in a pipe
each new event of the story is one line.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from aft.app import Aft
from aft.app.views import story
from aft.app.views.story import Story
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.brokers.base import Subscription
from aft.cli.errors import one_line, printable
from aft.cli.show.draw import draw_story
from aft.cli.show.output import console, exactly, short_id
from aft.errors import BrokerError
from aft.ids import RunId
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.telemetry.live_events import runs_of

#: Seconds after which the rows are read again although no event came.
PATIENCE = 1.0

Show = Callable[[Story], None]


def follow(app: Aft, run_id: RunId, depth: int) -> Story:
    """Show a run's story, and its children's, as they go on; return when the run has ended or is parked."""
    out = console()
    with _events(app) as wait, _redrawing(out) if out.is_terminal else _line_by_line() as show:
        while True:
            with app.store.read() as connection:
                shown_story = story.read_story(connection, app.namespace, run_id, depth)
            show(shown_story)
            if shown_story.row.status.ended or shown_story.row.status is Status.PARKED:
                break
            wait({row.id for row in shown_story.runs})
    if out.is_terminal:
        draw_story(out, shown_story)
    return shown_story


@contextmanager
def _events(app: Aft) -> Iterator[Callable[[set[RunId]], None]]:
    """Yield a function that waits for the next event of some runs, at most PATIENCE seconds."""
    subscription = _subscribe(app)
    try:
        yield lambda run_ids: _wait(app, subscription, run_ids)
    finally:
        if subscription is not None:
            subscription.close()


def _subscribe(app: Aft) -> Subscription | None:
    try:
        return app.broker.subscribe(app.namespace)
    except BrokerError:
        return None  # polling every second is slower, and shows the same


def _wait(app: Aft, subscription: Subscription | None, run_ids: set[RunId]) -> None:
    until = app.clock.ticks() + PATIENCE
    while (left := until - app.clock.ticks()) > 0:
        if subscription is None:
            time.sleep(left)
            return
        body = subscription.receive(left)
        if body is None or runs_of(body) & run_ids:
            return


@contextmanager
def _redrawing(out: Console) -> Iterator[Show]:
    """Yield a function that draws the story in place of the last drawing."""
    with Live(console=out, auto_refresh=False, transient=True) as live:

        def show(shown_story: Story) -> None:
            drawn = _drawn(out, shown_story).split("\n")
            # What does not fit on the screen cannot be redrawn; its end is what is new.
            live.update(Text("\n").join(drawn[-(out.height - 1) :]), refresh=True)

        yield show


def _drawn(out: Console, shown_story: Story) -> Text:
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
    draw_story(pen, shown_story)
    return Text.from_ansi(paper.getvalue().rstrip("\n"))


@contextmanager
def _line_by_line() -> Iterator[Show]:
    """Yield a function that prints each event that it has not printed yet."""
    printed: set[tuple[object, ...]] = set()

    def show(shown_story: Story) -> None:
        for row, one in sorted(_flat(shown_story), key=lambda both: both[1].at):
            key = (row.id, one.at, one.what, one.path, one.name)
            if key not in printed:
                printed.add(key)
                click.echo(printable(line(row, one)))

    yield show


def _flat(shown_story: Story) -> Iterator[tuple[RunRow, StoryEvent]]:
    yield from ((shown_story.row, one) for one in shown_story.happenings)
    for child in shown_story.children.values():
        yield from _flat(child)


def line(row: RunRow, one: StoryEvent) -> str:
    """Format an event on one line; of a child, with its id."""
    where = f" [{one.path}]" if one.path else ""
    # Of a child the detail is its status now, not at that time.
    detail = f"  {one_line(one.detail)}" if one.detail and one.what is not StoryEventKind.CHILD else ""
    sent = f"  from {one.by}" if one.by else ""
    child = f"  run {short_id(row.id)}" if row.parent_id is not None else ""
    return f"{exactly(one.at)}  {one.what.value:<8}  {one.name}{where}{detail}{sent}{child}"
