"""Selects the runs of an operation, once and for all, and tells beforehand what the operation would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, exists, func, insert, literal, select

from aft.errors import OrderRefused
from aft.runs.find import find_runs
from aft.runs.find.find_runs import RunFilter
from aft.runs.operations.operation_rows import HELD, NewOperation, OutcomeState, Verb, add
from aft.runs.records.journal import EntryKind, Outcome
from aft.runs.states import FrameState, Status
from aft.store.tables import faults as fault_table
from aft.store.tables import frames, journal, operation_runs, runs

#: The most runs of one operation.
MOST_RUNS = 100_000
#: Kinds of things that a preview names.
MOST_NAMED = 20
#: States of frames whose undo is still owed.
_OWED = (FrameState.ARMED, FrameState.OWED, FrameState.LATE)


@dataclass(frozen=True, slots=True)
class OperationPreview:
    """What an operation would be about; each list with the most frequent first.

    ``undos`` and ``without_undo`` name activities, and are filled for verbs that undo.
    """

    total: int
    statuses: list[tuple[Status, int]]
    #: Failure groups of their last faults; None: they have none.
    groups: list[tuple[str | None, int]]
    undos: list[tuple[str, int]]
    without_undo: list[tuple[str, int]]


def preview(connection: Connection, namespace: str, wanted: RunFilter, verb: Verb) -> OperationPreview:
    """Return what an operation on these runs would be about."""
    selected = _select(connection, namespace, wanted).cte("selected")
    by_status = select(selected.c.status, func.count()).group_by(selected.c.status)
    groups = select(selected.c.group_id, func.count()).group_by(selected.c.group_id)
    statuses = [
        (Status(status), number) for status, number in connection.execute(by_status.order_by(func.count().desc()))
    ]
    undoes = verb in (Verb.CANCEL, Verb.COMPENSATE)
    chosen = select(selected.c.id)
    ids = select(runs.c.id).where(runs.c.id.in_(chosen) | runs.c.root_id.in_(chosen))  # their children, too
    return OperationPreview(
        sum(number for _, number in statuses),
        statuses,
        [(row[0], row[1]) for row in connection.execute(groups.order_by(func.count().desc()).limit(MOST_NAMED))],
        _count_undos(connection, ids) if undoes else [],
        _count_without_undo(connection, ids) if undoes else [],
    )


def freeze(connection: Connection, new: NewOperation, wanted: RunFilter) -> int:
    """Make an operation of all runs that the filter finds now; return how many.

    Raises OrderRefused if there are none, or too many, or some are in another operation that has not ended.
    """
    found = _select(connection, new.namespace, wanted).subquery()
    total = connection.execute(select(func.count()).select_from(found)).scalar_one()
    if not total:
        raise OrderRefused(f"there are no runs{wanted}, so there is nothing to {new.verb.value}")
    if total > MOST_RUNS:
        raise OrderRefused(f"these are {total:,} runs; one operation has {MOST_RUNS:,} at most: narrow it down")
    check_free(connection, new.namespace, wanted)
    add(connection, new, total)
    rows = select(
        literal(new.id),
        found.c.id,
        func.row_number().over(order_by=found.c.id),
        literal(OutcomeState.SELECTED.value),
        found.c.group_id,
    )
    columns = ["operation_id", "run_id", "position", "state", "group_id"]
    connection.execute(insert(operation_runs).from_select(columns, rows))
    return int(total)


def check_free(connection: Connection, namespace: str, wanted: RunFilter) -> None:
    """Raise OrderRefused if some of these runs are in an operation that has not ended."""
    found = _select(connection, namespace, wanted).subquery()
    held = operation_runs.c.state.in_([state.value for state in HELD])
    statement = (
        select(operation_runs.c.operation_id, func.count())
        .join(found, found.c.id == operation_runs.c.run_id)
        .where(held)
        .group_by(operation_runs.c.operation_id)
    )
    for operation_id, number in connection.execute(statement.limit(1)):
        raise OrderRefused(
            f"{number:,} of these runs are in operation {operation_id}, which has not ended; wait for its end, or "
            "cancel it"
        )


def _select(connection: Connection, namespace: str, wanted: RunFilter) -> Select[tuple[str, str, str | None]]:
    return find_runs.select_runs(
        connection, namespace, wanted, runs.c.id, runs.c.status, _last_group().label("group_id")
    )


def _last_group() -> ScalarSelect[str | None]:
    """Select the failure group of a run's last fault."""
    of_run = select(fault_table.c.group_id).where(fault_table.c.run_id == runs.c.id)
    return of_run.order_by(fault_table.c.id.desc()).limit(1).scalar_subquery()


def _count_undos(connection: Connection, ids: Select[tuple[str]]) -> list[tuple[str, int]]:
    owed = frames.c.state.in_([state.value for state in _OWED])
    statement = select(frames.c.activity, func.count()).where(
        frames.c.run_id.in_(ids), frames.c.child_id.is_(None), owed
    )
    return _most_frequent(connection, statement, frames.c.activity)


def _count_without_undo(connection: Connection, ids: Select[tuple[str]]) -> list[tuple[str, int]]:
    """Count completed activities that pushed no frame: nothing undoes them."""
    framed = exists().where(frames.c.run_id == journal.c.run_id, frames.c.path == journal.c.path)
    of_activities = (journal.c.kind == EntryKind.ACTIVITY.value, journal.c.outcome == Outcome.OK.value, ~framed)
    statement = select(journal.c.name, func.count()).where(journal.c.run_id.in_(ids), *of_activities)
    return _most_frequent(connection, statement, journal.c.name)


def _most_frequent(connection: Connection, statement: Select[Any], name: ColumnElement[str]) -> list[tuple[str, int]]:
    """Return the most frequent names with their numbers."""
    counted = statement.group_by(name).order_by(func.count().desc(), name).limit(MOST_NAMED)
    return [(row[0], row[1]) for row in connection.execute(counted).all()]
