"""How is each thing that happened to a run said, on one line?"""

from __future__ import annotations

import json
from typing import Any, assert_never

from rich.cells import cell_len
from rich.text import Text

from aft import durations
from aft.app.timeline import Happening, What
from aft.cli.marks import MARKS, status_style
from aft.cli.output import format_named, moment, short_id, shorten
from aft.cli.waits import spell_between, spell_wait
from aft.codec import tagged_to_json
from aft.compensation.stack import FrameState
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import WaitKind

#: Characters of a value or a message that one line of the story shows.
MOST_DETAIL = 400
#: Columns that words get at the least, however narrow the terminal is.
LEAST_ROOM = 20


def word(row: RunRow, happening: Happening, room: int, number: str = "") -> Text:
    """Say what happened, in about so many columns; ``number`` tells which of several calls it was."""
    style = MARKS[happening.what].style
    name, detail = f"{happening.name}{f' #{number}' if number else ''}", shorten(happening.detail, MOST_DETAIL)
    match happening.what:
        case What.STARTED:
            return _started(row, happening, room)
        case What.ACTIVITY:
            return _with_value(name, style, happening.detail, room)
        case What.ENDED:
            return _with_value(name, f"bold {status_style(row.status)}", happening.detail, room)
        case What.PUSHED:
            return Text(f"push {happening.name}", style)
        case What.POPPED:
            return _with_value(f"pop {name}", style, happening.detail, room)
        case What.SETTLED:
            kept = happening.detail == FrameState.KEPT.value
            return Text(f"{name}: {'kept: the run went past its pivot' if kept else f'{detail} by hand'}", style)
        case What.FORGOTTEN:
            return Text(f"{name} forgotten: {detail}", style)
        case What.UNDONE:
            return Text(f"{name} undone", style)
        case What.WAIT:
            return Text(_rung(happening), style)
        case What.AWAITS | What.SIGNAL | What.TIMEOUT | What.SLEPT:
            return _wait(happening, style, room)
        case What.UNREAD | What.REFUSED:
            return _letter(row, happening, style)
        case What.CHILD | What.RETURNED:
            return _child(happening, name, style, room)
        case What.EXLET:
            return Text.assemble(("exlet ", "dim"), (happening.name, style), f"  {detail}")
        case What.PROCEEDED:
            return Text.assemble((name, style), "  failed for good; the flow goes on with aft.FAILED")
        case What.REMOVED:
            return Text.assemble((name, style), "  removed: its branch ends here")
        case What.RULED:
            return Text.assemble((name, style), "  its constraint is settled; it goes on")
        case What.ABORTED:
            return Text(detail, style)
        case What.FINAL | What.PARKED:
            return Text.assemble((happening.what.value, style), f"  {detail}")
        case What.FAULT | What.DEED | What.PATCH | What.PIVOT:
            return Text.assemble((name, style), f"  {detail}")
        case _:
            assert_never(happening.what)


def _started(row: RunRow, happening: Happening, room: int) -> Text:
    """Begin a story; a child's says which run it is."""
    of = "" if row.parent_id is None else f"  run {short_id(row.id)}"
    if row.tags and not happening.by:
        of += f"  tags {format_named(tagged_to_json(row.tags), max(LEAST_ROOM, room // 3))}"
    stored = "" if happening.by else happening.detail  # of one that goes on, undone by its parent, they were told
    told = _with_value(happening.name, MARKS[What.STARTED].style, stored, room - len(of))
    return told.append(of, "dim")


def _with_value(name: str, style: str, stored: str, room: int) -> Text:
    """Put a stored value behind a name, as much of it as the line has room for."""
    left = max(LEAST_ROOM, room - cell_len(name) - 2)
    return Text.assemble((name, style), (f"  {format_named(_read(stored), left)}" if stored else "", "dim"))


def _read(detail: str) -> Any:
    try:
        return json.loads(detail)
    except ValueError:
        return detail


def _rung(happening: Happening) -> str:
    rung = happening.detail.partition(":")[0]
    if happening.signal is not None:
        return f"{rung}: waits for signal {happening.signal!r}"
    if not happening.wait:
        return f"{rung}: at once"
    where = f"in {happening.queue}" if happening.queue else "by the timer"
    return f"{rung}: waits {durations.spell(happening.wait)} {where}"


# Waits ------------------------------------------------------------------------------------------------------------


def _wait(happening: Happening, style: str, room: int) -> Text:
    """Say what is waited for, or what came of it."""
    wait, name = happening.awaited, happening.name
    if happening.what is What.SIGNAL:
        after = f" after {spell_between(wait.since, happening.at)}" if wait else ""
        sender = f"  from {happening.by}{after}"
        return _with_value(name, style, happening.detail, room - cell_len(sender)).append(sender)
    took = f" {spell_between(wait.since, wait.until)}" if wait and wait.until else ""
    if happening.what is What.TIMEOUT:
        return Text(f"signal {name!r} did not come{f' within{took}' if took else ' in time'}", style)
    if happening.what is What.SLEPT:
        return Text(f"slept{took}", style)
    assert wait is not None
    if wait.kind is WaitKind.SLEEP:
        return Text(f"sleeps until {moment(wait.until)}", style)
    return Text(f"waits for {spell_wait(wait)}, since {moment(wait.since)}", style)


def _letter(row: RunRow, happening: Happening, style: str) -> Text:
    """Say what was sent and not taken."""
    detail = shorten(happening.detail, MOST_DETAIL)
    if happening.what is What.REFUSED:
        return Text.assemble((f"signal {happening.name!r} refused", style), f"  {detail}, from {happening.by}")
    if not happening.detail:
        return Text.assemble((happening.name, style), f"  from {happening.by}: not read yet")
    asked = any(wait.kind is WaitKind.SIGNAL and wait.name == happening.name for wait in row.waits)
    when = "never asked for" if row.status.ended else "not taken yet" if asked else "not asked for yet"
    return Text.assemble(
        (f"signal {happening.name!r}", style), (f"  {detail}", "dim"), f"  from {happening.by}: {when}"
    )


def _child(happening: Happening, name: str, style: str, room: int) -> Text:
    """Say that a child was made, or what came of it, where its own story is not told."""
    if happening.what is What.RETURNED:
        return _with_value(name, style, happening.detail, room)
    status = Status(happening.detail)
    return Text.assemble(
        (name, style), f"  run {short_id(happening.run or '')}  ", (status.value, status_style(status))
    )
