"""The journal: recorded outcomes of a run's steps. Rows are final; replay reads them in order of completion."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, delete, select

from aft.ids import FaultId, RunId, StepPath
from aft.store import db_time
from aft.store.batch.statements import PreparedQuery
from aft.store.tables import journal

#: Key generations below this are those of the run; those of steps that were undone and restarted begin here.
RESTARTED = 1_000_000


class EntryKind(StrEnum):
    """What kind of step was recorded."""

    ACTIVITY = "activity"  #: an activity was called
    SAVEPOINT = "savepoint"  #: a savepoint was undone
    SIGNAL = "signal"  #: a signal was awaited
    SLEEP = "sleep"  #: a time was awaited
    CHILD = "child"  #: a flow was called
    PATCH = "patch"  #: the code asked whether it runs with a change
    RULE = "rule"  #: a constraint of the run was handled
    PIVOT = "pivot"  #: from here on the run only goes forward


class Outcome(StrEnum):
    """How a step ended."""

    OK = "ok"  #: it returned ``value``
    FAILED = "failed"  #: it raised the fault ``fault_id``, for good
    UNDONE = "undone"  #: the frames under it were unwound
    PROCEED = "proceed"  #: it failed for good, and the flow goes on with ``aft.FAILED``
    REMOVED = "removed"  #: an exlet took it away
    TIMED_OUT = "timed_out"  #: what it waited for did not come in time


@dataclass(slots=True)
class Entry:
    """One recorded outcome. Only ``seq`` is set after it was made."""

    path: StepPath
    scope: str
    kind: EntryKind
    name: str
    outcome: Outcome
    recorded_at: datetime
    attempts: int = 1
    args: str | None = field(default=None, repr=False)
    #: JSON: its result; of an interrupted step, the steps of its call that had been begun, where others had not been.
    value: str | None = field(default=None, repr=False)
    fault_id: FaultId | None = None
    key_generation: int = 0
    #: How many calls its parallel step has, so that people see how far that is; None for a step of its own.
    beside: int | None = None
    #: The reach of the interrupt by which it failed (see ``flows.orders.interrupts``); None: it was not interrupted.
    interrupt: str | None = None
    #: The owner's write that it came with: its place in the order of completion.
    seq: int = 0
    #: The arguments that the code asked with, where a rule has changed them; None: ``args``.
    asked: str | None = field(default=None, repr=False)


#: The outcomes of several runs, each run's in the order in which they were completed.
OF_RUNS = PreparedQuery.about(
    f"SELECT run_id, {', '.join(Entry.__slots__)} FROM {journal.name} WHERE run_id {{among}} ORDER BY run_id, seq"
)
_LOAD_COLUMNS = [journal.c[name] for name in Entry.__slots__]


def fields(entry: Entry, epoch: int, beside: int | None = None) -> dict[str, Any]:
    """Return an outcome as the columns of its row; only a guarded write writes it, and numbers it."""
    return {
        "path": entry.path,
        "scope": entry.scope,
        "kind": entry.kind.value,
        "name": entry.name,
        "outcome": entry.outcome.value,
        "args": entry.args,
        "asked": entry.asked,
        "value": entry.value,
        "fault_id": entry.fault_id,
        "attempts": entry.attempts,
        "beside": beside,
        "key_generation": entry.key_generation,
        "interrupt": entry.interrupt,
        "epoch": epoch,
        "recorded_at": entry.recorded_at,
    }


def delete_all(connection: Connection, run_id: RunId) -> None:
    """Delete all outcomes of a run."""
    _delete(connection, run_id)


def reopen(connection: Connection, run_id: RunId, path: StepPath) -> None:
    """Delete the outcome of a failed step, so that it is tried again."""
    _delete(connection, run_id, journal.c.path == path, journal.c.outcome == Outcome.FAILED.value)


def drop(connection: Connection, run_id: RunId, paths: Collection[StepPath]) -> None:
    """Delete the outcomes of these steps, because a retry rewinds to before them."""
    if paths:
        _delete(connection, run_id, journal.c.path.in_(paths))


def _delete(connection: Connection, run_id: RunId, *which: ColumnElement[bool]) -> None:
    connection.execute(delete(journal).where(journal.c.run_id == run_id, *which))


def load(connection: Connection, run_id: RunId) -> list[Entry]:
    """Read the run's outcomes, in the order in which they were completed."""
    statement = select(*_LOAD_COLUMNS).where(journal.c.run_id == run_id).order_by(journal.c.seq)
    return [read_entry(row) for row in connection.execute(statement)]


def failed(connection: Connection, run_id: RunId) -> list[Entry]:
    """Read the outcomes of a run's steps that failed for good, in order."""
    of_run = (journal.c.run_id == run_id, journal.c.outcome == Outcome.FAILED.value)
    found = connection.execute(select(*_LOAD_COLUMNS).where(*of_run).order_by(journal.c.seq))
    return [read_entry(row) for row in found]


def read_entry(values: Sequence[Any]) -> Entry:
    """Read an outcome: one ``OF_RUNS`` row without the run's id, with the driver's values or SQLAlchemy's."""
    path, scope, kind, name, outcome, at, *rest = values
    moment = cast(datetime, db_time.read_time(at))
    return Entry(path, scope, EntryKind(kind), name, Outcome(outcome), moment, *rest)


def names_of_completed(connection: Connection, run_id: RunId) -> list[str]:
    """Return the names of a run's completed activities, each once, sorted."""
    completed = select(journal.c.name).where(
        journal.c.run_id == run_id,
        journal.c.kind == EntryKind.ACTIVITY.value,
        journal.c.outcome == Outcome.OK.value,
    )
    return list(connection.execute(completed.distinct().order_by(journal.c.name)).scalars())
