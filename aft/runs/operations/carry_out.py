"""Carries out operations: judges the runs of a batch, decides what is next, and gives orders.

Who may run at the same time: any number of dispatchers, people who pause, resume or cancel an operation, and the owners
of its runs. A round locks the operation's row, or skips it; so one dispatcher at a time decides. Then it gives orders,
each in a transaction of its own: the run's row in the operation turns from ``selected`` to ``ordered`` there, so
nobody orders twice, and the operation's row is locked for reading, so that nothing is ordered once a pause or a cancel
has returned.

What a crash leaves: orders that were given, with their rows ``ordered``, and the rest ``selected``. The operation is
due again after ``CLAIMED``, and any dispatcher goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select, update

from aft.errors import OrderRefused
from aft.fault import Fault, FaultKind
from aft.ids import RunId
from aft.runs.operations import batches, operation_rows, outcomes
from aft.runs.operations.batches import AwaitBatch, EndOperation, GiveOrders, Progress, StopOperation
from aft.runs.operations.give_order import give
from aft.runs.operations.operation_rows import OperationRow, OperationState, OutcomeState, Verb
from aft.runs.operations.outcomes import ExpectedEnd, OrderedRun, OrderOutcome
from aft.runs.orders.actor import Actor
from aft.runs.records.faults import MEANINGLESS, show_row
from aft.runs.run_rows import COLUMNS as RUN_COLUMNS
from aft.runs.run_rows import from_row as run_from_row
from aft.runs.wakes import wake
from aft.security.redaction import redact
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import later, now
from aft.store.tables import faults, operation_runs, operations, runs
from aft.telemetry import Event, OperationEnded, OperationStopped
from aft.texts import shorten

#: Seconds after which an operation is looked at again if the process that gives its orders has died.
CLAIMED = 30.0
#: Seconds between two looks at the runs of a batch.
LOOK = 0.5
#: Runs whose outcomes are judged at a time.
PAGE = 500
#: Characters of a note in the report.
MOST_NOTE = 500

_IS_DUE = (operations.c.state == OperationState.OPEN.value, operations.c.due_at <= now())
#: Whether a namespace has a due operation.
ANY_DUE = PreparedQuery.of(select(operations.c.id).where(operations.c.namespace == GIVEN, *_IS_DUE).limit(1))


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has decided: runs that are to get their order now, and events to emit."""

    row: OperationRow
    run_ids: Sequence[RunId] = ()
    events: Sequence[Event] = ()


def find_due(connection: Connection, namespace: str, limit: int) -> list[str]:
    """Return operations that are due, longest due first; locks nothing."""
    statement = select(operations.c.id).where(operations.c.namespace == namespace, *_IS_DUE)
    return list(connection.execute(statement.order_by(operations.c.due_at).limit(limit)).scalars())


def plan_round(connection: Connection, operation_id: str) -> Round | None:
    """Judge the runs of the batch and decide what is next; None if another dispatcher does, or nothing is due."""
    due = select(*operation_rows.COLUMNS).where(operations.c.id == operation_id, *_IS_DUE)
    found = connection.execute(due.with_for_update(skip_locked=True)).one_or_none()
    if found is None:
        return None
    row = operation_rows.from_row(found)
    _judge(connection, row)
    step = batches.decide(row, _read_progress(connection, row))
    if isinstance(step, AwaitBatch) and step.gives_up:
        _give_up(connection, row)
        step = batches.decide(row, _read_progress(connection, row))
    return _begin(connection, row, step)


def give_order(connection: Connection, row: OperationRow, run_id: RunId, at: datetime, grace: timedelta) -> bool:
    """Give one run its order; False if the operation is not open any more, or the run has its order already.

    Raises OrderRefused if the order does not fit the run; then ``refuse`` notes that, in another transaction.
    """
    if not _is_open(connection, row):
        return False
    if not _settle(connection, row, run_id, OutcomeState.SELECTED, state=OutcomeState.ORDERED.value, ordered_at=now()):
        return False
    run = wake.lock(connection, row.namespace, run_id)
    if run is None:
        raise OrderRefused("it has been deleted")
    last = connection.execute(select(func.max(faults.c.id)).where(faults.c.run_id == run_id)).scalar()
    seen = {"epoch": run.epoch, "fault_id": last, "expected": outcomes.expect(row.verb, run).value, "batch": row.batch}
    _settle(connection, row, run_id, OutcomeState.ORDERED, **seen)
    note = f"operation {row.id}{f': {row.note}' if row.note else ''}"
    give(connection, run, Actor(row.made_by, note, at, grace), row.verb, row.payload)
    return True


def refuse(connection: Connection, row: OperationRow, run_id: RunId, why: str) -> None:
    """Note why a run got no order."""
    noted = {"state": OutcomeState.REFUSED.value, "note": _shorten(why), "settled_at": now(), "batch": row.batch}
    _settle(connection, row, run_id, OutcomeState.SELECTED, **noted)


def end_round(connection: Connection, row: OperationRow, given: int) -> None:
    """Note that orders were given; the operation is due again as its rate allows."""
    pause = LOOK if row.rate is None else max(LOOK, given / row.rate)
    open_still = (operations.c.id == row.id, operations.c.state == OperationState.OPEN.value)
    times = {"due_at": later(pause if given else 0.0), "ordered_at": now()}
    connection.execute(update(operations).where(*open_still).values(**times))


# Judging --------------------------------------------------------------------------------------------------------


def _judge(connection: Connection, row: OperationRow) -> None:
    """Settle the ordered runs whose outcome is known."""
    of_it = (operation_runs.c.operation_id == row.id, operation_runs.c.state == OutcomeState.ORDERED.value)
    statement = select(operation_runs).where(*of_it).order_by(operation_runs.c.position).limit(PAGE)
    ordered = {found.run_id: found for found in connection.execute(statement)}
    if not ordered:
        return
    last = _find_failures(connection, list(ordered.values()))
    known = select(*RUN_COLUMNS).where(runs.c.id.in_(list(ordered)))
    there = {run.id: run for run in connection.execute(known)}
    for run_id, found in ordered.items():
        outcome = _judge_run(row.verb, found, there.get(run_id), last.get(run_id))
        if outcome is not None:
            note = None if outcome.note is None else _shorten(outcome.note)
            changes = {"state": outcome.state.value, "note": note, "settled_at": now()}
            _settle(connection, row, RunId(run_id), OutcomeState.ORDERED, **changes)


def _judge_run(verb: Verb, ordered: Row[Any], run: Row[Any] | None, failure: Fault | None) -> OrderOutcome | None:
    if run is None:
        return OrderOutcome(OutcomeState.UNDERWAY, "it has been deleted")
    try:
        was = OrderedRun(ordered.epoch, ordered.group_id, ExpectedEnd(ordered.expected))
        return outcomes.judge(verb, was, run_from_row(run), failure)
    except MEANINGLESS as error:
        return OrderOutcome(OutcomeState.FAILED, f"its row in the database cannot be read: {type(error).__name__}")


def _find_failures(connection: Connection, ordered: Sequence[Row[Any]]) -> dict[str, Fault]:
    """Return the last failure of each run since its order; the death of a worker is none."""
    since = {found.run_id: (found.epoch, found.fault_id or "") for found in ordered}
    least = min(epoch for epoch, _ in since.values())
    statement = select(faults).where(
        faults.c.run_id.in_(list(since)), faults.c.epoch >= least, faults.c.kind != FaultKind.ABORT.value
    )
    rows = connection.execute(statement.order_by(faults.c.id))
    return {row.run_id: show_row(row) for row in rows if (row.epoch, row.id) > since[row.run_id]}


def _read_progress(connection: Connection, row: OperationRow) -> Progress:
    of_it = operation_runs.c.operation_id == row.id
    seen_at = select(operations.c.seen_at).where(operations.c.id == row.id).scalar_subquery()
    fresh = or_(seen_at.is_(None), operation_runs.c.ordered_at > seen_at)
    counted = select(operation_runs.c.state, func.count()).where(of_it, fresh).group_by(operation_runs.c.state)
    by_state = {found[0]: found[1] for found in connection.execute(counted)}
    in_batch = select(func.count()).where(of_it, operation_runs.c.batch == row.batch)
    last, present = connection.execute(
        select(func.max(operation_runs.c.ordered_at), now()).where(of_it, operation_runs.c.batch == row.batch)
    ).one()
    return Progress(
        operation_rows.count(connection, row.id),
        {state: by_state.get(state.value, 0) for state in OutcomeState},
        int(connection.execute(in_batch).scalar_one()),
        0.0 if last is None else (present - last).total_seconds(),
    )


def _give_up(connection: Connection, row: OperationRow) -> None:
    """Wait no longer for the runs of the batch that still go on."""
    of_it = (operation_runs.c.operation_id == row.id, operation_runs.c.state == OutcomeState.ORDERED.value)
    over = {"state": OutcomeState.UNDERWAY.value, "note": "it still goes on", "settled_at": now()}
    connection.execute(update(operation_runs).where(*of_it).values(**over))


# Going on -------------------------------------------------------------------------------------------------------


def _begin(connection: Connection, row: OperationRow, step: batches.NextStep) -> Round:
    if isinstance(step, GiveOrders):
        changes = {"batch": step.batch, "batch_size": step.batch_size, "due_at": later(CLAIMED)}
        operation_rows.write(connection, row.id, **changes)
        left = (operation_runs.c.operation_id == row.id, operation_runs.c.state == OutcomeState.SELECTED.value)
        statement = select(operation_runs.c.run_id).where(*left).order_by(operation_runs.c.position)
        chosen = connection.execute(statement.limit(step.number)).scalars()
        return Round(_with_batch(row, step), [RunId(run_id) for run_id in chosen])
    if isinstance(step, AwaitBatch):
        operation_rows.write(connection, row.id, due_at=later(LOOK))
        return Round(row)
    if isinstance(step, StopOperation):
        operation_rows.write(connection, row.id, state=OperationState.STOPPED.value, why=step.why, due_at=None)
        return Round(row, events=[OperationStopped(operation=row.id, verb=row.verb.value, why=step.why)])
    assert isinstance(step, EndOperation)
    operation_rows.write(connection, row.id, state=OperationState.DONE.value, due_at=None, **operation_rows.ended())
    counts = operation_rows.count(connection, row.id)
    failed = counts[OutcomeState.RETURNED] + counts[OutcomeState.FAILED]
    passed, refused = counts[OutcomeState.PASSED], counts[OutcomeState.REFUSED]
    ended = OperationEnded(operation=row.id, verb=row.verb.value, passed=passed, failed=failed, refused=refused)
    return Round(row, events=[ended])


def _with_batch(row: OperationRow, step: GiveOrders) -> OperationRow:
    return replace(row, batch=step.batch, batch_size=step.batch_size)


def _is_open(connection: Connection, row: OperationRow) -> bool:
    """Return whether an operation is open, and keep that so until the transaction ends."""
    statement = select(operations.c.state).where(operations.c.id == row.id).with_for_update(read=True)
    return connection.execute(statement).scalar() == OperationState.OPEN.value


def _settle(connection: Connection, row: OperationRow, run_id: RunId, before: OutcomeState, **changes: object) -> bool:
    """Change a run's row in the operation, if it is in this state; return whether it was."""
    where = (
        operation_runs.c.operation_id == row.id,
        operation_runs.c.run_id == run_id,
        operation_runs.c.state == before.value,
    )
    return bool(connection.execute(update(operation_runs).where(*where).values(**changes)).rowcount)


def _shorten(text: str) -> str:
    return shorten(redact(text), MOST_NOTE)
