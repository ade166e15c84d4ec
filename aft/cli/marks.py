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
class Mark:
    """How one kind of happening looks; ``under`` indents what belongs to the line above it."""

    symbol: str
    plain: str
    style: str
    under: bool = False


MARKS = {
    What.STARTED: Mark("┌", "+", "bold"),
    What.ACTIVITY: Mark("✓", "*", "green"),
    What.PUSHED: Mark("▲", "^", "cyan", under=True),
    What.FAULT: Mark("✗", "x", "red"),
    What.WAIT: Mark("◷", "~", "yellow", under=True),
    What.FINAL: Mark("■", "#", "red", under=True),
    What.EXLET: Mark("§", "%", "cyan", under=True),
    What.PROCEEDED: Mark("↷", "/", "yellow"),
    What.REMOVED: Mark("⌫", "/", "yellow"),
    What.RULED: Mark("§", "%", "cyan"),
    What.ABORTED: Mark("☠", "!", "bold red"),
    What.POPPED: Mark("▼", "v", "cyan"),
    What.SETTLED: Mark("▽", "v", "magenta"),
    What.FORGOTTEN: Mark("▽", "v", "magenta"),
    What.UNDONE: Mark("↩", "<", "cyan"),
    What.AWAITS: Mark("◔", "?", "cyan"),
    What.SIGNAL: Mark("✉", "=", "cyan"),
    What.TIMEOUT: Mark("◷", "~", "yellow"),
    What.SLEPT: Mark("☾", "z", "cyan"),
    What.UNREAD: Mark("✉", "=", "magenta"),
    What.REFUSED: Mark("✉", "=", "red"),
    What.CHILD: Mark("↳", "&", "bold"),
    What.RETURNED: Mark("✓", "*", "green"),
    What.PATCH: Mark("◇", "o", "cyan"),
    What.PIVOT: Mark("◆", "o", "cyan"),
    What.DEED: Mark("☞", ">", "magenta"),
    What.PARKED: Mark("└", "+", "bold red"),
    What.ENDED: Mark("└", "+", "bold"),
}


def status_style(status: Status) -> str:
    """Name the style in which every face of the command line shows a state."""
    return _STYLES[status]
