"""Advice besides the data that was asked for: printed on stderr, after the data."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from aft.app import Aft
from aft.app.views import health
from aft.cli.errors import print_to_stderr
from aft.cli.show.output import exactly, print_message, short_id
from aft.runs.run_rows import RunRow
from aft.runs.states import Status


def advise(row: RunRow, family: Iterable[RunRow] = ()) -> None:
    """Print what to do about a parked run: itself, or the first of its family that is."""
    if begins_later(row):
        print_message(f"It begins at {exactly(row.due_at)}.")
    stuck = next((one for one in (row, *family) if one.status is Status.PARKED), None)
    if stuck is not None:
        short = short_id(stuck.id)
        who = "It" if stuck.id == row.id else f"Its descendant {short}"
        print_message(
            f"{who} waits for a person. See `aft faults show {short}` and `aft stack {short}`; after the fix:"
        )
        can_be_cancelled = stuck.pivoted_at is None and stuck.cause is None and stuck.ended_as is None
        end = ";" if can_be_cancelled else "."
        print_message(
            f"`aft runs retry {short}`, or skip-frame or frame-done for a compensator that cannot succeed{end}"
        )
        if can_be_cancelled:
            print_message(f"`aft runs cancel {short}` undoes what it has done instead.")


def begins_later(row: RunRow) -> bool:
    """Return whether a run waits for its start time."""
    waits = row.status is Status.RUNNING and row.started_at is None and row.worker_id is None
    return waits and row.due_at is not None and row.due_at > datetime.now(UTC)


def warn_if_nobody_carries_out(app: Aft) -> None:
    """Print a note if no live dispatcher carries out operations."""
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("sweep" in worker.roles for worker in workers):
        print_to_stderr("note: no live dispatcher carries out operations; start one with `aft dispatcher MODULE`")


def warn_if_nobody_works(app: Aft, row: RunRow) -> None:
    """Print a note if no live worker has the code of a run."""
    flow = f"{row.flow}@{row.version}"
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("work" in worker.roles and flow in worker.flows for worker in workers):
        print_to_stderr(f"note: no live worker has flow {flow}; start one with `aft dispatcher MODULE`")
