"""Styles of events and statuses in drawings: a symbol, a plain one for poorer terminals, a style."""

from __future__ import annotations

from dataclasses import dataclass

from aft.app.views.timeline import StoryEventKind
from aft.runs.states import Status

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
class EventStyle:
    """The style of one kind of event; ``under`` indents what belongs to the line above it."""

    symbol: str
    plain: str
    style: str
    under: bool = False


MARKS = {
    StoryEventKind.STARTED: EventStyle("┌", "+", "bold"),
    StoryEventKind.ACTIVITY: EventStyle("✓", "*", "green"),
    StoryEventKind.PUSHED: EventStyle("▲", "^", "cyan", under=True),
    StoryEventKind.FAULT: EventStyle("✗", "x", "red"),
    StoryEventKind.WAIT: EventStyle("◷", "~", "yellow", under=True),
    StoryEventKind.FINAL: EventStyle("■", "#", "red", under=True),
    StoryEventKind.EXLET: EventStyle("§", "%", "cyan", under=True),
    StoryEventKind.PROCEEDED: EventStyle("↷", "/", "yellow"),
    StoryEventKind.REMOVED: EventStyle("⌫", "/", "yellow"),
    StoryEventKind.RULED: EventStyle("§", "%", "cyan"),
    StoryEventKind.ABORTED: EventStyle("☠", "!", "bold red"),
    StoryEventKind.POPPED: EventStyle("▼", "v", "cyan"),
    StoryEventKind.CLOSED_WITHOUT_UNDO: EventStyle("▽", "v", "magenta"),
    StoryEventKind.FORGOTTEN: EventStyle("▽", "v", "magenta"),
    StoryEventKind.UNDONE: EventStyle("↩", "<", "cyan"),
    StoryEventKind.AWAITS: EventStyle("◔", "?", "cyan"),
    StoryEventKind.SIGNAL: EventStyle("✉", "=", "cyan"),
    StoryEventKind.TIMEOUT: EventStyle("◷", "~", "yellow"),
    StoryEventKind.SLEPT: EventStyle("☾", "z", "cyan"),
    StoryEventKind.UNREAD: EventStyle("✉", "=", "magenta"),
    StoryEventKind.REFUSED: EventStyle("✉", "=", "red"),
    StoryEventKind.CHILD: EventStyle("↳", "&", "bold"),
    StoryEventKind.RETURNED: EventStyle("✓", "*", "green"),
    StoryEventKind.PATCH: EventStyle("◇", "o", "cyan"),
    StoryEventKind.PIVOT: EventStyle("◆", "o", "cyan"),
    StoryEventKind.ACTION: EventStyle("☞", ">", "magenta"),
    StoryEventKind.PARKED: EventStyle("└", "+", "bold red"),
    StoryEventKind.ENDED: EventStyle("└", "+", "bold"),
}


def status_style(status: Status) -> str:
    """Return the style in which the command line shows a status."""
    return _STYLES[status]
