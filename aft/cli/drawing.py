"""A run drawn for a terminal: one line for each thing that happened, oldest first.

::

    +0.000s ┌ ad_slot_approval  slot_id="slot-7"
    +0.012s │ ✗ approve_slot  CmsBusy: the CMS is publishing an edition
    +0.019s │   ◷ level 1, try 1: waits 200ms in cms.delay.200ms.v1
    +0.231s │ ✓ approve_slot  state="approved"
    +0.231s │   ▲ push undo_approve_slot
    +0.238s └ completed  "approved"

Values are cut to their line; what went wrong is wrapped beside the rail. A terminal that cannot show the symbols gets
plain ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from aft import durations
from aft.app.timeline import Happening, What
from aft.cli.output import shorten
from aft.runs.rows import RunRow
from aft.runs.states import Status

#: Characters of a value or a message that one line of the story shows.
MOST_DETAIL = 400
#: Columns that words get at the least, however narrow the terminal is.
LEAST_ROOM = 20

_STYLES = {
    Status.RUNNING: "blue",
    Status.WAITING: "cyan",
    Status.RECOVERING: "yellow",
    Status.COMPENSATING: "yellow",
    Status.SUSPENDED: "magenta",
    Status.PARKED: "bold red",
    Status.COMPLETED: "green",
    Status.COMPENSATED: "bright_yellow",
    Status.FAILED: "red",
    Status.CANCELLED: "magenta",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """How one kind of happening looks; ``under`` indents what belongs to the line above it."""

    symbol: str
    plain: str
    style: str
    under: bool = False


_MARKS = {
    What.STARTED: Mark("┌", "+", "bold"),
    What.ACTIVITY: Mark("✓", "*", "green"),
    What.PUSHED: Mark("▲", "^", "cyan", under=True),
    What.FAULT: Mark("✗", "x", "red"),
    What.WAIT: Mark("◷", "~", "yellow", under=True),
    What.FINAL: Mark("■", "#", "red", under=True),
    What.ABORTED: Mark("☠", "!", "bold red"),
    What.POPPED: Mark("▼", "v", "cyan"),
    What.SETTLED: Mark("▽", "v", "magenta"),
    What.UNDONE: Mark("↩", "<", "cyan"),
    What.DEED: Mark("☞", ">", "magenta"),
    What.PARKED: Mark("└", "+", "bold red"),
    What.ENDED: Mark("└", "+", "bold"),
}
#: The corners of the rail: happenings that stand on it, not beside it.
_CORNERS = (What.STARTED, What.PARKED, What.ENDED)


def status_style(status: Status) -> str:
    """Name the style in which every face of the command line shows a state."""
    return _STYLES[status]


def draw_timeline(console: Console, row: RunRow, story: list[Happening]) -> None:
    """Draw what happened to a run, and at the end how it stands."""
    offsets = [_spell_offset(happening.at - row.created_at) for happening in story]
    width = max(map(len, offsets), default=0)
    for happening, offset in zip(story, offsets, strict=True):
        rail = _rail(console, happening)
        room = console.width - width - 1 - rail.cell_len
        _draw(console, f"{offset:>{width}} ", rail, _words(row, happening, room))
    if not story or story[-1].what not in (What.PARKED, What.ENDED):
        still = Text(f"still {row.status.value}", status_style(row.status))
        _draw(console, " " * (width + 1), Text.assemble(("┆" if _fancy(console) else ":", "dim"), " "), still)


def _draw(console: Console, offset: str, rail: Text, words: Text) -> None:
    """Print one happening; what does not fit goes on below, beside the rail."""
    room = max(LEAST_ROOM, console.width - len(offset) - rail.cell_len)
    below = Text.assemble(_bar(console), " " * (rail.cell_len - 1))
    for number, part in enumerate(words.wrap(console, room)):
        part.rstrip()
        first = number == 0
        line = Text.assemble((offset if first else " " * len(offset), "dim"), rail if first else below, part)
        console.print(_showable(console, line), highlight=False, soft_wrap=True)


def _rail(console: Console, happening: Happening) -> Text:
    mark = _MARKS[happening.what]
    symbol = mark.symbol if _fancy(console) else mark.plain
    if happening.what in _CORNERS:
        return Text.assemble((symbol, "dim"), " ")
    return Text.assemble(_bar(console), "   " if mark.under else " ", (symbol, mark.style), " ")


def _words(row: RunRow, happening: Happening, room: int) -> Text:
    style = _MARKS[happening.what].style
    name, detail = happening.name, shorten(happening.detail, MOST_DETAIL)
    match happening.what:
        case What.STARTED | What.ACTIVITY:
            return _with_value(name, style, happening.detail, room)
        case What.ENDED:
            return _with_value(name, f"bold {status_style(row.status)}", happening.detail, room)
        case What.PUSHED:
            return Text(f"push {name}", style)
        case What.POPPED:
            return Text(f"pop {name}", style)
        case What.SETTLED:
            return Text(f"{name}: {detail} by hand", style)
        case What.UNDONE:
            return Text(f"{name} undone", style)
        case What.WAIT:
            return Text(_waiting(happening), style)
        case What.ABORTED:
            return Text(detail, style)
        case What.FINAL | What.PARKED:
            return Text.assemble((happening.what.value, style), f"  {detail}")
        case What.FAULT | What.DEED:
            return Text.assemble((name, style), f"  {detail}")


def _with_value(name: str, style: str, stored: str, room: int) -> Text:
    """Put a stored value behind a name, as much of it as the line has room for."""
    left = max(LEAST_ROOM, room - cell_len(name) - 2)
    return Text.assemble((name, style), (f"  {shorten(_spell_value(stored), left)}" if stored else "", "dim"))


def _spell_value(stored: str) -> str:
    """Spell a stored object as ``name="value"``; anything else stays as it is."""
    try:
        value = json.loads(stored)
    except ValueError:
        return stored
    if not isinstance(value, dict):
        return stored
    return ", ".join(f"{name}={json.dumps(part, ensure_ascii=False)}" for name, part in value.items())


def _waiting(happening: Happening) -> str:
    rung = happening.detail.partition(":")[0]
    if not happening.wait:
        return f"{rung}: at once"
    where = f"in {happening.queue}" if happening.queue else "by the timer"
    return f"{rung}: waits {durations.spell(happening.wait)} {where}"


def _spell_offset(offset: timedelta) -> str:
    """Spell the time since the start with what matters at its size: ``+0.250s``, ``+3m12s``, ``+2h03m``, ``+4d07h``."""
    seconds = max(0.0, offset.total_seconds())  # clocks of two machines may differ a little
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if seconds < 60:
        return f"+{seconds:.3f}s"
    if hours == 0:
        return f"+{minutes}m{int(seconds % 60):02}s"
    if hours < 24:
        return f"+{hours}h{minutes % 60:02}m"
    return f"+{hours // 24}d{hours % 24:02}h"


def _bar(console: Console) -> tuple[str, str]:
    return ("│" if _fancy(console) else "|", "dim")


def _fancy(console: Console) -> bool:
    return not console.options.ascii_only


def _showable(console: Console, text: Text) -> Text:
    """Spell what the terminal's encoding lacks as question marks: better than no story at all."""
    if _fancy(console):
        return text
    plain = text.plain.replace("…", "~").encode(console.encoding, "replace")
    return Text(plain.decode(console.encoding), spans=text.spans)
