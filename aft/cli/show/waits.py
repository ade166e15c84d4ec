"""Formats what a run waits for, and until when, for listings and stories."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection

from aft import durations
from aft.cli.show.output import moment, short_id
from aft.ids import RunId
from aft.runs.run_rows import RunRow
from aft.runs.waits import Wait, WaitKind
from aft.runs.wakes import child_runs

#: Waits of one run that a listing names; the others are counted.
MOST_NAMED = 2


def format_waits(connection: Connection, row: RunRow) -> str:
    """Format what a run waits for: ``signal 'verdict' until 14:03:20``, ``child 1a2b3c of flow leg``."""
    named = [_format(connection, row, wait) for wait in row.waits[:MOST_NAMED]]
    more = len(row.waits) - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])])


def _format(connection: Connection, row: RunRow, wait: Wait) -> str:
    if wait.kind is not WaitKind.CHILD:
        return format_wait(wait)
    child = child_runs.find_child(connection, row.namespace, RunId(wait.name))
    return f"child {short_id(wait.name)}" + ("" if child is None else f" of flow {child.flow}")


def format_wait(wait: Wait) -> str:
    """Format one wait, and when it is over."""
    if wait.kind is WaitKind.SLEEP:
        return f"its time: {moment(wait.until)}"
    return f"{wait}{f' until {moment(wait.until)}' if wait.until else ''}"


def format_between(since: datetime, until: datetime) -> str:
    """Format how long something took, as precise as its size needs: ``120ms``, ``12s``, ``3h20m``."""
    took = max(timedelta(0), until - since)
    fine = timedelta(milliseconds=1) if took < timedelta(seconds=10) else timedelta(seconds=1)
    if took >= timedelta(hours=1):
        fine = timedelta(minutes=1)
    return durations.format(round(took / fine) * fine)
