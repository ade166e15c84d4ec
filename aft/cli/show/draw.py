"""A run drawn for a terminal: one line for each thing that happened, oldest first.

::

    +0.000s ┌ ad_slot_approval  slot_id="slot-7"
    +0.012s │ ✗ approve_slot  CmsBusy: the CMS is publishing an edition
    +0.019s │   ◷ level 1, try 1: waits 200ms in cms.delay.200ms.v2
    +0.231s │ ✓ approve_slot  state="approved"
    +0.231s │   ▲ push undo_approve_slot
    +0.238s └ completed  "approved"

What belongs together is indented: calls side by side, savepoints that were undone, children as stories of their own::

    +0.000s ┌ journey  to="Rome"
    +0.004s │ ┬ side by side  1 of 2
    +0.004s │ │ ✓ book #1  "flight"
    +0.005s │ │ ┌ approval  what="hotel"  run 5f0d7bc1a2e4
    +0.009s │ │ │ ◔ waits for signal 'verdict' until 14:03:20, since 13:03:20
            │ │ ┆ still waiting
            ┆ still waiting

Values are cut to their line; what went wrong is wrapped beside the rail. A terminal that cannot show the symbols gets
plain ones.
"""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console
from rich.text import Text

from aft.app.views.story import Story
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.cli.show.layout import FoldedCalls, Group, Line, PresentStatus, UndoneBelow, lay_out
from aft.cli.show.output import showable, tame
from aft.cli.show.sentences import LEAST_ROOM, format_event
from aft.cli.show.styles import MARKS, status_style
from aft.runs.run_rows import RunRow
from aft.runs.states import Status

#: The corners of the rail: events that are drawn on it, not beside it.
_CORNERS = (StoryEventKind.STARTED, StoryEventKind.PARKED, StoryEventKind.ENDED)


def draw_timeline(console: Console, row: RunRow, happenings: list[StoryEvent]) -> None:
    """Draw what happened to a run alone, and at the end its status."""
    draw_story(console, Story(row, happenings, {}))


def draw_story(console: Console, story: Story, *, fold: bool = True) -> None:
    """Draw what happened to a run and to its children, and at the end its status."""
    lines = list(lay_out(story, fold=fold))
    offsets = [_offset(line, story.row) for line in lines]
    width = max(map(len, offsets))
    for line, offset in zip(lines, offsets, strict=True):
        rail = _rail(console, line)
        room = console.width - width - 1 - rail.cell_len
        _draw(console, f"{offset:>{width}} ", rail, _words(line, room), line.rails)


def _draw(console: Console, offset: str, rail: Text, words: Text, rails: int) -> None:
    """Print one line of the story; what does not fit goes on below, beside the rails."""
    room = max(LEAST_ROOM, console.width - len(offset) - rail.cell_len)
    bars = _bars(console, rails + 1)
    below = Text.assemble(bars, " " * (rail.cell_len - bars.cell_len))
    # Redacted as a whole: half a card number, on a line of its own, could not be recognised.
    for number, part in enumerate(tame(words).wrap(console, room)):
        part.rstrip()
        first = number == 0
        line = Text.assemble((offset if first else " " * len(offset), "dim"), rail if first else below, part)
        console.print(showable(console, line), highlight=False, soft_wrap=True)


def _rail(console: Console, line: Line) -> Text:
    """Draw what is left of the words: the rails of enclosing blocks, and the line's own mark."""
    what = line.what
    if isinstance(what, PresentStatus | UndoneBelow):
        return Text.assemble(_bars(console, line.rails), (_symbol(console, "┆", ":"), "dim"), " ")
    if isinstance(what, Group):
        return Text.assemble(_bars(console, line.rails + 1), (_symbol(console, "┬", "+"), "dim"), " ")
    mark = MARKS[StoryEventKind.ACTIVITY if isinstance(what, FoldedCalls) else what.what]
    symbol = _symbol(console, mark.symbol, mark.plain)
    if isinstance(what, StoryEvent) and what.what in _CORNERS:
        return Text.assemble(_bars(console, line.rails), (symbol, "dim"), " ")
    return Text.assemble(_bars(console, line.rails + 1), "  " if mark.under else "", (symbol, mark.style), " ")


def _words(line: Line, room: int) -> Text:
    what = line.what
    if isinstance(what, PresentStatus):
        nobody = line.row.status is Status.RUNNING and line.row.worker_id is None
        return Text(
            f"still {line.row.status.value}{': waits for a worker' if nobody else ''}", status_style(line.row.status)
        )
    if isinstance(what, UndoneBelow):
        return Text("undone below", "dim")
    if isinstance(what, Group):
        return Text.assemble((what.title, "bold"), (f"  {what.progress}" if what.progress else "", "cyan"))
    if isinstance(what, FoldedCalls):
        return Text.assemble((what.name, MARKS[StoryEventKind.ACTIVITY].style), f"  {what.count} more completed")
    return format_event(line.row, what, room, line.number)


def _offset(line: Line, first: RunRow) -> str:
    return "" if isinstance(line.what, PresentStatus | UndoneBelow) else _format_offset(line.what.at - first.created_at)


def _format_offset(offset: timedelta) -> str:
    """Format the time since the start, as precise as its size needs: ``+0.250s``, ``+3m12s``, ``+2h03m``."""
    seconds = max(0.0, offset.total_seconds())  # clocks of two machines may differ a little
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if seconds < 60:
        return f"+{seconds:.3f}s"
    if hours == 0:
        return f"+{minutes}m{int(seconds % 60):02}s"
    if hours < 24:
        return f"+{hours}h{minutes % 60:02}m"
    return f"+{hours // 24}d{hours % 24:02}h"


def _bars(console: Console, count: int) -> Text:
    return Text((_symbol(console, "│", "|") + " ") * count, "dim")


def _symbol(console: Console, symbol: str, plain: str) -> str:
    return symbol if _fancy(console) else plain


def _fancy(console: Console) -> bool:
    return not console.options.ascii_only
