"""What should a person know beside what was asked for? Said on stderr, after the data."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from aft.app import Aft, health
from aft.cli.errors import tell
from aft.cli.output import exactly, say, short_id
from aft.runs.rows import RunRow
from aft.runs.states import Status


def advise(row: RunRow, family: Iterable[RunRow] = ()) -> None:
    """Say what to do about a run that waits for a person; itself, or the first of its family that does."""
    if begins_later(row):
        say(f"It begins at {exactly(row.due_at)}.")
    stuck = next((one for one in (row, *family) if one.status is Status.PARKED), None)
    if stuck is not None:
        short = short_id(stuck.id)
        who = "It" if stuck.id == row.id else f"Its descendant {short}"
        say(f"{who} waits for a person. See `aft faults show {short}` and `aft stack {short}`; after the fix:")
        can_be_cancelled = stuck.pivoted_at is None and stuck.cause is None and stuck.ended_as is None
        end = ";" if can_be_cancelled else "."
        say(f"`aft runs retry {short}`, or skip-frame or frame-done for a compensator that cannot succeed{end}")
        if can_be_cancelled:
            say(f"`aft runs cancel {short}` undoes what it has done instead.")


def begins_later(row: RunRow) -> bool:
    """Tell whether a run waits for its beginning."""
    waits = row.status is Status.RUNNING and row.started_at is None and row.worker_id is None
    return waits and row.due_at is not None and row.due_at > datetime.now(UTC)


def tell_if_nobody_works(app: Aft, row: RunRow) -> None:
    """Say so, if no live worker has the code of a run."""
    flow = f"{row.flow}@{row.version}"
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("work" in worker.roles and flow in worker.flows for worker in workers):
        tell(f"note: no live worker has flow {flow}; start one with `aft dispatcher MODULE`")
