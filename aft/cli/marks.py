"""How things look wherever the command line draws them: a symbol, a plain one for poorer terminals, a style."""

from __future__ import annotations

from dataclasses import dataclass

from aft.app.timeline import What
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
    """How one kind of happening looks; ``under`` indents what belongs to the line above it."""

    symbol: str
    plain: str
    style: str
    under: bool = False


MARKS = {
    What.STARTED: EventStyle("┌", "+", "bold"),
    What.ACTIVITY: EventStyle("✓", "*", "green"),
    What.PUSHED: EventStyle("▲", "^", "cyan", under=True),
    What.FAULT: EventStyle("✗", "x", "red"),
    What.WAIT: EventStyle("◷", "~", "yellow", under=True),
    What.FINAL: EventStyle("■", "#", "red", under=True),
    What.EXLET: EventStyle("§", "%", "cyan", under=True),
    What.PROCEEDED: EventStyle("↷", "/", "yellow"),
    What.REMOVED: EventStyle("⌫", "/", "yellow"),
    What.RULED: EventStyle("§", "%", "cyan"),
    What.ABORTED: EventStyle("☠", "!", "bold red"),
    What.POPPED: EventStyle("▼", "v", "cyan"),
    What.SETTLED: EventStyle("▽", "v", "magenta"),
    What.FORGOTTEN: EventStyle("▽", "v", "magenta"),
    What.UNDONE: EventStyle("↩", "<", "cyan"),
    What.AWAITS: EventStyle("◔", "?", "cyan"),
    What.SIGNAL: EventStyle("✉", "=", "cyan"),
    What.TIMEOUT: EventStyle("◷", "~", "yellow"),
    What.SLEPT: EventStyle("☾", "z", "cyan"),
    What.UNREAD: EventStyle("✉", "=", "magenta"),
    What.REFUSED: EventStyle("✉", "=", "red"),
    What.CHILD: EventStyle("↳", "&", "bold"),
    What.RETURNED: EventStyle("✓", "*", "green"),
    What.PATCH: EventStyle("◇", "o", "cyan"),
    What.PIVOT: EventStyle("◆", "o", "cyan"),
    What.DEED: EventStyle("☞", ">", "magenta"),
    What.PARKED: EventStyle("└", "+", "bold red"),
    What.ENDED: EventStyle("└", "+", "bold"),
}


def status_style(status: Status) -> str:
    """Name the style in which every face of the command line shows a state."""
    return _STYLES[status]
