"""Writes of run owners as data, so that one statement can execute the writes of many runs, or one in a transaction.

An ``OwnerWrite`` is fenced as every write of an owner is (``runs.ownership.owner``): it finds the run's row only if
epoch, worker and ``seq`` are its own, and raises ``seq``. The rest of it is written if, and only if, that row was
found, in the same statement. Its answer is read from the updated row; no answer: refused, and nothing was written.

The classes are not frozen, because they are made for each step of each run, and freezing costs more than making.

An owned run's journal and stack have no second writer, and each owner has one write under way at a time; so no two
writes of a batch are about the same row, unless one of them is a stale owner's, and that one finds no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import Connection

from aft.fault import FaultState
from aft.ids import RunId, WorkerId
from aft.runs.ownership import owner_statements as statements
from aft.runs.ownership.owner_statements import DEATHS, FAULT, FENCE, FRAME, FROM_NOW, JOURNAL
from aft.runs.states import Status, sources
from aft.store.batch.committer import Executor
from aft.store.batch.row_format import Fields, as_json, as_texts, encode_value, for_sqlite
from aft.store.db_time import FromNow
from aft.store.outbox import PUT_SQLITE
from aft.store.postgres.libpq import Parameters

#: Changes of a write that is no progress: deaths keep their counts.
NO_PROGRESS: dict[str, Any] = dict.fromkeys(DEATHS)
#: Changes of a run's row that leave it without an owner, and without anything that wakes it.
NO_OWNER: dict[str, Any] = dict.fromkeys(("worker_id", "wake_id", "due_at", "sweep_at"))
#: Characters above which a write does not share a commit: it would keep the others waiting.
MOST_SHARED = 100_000


@dataclass(slots=True)
class OwnerWrite:
    """One write of a run's owner, without its fence. The outcome and the frame get its sequence number."""

    #: The outcome of a step.
    entry: Fields | None = field(default=None, repr=False)
    #: The frame to push.
    frame: Fields | None = field(default=None, repr=False)
    #: The number of the frame to pop, because it was undone.
    undone: int | None = None
    #: The fault to raise.
    fault: Fields | None = field(default=None, repr=False)
    #: Earlier faults to close, each with its final state.
    closed_faults: tuple[tuple[str, FaultState], ...] = ()
    #: A message for the outbox: namespace, queue, body, and the seconds for which it is reserved for its writer.
    message: tuple[str, str, str, float] | None = field(default=None, repr=False)
    #: New values of columns of the run's row; a time may be ``FromNow``. A status must be one that the run may get.
    changes: Mapping[str, Any] | None = field(default=None, repr=False)
    #: Whether the run ends: then its faults are resolved, except those that failed a step for good.
    ends: bool = False

    @property
    def size(self) -> int:
        """Return about how many characters it has; a large write should not share a commit."""
        texts = [fields.get(name) for fields in (self.entry, self.frame, self.fault) if fields for name in _TEXTS]
        texts.append(self.changes.get("result") if self.changes is not None else None)
        return sum(len(text) for text in texts if text is not None)


#: Columns that may be large.
_TEXTS = ("args", "value", "message", "traceback", "step")


#: What is executed in the transaction of a write, after it; gets the write's number.
Then = Callable[[Connection, int], None]


@dataclass(slots=True)
class Recording:
    """A write that may share a commit, unless it has ``more``, which is executed after it in its transaction."""

    write: OwnerWrite
    more: Then | None = None

    @property
    def may_share(self) -> bool:
        """Whether it may share a commit."""
        return self.more is None and self.write.size <= MOST_SHARED


@dataclass(slots=True)
class FencedWrite:
    """A write and its fence; ``read_to`` is the longest inbox with which it is accepted, None: any length."""

    run_id: RunId
    worker: WorkerId | None
    epoch: int
    seq: int
    write: OwnerWrite
    read_to: int | None = None


class OwnerBatch:
    """Executes owners' writes. Answers: the length of the inbox, and the number of the message in the outbox.

    Runs are locked in the order of their ids, as everywhere.
    """

    #: What must be true of a run for its owner to write.
    fence = FENCE

    def for_postgresql(self, items: Sequence[FencedWrite]) -> tuple[str, Parameters]:
        if len(items) == 1:
            return self._one(items[0])
        parts = frozenset[str]().union(*(_parts(item.write) for item in items))
        changed = {name for item in items for name in item.write.changes or ()}
        in_order = sorted(enumerate(items), key=lambda each: each[1].run_id)
        given = as_json([_fields(place, item) for place, item in in_order])
        return statements.for_many(parts, tuple(sorted(changed)), self.fence), [given]

    def _one(self, item: FencedWrite) -> tuple[str, Parameters]:
        write = item.write
        statement, names = statements.for_one(_parts(write), _named(write), self.fence)
        given = {"run": _run(item), "entry": write.entry, "frame": write.frame, "fault": write.fault}
        if names[-1][0] == "more":
            given["more"] = _more(write)
        values: list[Any] = []
        for part, columns in names:
            values += map((given[part] or {}).get, columns)
        return statement, as_texts(values)

    def write_sqlite(self, connection: Executor, items: Sequence[FencedWrite]) -> list[Any]:
        return [_write_one(connection, item, self.fence) for item in items]


class UnlockedBatch(OwnerBatch):
    """The same for runs that no other transaction has locked; the others are refused, so that no write waits."""

    fence = f"{FENCE} AND EXISTS (SELECT FROM aft_runs AS free WHERE free.id = run.id FOR NO KEY UPDATE SKIP LOCKED)"

    def write_sqlite(self, connection: Executor, items: Sequence[FencedWrite]) -> list[Any]:
        return OWNER.write_sqlite(connection, items)  # it locks no rows


OWNER, UNLOCKED = OwnerBatch(), UnlockedBatch()


def _parts(write: OwnerWrite) -> frozenset[str]:
    """Name the parts of the statement that a write needs."""
    others = write.undone is None and write.fault is None and write.message is None and not write.ends
    if write.entry is not None and others and not write.closed_faults:
        return _OUTCOME if write.frame is None else _FRAMED
    there = {
        "entry": write.entry is not None,
        "frame": write.frame is not None,
        "undone": write.undone is not None,
        "fault": write.fault is not None,
        "settled": bool(write.closed_faults),
        "message": write.message is not None,
        "ends": write.ends,
    }
    return frozenset(part for part, needed in there.items() if needed)


#: The parts of most writes: an outcome, and perhaps its frame.
_OUTCOME, _FRAMED = frozenset(["entry"]), frozenset(["entry", "frame"])


def _run(item: FencedWrite) -> dict[str, Any]:
    """Return the fence of a write, and what it changes of its run's row; a time from now is named ``FROM_NOW``."""
    row: dict[str, Any] = {"run_id": item.run_id, "worker": item.worker, "epoch": item.epoch, "seq": item.seq}
    row["read_to"] = item.read_to
    for name, value in (item.write.changes or {}).items():
        row[f"{name}{FROM_NOW}" if isinstance(value, FromNow) else name] = value
        if name == "status":
            row["sources"] = _sources(value)
    return row


@cache
def _sources(status: Status) -> str:
    return f" {' '.join(source.value for source in sources(status))} "


def _named(write: OwnerWrite) -> tuple[str, ...]:
    """Name the changed columns, as ``_run`` does."""
    if write.changes is None:
        return ()
    changes = sorted(write.changes.items())
    return tuple(f"{name}{FROM_NOW}" if isinstance(value, FromNow) else name for name, value in changes)


def _more(write: OwnerWrite) -> dict[str, Any]:
    """Return what a write takes besides rows that it inserts."""
    more: dict[str, Any] = {"undone": write.undone}
    if write.closed_faults:
        more["settled"] = as_json([{"id": id, "state": state.value} for id, state in write.closed_faults]).decode()
    if write.message is not None:
        more["its_namespace"], more["queue"], more["body"], more["hold"] = write.message
    return more


def _fields(place: int, item: FencedWrite) -> dict[str, Any]:
    """Encode one of several writes for PostgreSQL; missing parts are null."""
    write = item.write
    row: dict[str, Any] = {"place": place, **_run(item), "undone": write.undone}
    row |= {"entry": write.entry, "frame": write.frame, "fault": write.fault, "changed": [*(write.changes or ())]}
    if write.closed_faults:
        row["settled"] = [{"id": id, "state": state.value} for id, state in write.closed_faults]
    if write.message is not None:
        row["its_namespace"], row["queue"], row["body"], row["hold"] = write.message
    if write.ends:
        row["ends"] = True
    return row


# SQLite ---------------------------------------------------------------------------------------------------------


def _write_one(connection: Executor, item: FencedWrite, fence: str) -> tuple[int, int | None] | None:
    write, run_id, seq = item.write, item.run_id, item.seq + 1
    run = {name: encode_value(value) for name, value in _run(item).items()}
    found = connection.execute(statements.for_sqlite(_named(write), fence), run).fetchall()
    if not found:
        return None
    if write.entry is not None:
        connection.execute(statements.ENTRY, {"run_id": run_id, "seq": seq, **for_sqlite(write.entry, JOURNAL)})
    if write.frame is not None:
        connection.execute(statements.PUSHED, {"run_id": run_id, "seq": seq, **for_sqlite(write.frame, FRAME)})
    if write.undone is not None:
        connection.execute(statements.UNDONE, (run_id, write.undone))
    if write.fault is not None:
        connection.execute(statements.RAISED, {"run_id": run_id, **for_sqlite(write.fault, FAULT)})
    for id, state in write.closed_faults:
        connection.execute(statements.SETTLED, (state.value, id))
    if write.ends:
        connection.execute(statements.DROPPED, (run_id,))
    message_id = None if write.message is None else connection.execute(PUT_SQLITE, write.message).fetchall()[0][0]
    return found[0][0], message_id
