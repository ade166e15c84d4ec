"""Formats each event of a run's story on one line."""

from __future__ import annotations

import json
from typing import Any, assert_never

from rich.cells import cell_len
from rich.text import Text

from aft import durations
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.cli.show.output import format_named, moment, short_id, shorten
from aft.cli.show.styles import MARKS, status_style
from aft.cli.show.waits import format_between, format_wait
from aft.codec import tagged_to_json
from aft.compensation.stack import FrameState
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import WaitKind

#: Characters of a value or a message that one line of the story shows.
MOST_DETAIL = 400
#: Least columns for words, however narrow the terminal is.
LEAST_ROOM = 20


#: What rules have decided about a step.
_DECIDED = {
    StoryEventKind.PROCEEDED: "failed for good; the flow goes on with aft.FAILED",
    StoryEventKind.REMOVED: "removed: its branch ends here",
    StoryEventKind.RULED: "its constraint was decided; it goes on",
}


def format_event(row: RunRow, happening: StoryEvent, room: int, number: str = "") -> Text:
    """Format an event in about ``room`` columns; ``number`` is which of several calls it was."""
    style = MARKS[happening.what].style
    name, detail = f"{happening.name}{f' #{number}' if number else ''}", shorten(happening.detail, MOST_DETAIL)
    match happening.what:
        case StoryEventKind.STARTED:
            return _started(row, happening, room)
        case StoryEventKind.ACTIVITY:
            return _with_value(name, style, happening.detail, room)
        case StoryEventKind.ENDED:
            return _with_value(name, f"bold {status_style(row.status)}", happening.detail, room)
        case StoryEventKind.POPPED:
            return _with_value(f"pop {name}", style, happening.detail, room)
        case (
            StoryEventKind.PUSHED
            | StoryEventKind.CLOSED_WITHOUT_UNDO
            | StoryEventKind.FORGOTTEN
            | StoryEventKind.UNDONE
        ):
            return Text(_frame(happening, name, detail), style)
        case StoryEventKind.WAIT:
            return Text(_rung(happening), style)
        case StoryEventKind.AWAITS | StoryEventKind.SIGNAL | StoryEventKind.TIMEOUT | StoryEventKind.SLEPT:
            return _wait(happening, style, room)
        case StoryEventKind.UNREAD | StoryEventKind.REFUSED:
            return _item(row, happening, style)
        case StoryEventKind.CHILD | StoryEventKind.RETURNED:
            return _child(happening, name, style, room)
        case StoryEventKind.EXLET:
            return Text.assemble(("exlet ", "dim"), (happening.name, style), f"  {detail}")
        case StoryEventKind.PROCEEDED | StoryEventKind.REMOVED | StoryEventKind.RULED:
            return Text.assemble((name, style), f"  {_DECIDED[happening.what]}")
        case StoryEventKind.ABORTED:
            return Text(detail, style)
        case StoryEventKind.FINAL | StoryEventKind.PARKED:
            return Text.assemble((happening.what.value, style), f"  {detail}")
        case StoryEventKind.FAULT | StoryEventKind.ACTION | StoryEventKind.PATCH | StoryEventKind.PIVOT:
            return Text.assemble((name, style), f"  {detail}")
        case _:
            assert_never(happening.what)


def _started(row: RunRow, happening: StoryEvent, room: int) -> Text:
    """Format the start of a story; a child's names its run."""
    of = "" if row.parent_id is None else f"  run {short_id(row.id)}"
    if row.tags and not happening.by:
        of += f"  tags {format_named(tagged_to_json(row.tags), max(LEAST_ROOM, room // 3))}"
    stored = "" if happening.by else happening.detail  # the arguments of a child's second part were shown before
    line = _with_value(happening.name, MARKS[StoryEventKind.STARTED].style, stored, room - len(of))
    return line.append(of, "dim")


def _with_value(name: str, style: str, stored: str, room: int) -> Text:
    """Append a stored value to a name, as much of it as fits on the line."""
    left = max(LEAST_ROOM, room - cell_len(name) - 2)
    return Text.assemble((name, style), (f"  {format_named(_read(stored), left)}" if stored else "", "dim"))


def _read(detail: str) -> Any:
    try:
        return json.loads(detail)
    except (ValueError, RecursionError):
        return detail


def _frame(happening: StoryEvent, name: str, detail: str) -> str:
    """Format what was done to a frame, or to all frames under a savepoint, without the compensator's result."""
    if happening.what is StoryEventKind.PUSHED:
        return f"push {happening.name}"
    if happening.what is StoryEventKind.FORGOTTEN:
        return f"{name} forgotten: {detail}"
    if happening.what is StoryEventKind.UNDONE:
        return f"{name} undone"
    kept = happening.detail == FrameState.KEPT.value
    return f"{name}: {'kept: the run went past its pivot' if kept else f'{detail} by hand'}"


def _rung(happening: StoryEvent) -> str:
    position = happening.detail.partition(":")[0]
    if happening.signal is not None:
        return f"{position}: waits for signal {happening.signal!r}"
    if not happening.wait:
        return f"{position}: at once"
    where = f"in {happening.queue}" if happening.queue else "by the timer"
    return f"{position}: waits {durations.format(happening.wait)} {where}"


# Waits ------------------------------------------------------------------------------------------------------------


def _wait(happening: StoryEvent, style: str, room: int) -> Text:
    """Format what is waited for, or how the wait ended."""
    wait, name = happening.awaited, happening.name
    if happening.what is StoryEventKind.SIGNAL:
        after = f" after {format_between(wait.since, happening.at)}" if wait else ""
        sender = f"  from {happening.by}{after}"
        return _with_value(name, style, happening.detail, room - cell_len(sender)).append(sender)
    took = f" {format_between(wait.since, wait.until)}" if wait and wait.until else ""
    if happening.what is StoryEventKind.TIMEOUT:
        return Text(f"signal {name!r} did not come{f' within{took}' if took else ' in time'}", style)
    if happening.what is StoryEventKind.SLEPT:
        return Text(f"slept{took}", style)
    assert wait is not None
    if wait.kind is WaitKind.SLEEP:
        return Text(f"sleeps until {moment(wait.until)}", style)
    return Text(f"waits for {format_wait(wait)}, since {moment(wait.since)}", style)


def _item(row: RunRow, happening: StoryEvent, style: str) -> Text:
    """Format what was sent and not taken."""
    detail = shorten(happening.detail, MOST_DETAIL)
    if happening.what is StoryEventKind.REFUSED:
        return Text.assemble((f"signal {happening.name!r} refused", style), f"  {detail}, from {happening.by}")
    if not happening.detail:
        return Text.assemble((happening.name, style), f"  from {happening.by}: not read yet")
    asked = any(wait.kind is WaitKind.SIGNAL and wait.name == happening.name for wait in row.waits)
    when = "never waited for" if row.status.ended else "not taken yet" if asked else "not waited for yet"
    return Text.assemble(
        (f"signal {happening.name!r}", style), (f"  {detail}", "dim"), f"  from {happening.by}: {when}"
    )


def _child(happening: StoryEvent, name: str, style: str, room: int) -> Text:
    """Format that a child was made, or how it ended, where its own story is not shown."""
    if happening.what is StoryEventKind.RETURNED:
        return _with_value(name, style, happening.detail, room)
    status = Status(happening.detail)
    return Text.assemble(
        (name, style), f"  run {short_id(happening.run or '')}  ", (status.value, status_style(status))
    )
