"""What should a person know beside what was asked for? Said on stderr, after the data."""

from __future__ import annotations

from aft.app import Aft, health
from aft.cli.errors import tell
from aft.cli.output import say, short_id
from aft.runs.rows import RunRow
from aft.runs.states import Status


def advise(row: RunRow) -> None:
    """Say what to do about a run that waits for a person."""
    if row.status is Status.PARKED:
        short = short_id(row.id)
        say(f"It waits for a person. See `aft faults show {short}` and `aft stack {short}`; after the fix:")
        say(f"`aft runs retry {short}`, or skip-frame or frame-done for a compensator that cannot succeed.")


def tell_if_nobody_works(app: Aft, row: RunRow) -> None:
    """Say so, if no live worker has the code of a run."""
    flow = f"{row.flow}@{row.version}"
    with app.store.read() as connection:
        workers = health.live_workers(connection, app.namespace)
    if not any("work" in worker.roles and flow in worker.flows for worker in workers):
        tell(f"note: no live worker has flow {flow}; start one with `aft dispatcher MODULE`")
