"""The journal: recorded outcomes of a run's steps. Rows are final; replay reads them in order of completion."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from aft.ids import FaultId, RunId, StepPath
from aft.store.tables import journal


class EntryKind(StrEnum):
    """What kind of step was recorded."""

    ACTIVITY = "activity"  #: an activity was called
    SAVEPOINT = "savepoint"  #: a savepoint was undone
    SIGNAL = "signal"  #: a signal was awaited
    SLEEP = "sleep"  #: a moment was awaited
    CHILD = "child"  #: a flow was called
    PATCH = "patch"  #: the code asked whether it runs with a change
    PIVOT = "pivot"  #: from here on the run only goes forward


class Outcome(StrEnum):
    """How a step ended."""

    OK = "ok"  #: it returned ``value``
    FAILED = "failed"  #: it raised the fault ``fault_id``, for good
    UNDONE = "undone"  #: the frames under it were unwound
    TIMED_OUT = "timed_out"  #: what it waited for did not come in time


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded outcome."""

    path: StepPath
    scope: str
    kind: EntryKind
    name: str
    outcome: Outcome
    recorded_at: datetime
    attempts: int = 1
    args: str | None = None
    value: str | None = None
    fault_id: FaultId | None = None
    key_generation: int = 0
    #: How many calls its parallel step has, so that people see how far that is; None for a step of its own.
    beside: int | None = None
    #: The owner's write that it came with: its place in the order of completion.
    seq: int = 0


_INSERT = insert(journal)
_LOAD_COLUMNS = [journal.c[name] for name in Entry.__slots__]


def append(connection: Connection, run_id: RunId, epoch: int, seq: int, entry: Entry) -> None:
    """Write an outcome; only in the transaction of a guarded write, whose ``seq`` it takes."""
    connection.execute(
        _INSERT,
        {
            "run_id": run_id,
            "epoch": epoch,
            "seq": seq,
            "path": entry.path,
            "scope": entry.scope,
            "kind": entry.kind.value,
            "name": entry.name,
            "outcome": entry.outcome.value,
            "recorded_at": entry.recorded_at,
            "attempts": entry.attempts,
            "args": entry.args,
            "value": entry.value,
            "fault_id": entry.fault_id,
            "key_generation": entry.key_generation,
            "beside": entry.beside,
        },
    )


def forget(connection: Connection, run_id: RunId) -> None:
    """Begin a run's journal anew."""
    connection.execute(delete(journal).where(journal.c.run_id == run_id))


def reopen(connection: Connection, run_id: RunId, path: StepPath) -> None:
    """Take back the outcome of a step that failed: it shall be tried again."""
    connection.execute(
        delete(journal).where(
            journal.c.run_id == run_id, journal.c.path == path, journal.c.outcome == Outcome.FAILED.value
        )
    )


def load(connection: Connection, run_id: RunId) -> list[Entry]:
    """Read the run's outcomes, in the order in which they were completed."""
    statement = select(*_LOAD_COLUMNS).where(journal.c.run_id == run_id).order_by(journal.c.seq)
    return [_entry(dict(row._mapping)) for row in connection.execute(statement)]


def last(connection: Connection, run_id: RunId) -> Entry | None:
    """Read the outcome that was recorded last."""
    statement = select(*_LOAD_COLUMNS).where(journal.c.run_id == run_id).order_by(journal.c.seq.desc()).limit(1)
    row = connection.execute(statement).one_or_none()
    return None if row is None else _entry(dict(row._mapping))


def is_past_pivot(connection: Connection, run_id: RunId) -> bool:
    """Tell whether a run only goes forward by now."""
    pivots = select(journal.c.path).where(journal.c.run_id == run_id, journal.c.kind == EntryKind.PIVOT.value)
    return connection.execute(pivots.limit(1)).first() is not None


def _entry(values: dict[str, Any]) -> Entry:
    values["kind"] = EntryKind(values["kind"])
    values["outcome"] = Outcome(values["outcome"])
    return Entry(**values)
