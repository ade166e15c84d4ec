"""Marks in a run's journal that are no steps: a pivot, and which changes of its code it runs with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func

from aft.compensation import stack
from aft.flows import writing
from aft.flows.asks import Ask, Landed, Returns
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.store.moments import now
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class Pivot:
    """The point after which a run only goes forward."""

    name: str = "pivot"
    is_async: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "aft.pivot()"


def pivot(stepper: Stepper, path: StepPath, scope: str) -> Ask:
    """Make the step at which everything done so far is let stand."""

    def perform(landed: Landed | None) -> Entry:
        stepper.check_may_go_on()
        owner = stepper.owner
        entry = Entry(path, scope, EntryKind.PIVOT, Pivot().name, Outcome.OK, stepper.tools.clock.now())

        def then(connection: Connection, seq: int) -> None:
            # A cancel that was sent before is carried out; one that is sent later sees the pivot in the row.
            writing.check_orders(owner, connection)
            stack.keep_all(connection, owner.run_id)

        recorded = stepper.record(entry, then, landed, pivoted_at=func.coalesce(runs.c.pivoted_at, now()))
        owner.change(pivoted_at=owner.run.pivoted_at or entry.recorded_at)
        return recorded

    return Ask(path, EntryKind.PIVOT, Pivot().name, perform, lambda _: Returns(None), quick=True)


def patch_path(change: str) -> StepPath:
    """Where the journal keeps that a run has a change: beside the steps, which older runs numbered without it."""
    return StepPath(f"patch/{change}")


def record_patch(stepper: Stepper, change: str) -> None:
    """Journal that a run has a change."""
    entry = Entry(patch_path(change), "", EntryKind.PATCH, change, Outcome.OK, stepper.tools.clock.now())
    stepper.record(entry)
