"""The rows of operations: make, read, pause, resume and cancel them.

Who may run at the same time: people, and dispatchers that carry operations out. Each locks the operation's row before
it changes it. A run is in one open operation at most: a unique index holds that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from aft.errors import OrderRefused, UnknownOperation
from aft.runs.records import audit
from aft.store.batch.row_format import has_part
from aft.store.db_time import now
from aft.store.tables import operation_runs, operations
from aft.texts import format_value, require_text


class Verb(StrEnum):
    """What an operation orders each of its runs to do."""

    RETRY = "retry"
    COMPLETE = "force-complete"
    FAIL = "force-fail"
    SUSPEND = "suspend"
    RESUME = "resume"
    CANCEL = "cancel"
    COMPENSATE = "compensate"


class OperationState(StrEnum):
    """The state of an operation."""

    OPEN = "open"  #: a dispatcher carries it out
    PAUSED = "paused"  #: a person has paused it
    STOPPED = "stopped"  #: it has stopped by itself: too many of its runs failed again
    CANCELLED = "cancelled"  #: a person has ended it; the runs that were left got no order
    DONE = "done"  #: each of its runs got its order, and the report says what came of it


#: States from which it may go on; its runs can be in no other operation.
UNFINISHED = (OperationState.OPEN, OperationState.PAUSED, OperationState.STOPPED)


class OutcomeState(StrEnum):
    """What came of the order to one run."""

    SELECTED = "selected"  #: it has not got its order
    ORDERED = "ordered"  #: it has, and nothing is known yet
    PASSED = "passed"  #: it does, or has done, what was ordered
    RETURNED = "returned"  #: it failed again, in the same failure group
    FAILED = "failed"  #: it failed otherwise
    UNDERWAY = "underway"  #: it still goes on, and was not waited for any longer
    REFUSED = "refused"  #: the order does not fit its state
    DROPPED = "dropped"  #: the operation was cancelled before


#: Those in which a run belongs to its operation alone.
HELD = (OutcomeState.SELECTED, OutcomeState.ORDERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperation:
    """An operation to be made; ``payload`` is what its orders hold, ``wanted`` how its runs were looked for."""

    id: str
    namespace: str
    verb: Verb
    payload: Mapping[str, Any] = field(repr=False)
    wanted: str
    #: The share of its runs that may fail again.
    brake: float
    #: Orders a second at most; None: as fast as the batches allow.
    rate: float | None
    #: Seconds for which the runs of a batch are waited for.
    patience: float
    made_by: str
    note: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation. ``batch`` is the number of the batch under way, ``batch_size`` how many runs that has."""

    id: str
    namespace: str
    verb: Verb
    payload: dict[str, Any] = field(repr=False)
    wanted: str
    state: OperationState
    why: str | None
    brake: float
    rate: float | None
    patience: float
    total: int
    batch: int
    batch_size: int
    made_by: str
    changed_by: str
    note: str | None = field(repr=False)
    made_at: datetime
    ordered_at: datetime | None
    ended_at: datetime | None


COLUMNS = [operations.c[name] for name in OperationRow.__slots__]


def from_row(row: Row[Any]) -> OperationRow:
    """Read a row that was selected by ``COLUMNS``."""
    values = dict(row._mapping)
    values |= {"verb": Verb(row.verb), "state": OperationState(row.state), "payload": json.loads(row.payload)}
    return OperationRow(**values)


def add(connection: Connection, new: NewOperation, total: int) -> None:
    """Write a new operation, which is due at once."""
    connection.execute(
        insert(operations).values(
            id=new.id,
            namespace=new.namespace,
            verb=new.verb.value,
            payload=json.dumps(dict(new.payload)),
            wanted=new.wanted,
            state=OperationState.OPEN.value,
            brake=new.brake,
            rate=new.rate,
            patience=new.patience,
            total=total,
            made_by=new.made_by,
            changed_by=new.made_by,
            note=new.note,
            made_at=now(),
            due_at=now(),
        )
    )
    audit.write_about(connection, new.made_by, f"operation {new.verb.value}", f"{new.id}, {total} runs: {new.wanted}")


# Reading --------------------------------------------------------------------------------------------------------


def find_operation(connection: Connection, namespace: str, part: str) -> OperationRow:
    """Return the operation with this id, or with an unambiguous part of it; raises UnknownOperation."""
    require_text("operation", part, UnknownOperation)
    statement = select(*COLUMNS).where(operations.c.namespace == namespace, has_part(operations.c.id, part))
    found = connection.execute(statement.limit(2)).all() if part else []
    if len(found) > 1:
        raise UnknownOperation(f"several operations match {format_value(part)}; give more of the id")
    if not found:
        raise UnknownOperation(
            f"no operation has the id {format_value(part)} in namespace {namespace!r}; `aft operations list` lists them"
        )
    return from_row(found[0])


def listing(connection: Connection, namespace: str, limit: int) -> list[OperationRow]:
    """Return the newest operations, newest first."""
    statement = select(*COLUMNS).where(operations.c.namespace == namespace).order_by(operations.c.id.desc())
    return [from_row(row) for row in connection.execute(statement.limit(limit))]


def count(connection: Connection, operation_id: str) -> dict[OutcomeState, int]:
    """Return how many runs of an operation are in each state; all states are there."""
    statement = select(operation_runs.c.state, func.count()).where(operation_runs.c.operation_id == operation_id)
    found = {row[0]: row[1] for row in connection.execute(statement.group_by(operation_runs.c.state))}
    return {state: found.get(state.value, 0) for state in OutcomeState}


def outcomes(connection: Connection, operation_id: str, state: OutcomeState | None, limit: int) -> list[Row[Any]]:
    """Return the rows of an operation's runs, in the order in which they get their orders."""
    statement = select(operation_runs).where(operation_runs.c.operation_id == operation_id)
    if state is not None:
        statement = statement.where(operation_runs.c.state == state.value)
    return list(connection.execute(statement.order_by(operation_runs.c.position).limit(limit)))


def lock(connection: Connection, namespace: str, operation_id: str) -> OperationRow:
    """Return an operation and lock its row until the transaction ends; raises UnknownOperation."""
    row = connection.execute(_named(namespace, operation_id).with_for_update()).one_or_none()
    if row is None:
        raise UnknownOperation(f"no operation has the id {operation_id!r} in namespace {namespace!r}")
    return from_row(row)


def _named(namespace: str, operation_id: str) -> Select[Any]:
    return select(*COLUMNS).where(operations.c.namespace == namespace, operations.c.id == operation_id)


# By hand --------------------------------------------------------------------------------------------------------


def pause(connection: Connection, row: OperationRow, by: str) -> None:
    """Give no more orders until it is resumed; those that were given stand. Raises OrderRefused if it is not open."""
    if row.state is not OperationState.OPEN:
        raise OrderRefused(f"operation {row.id} is {_describe(row)}; only one that is open can be paused")
    _change(connection, row, by, "pause", state=OperationState.PAUSED.value, due_at=None)


def resume(connection: Connection, row: OperationRow, by: str) -> None:
    """Go on with one that is paused or has stopped by itself; raises OrderRefused.

    Failures until now do not count for the brake any more: a person has seen them.
    """
    if row.state not in (OperationState.PAUSED, OperationState.STOPPED):
        raise OrderRefused(f"operation {row.id} is {_describe(row)}; there is nothing to resume")
    seen = {} if row.state is OperationState.PAUSED else {"batch": row.batch + 1, "batch_size": 1, "seen_at": now()}
    _change(connection, row, by, "resume", state=OperationState.OPEN.value, why=None, due_at=now(), **seen)


def cancel(connection: Connection, row: OperationRow, by: str) -> None:
    """End it: runs that are left get no order; orders that were given stand. Raises OrderRefused if it has ended."""
    if row.state not in UNFINISHED:
        raise OrderRefused(f"operation {row.id} is {_describe(row)}; there is nothing to cancel")
    _change(connection, row, by, "cancel", state=OperationState.CANCELLED.value, due_at=None, **ended())
    for before, after in ((OutcomeState.SELECTED, OutcomeState.DROPPED), (OutcomeState.ORDERED, OutcomeState.UNDERWAY)):
        of_it = (operation_runs.c.operation_id == row.id, operation_runs.c.state == before.value)
        connection.execute(update(operation_runs).where(*of_it).values(state=after.value, settled_at=now()))


def ended() -> dict[str, Any]:
    """Return the columns of an operation that ends: the values that its orders held are in its runs' own records."""
    return {"ended_at": now(), "payload": "{}"}


def _describe(row: OperationRow) -> str:
    return f"{row.state.value}, by {row.changed_by!r}" if row.state is not OperationState.DONE else "done"


def _change(connection: Connection, row: OperationRow, by: str, action: str, **changes: Any) -> None:
    write(connection, row.id, changed_by=by, **changes)
    audit.write_about(connection, by, f"operation {action}", row.id)


def write(connection: Connection, operation_id: str, **changes: Any) -> None:
    """Change an operation whose row is locked."""
    connection.execute(update(operations).where(operations.c.id == operation_id).values(**changes))
