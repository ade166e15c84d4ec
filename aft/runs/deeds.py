"""What a run's owner writes at once, as data: so that the writes of many runs can be one statement.

A ``Write`` is guarded as every write of an owner is (``runs.owner``): it finds the run's row only if epoch, worker and
``seq`` are its own, and raises ``seq``. What else it holds is written if, and only if, that row was found, in the same
statement. Its answer is what the row says then; none: it was refused, and nothing of it was written.

They are not frozen, like most of what is made for each step of each run: freezing costs more than making.

There is no second writer of an owned run's journal and stack, and each owner has one write under way at a time; so no
two writes of a batch are about the same row, unless one of them is a stale owner's, and that one finds no row.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, update

from aft.fault import FaultState
from aft.ids import RunId, WorkerId
from aft.runs.states import Status, sources
from aft.store.moments import SQLITE_NOW, now
from aft.store.spelling import Fields, as_json, as_record, for_sqlite, insert_one
from aft.store.tables import faults, frames, journal, outbox

#: What an owner writes into a row of each table; the rest has its default, or comes later.
JOURNAL = tuple(column.name for column in journal.columns if column.name not in ("run_id", "seq"))
FRAME = ("path", "scope", "activity", "compensator", "state", "args", "value", "key_generation", "pushed_at")
_LATER = {"run_id", "level", "try_in_level", "wait_seconds", "queue", "due_at", "decided_at", "settled_at"}
_LATER |= {"run_status", "run_tags"}
FAULT = tuple(column.name for column in faults.columns if column.name not in _LATER)


@dataclass(slots=True)
class Leaving:
    """How a run is let go: with nobody to wake it but who decides about its fault; ``status`` None: as it is."""

    status: Status | None
    waits: str | None = None
    savepoints: str | None = None
    #: It has come to its end, with ``result``.
    ends: bool = False
    result: str | None = None


@dataclass(slots=True)
class Write:
    """One write of a run's owner, without its guard. The outcome and the frame take its number."""

    #: The outcome of a step.
    entry: Fields | None = None
    #: An undo that is owed from now on.
    frame: Fields | None = None
    #: The number of the frame that was undone.
    undone: int | None = None
    #: What went wrong.
    fault: Fields | None = None
    #: Earlier faults, and what has become of them.
    settled: tuple[tuple[str, FaultState], ...] = ()
    #: A message that goes out with it: namespace, queue, body, and for how long its writer holds it.
    message: tuple[str, str, str, float] | None = None
    leaving: Leaving | None = None
    #: The fault for which everything is undone from now on; by somebody who does not leave.
    turning: str | None = None

    @property
    def size(self) -> int:
        """About how many characters it has: what is large is better written alone."""
        texts = [fields.get(name) for fields in (self.entry, self.frame, self.fault) if fields for name in _TEXTS]
        texts.append(self.leaving.result if self.leaving is not None else None)
        return sum(len(text) for text in texts if text is not None)


#: Columns that may hold much.
_TEXTS = ("args", "value", "message", "traceback", "step")


@dataclass(slots=True)
class Recording:
    """A write that may be shared with others; ``more``: it may not, because this belongs to it.

    Called, it writes itself, except for what becomes of the run, in a transaction whose guard has been passed.
    """

    run_id: RunId
    write: Write
    more: Callable[[Connection, int], None] | None = None

    def __call__(self, connection: Connection, seq: int) -> None:
        write, ours = self.write, {"run_id": self.run_id}
        assert write.turning is None, "what turns a run changes its row, and is not written from here"
        if write.entry is not None:
            connection.execute(_INSERT_ENTRY, {**write.entry, **ours, "seq": seq})
        if write.frame is not None:
            connection.execute(_INSERT_FRAME, {**write.frame, **ours, "seq": seq})
        if write.undone is not None:
            undone = {"state": "undone", "note": None, "settled_at": now()}
            here = (frames.c.run_id == self.run_id, frames.c.seq == write.undone)
            connection.execute(update(frames).where(*here).values(**undone))
        if write.fault is not None:
            connection.execute(_INSERT_FAULT, {**write.fault, **ours})
        for id, state in write.settled:
            settled = {"state": state.value, "settled_at": now()}
            connection.execute(update(faults).where(faults.c.id == id).values(**settled))
        if self.more is not None:
            self.more(connection, seq)


_INSERT_ENTRY, _INSERT_FRAME, _INSERT_FAULT = insert(journal), insert(frames), insert(faults)


@dataclass(slots=True)
class Guarded:
    """A write, and what must be true of the run's row; ``read_to`` is how far its inbox may reach, None: anywhere."""

    run_id: RunId
    worker: WorkerId | None
    epoch: int
    seq: int
    write: Write
    read_to: int | None = None


class OwnerDeed:
    """Writes owners' writes. Answers: the length of the inbox, and the number of the message in the outbox.

    The statement has only the parts that somebody needs: each opens its table and its indices, even for nothing. Each
    table is asked for its rows by a list of keys, besides being joined: a plan that was made while it was small must
    not go through all of it once it is large. Runs are locked in the order of their ids, as others do.
    """

    def statement(self, items: Sequence[Guarded]) -> str:
        if len(items) == 1:
            return spell_statement(_parts(items[0].write))
        return spell_statement(frozenset[str]().union(*(_parts(item.write) for item in items)))

    def spell(self, items: Sequence[Guarded]) -> bytes:
        if len(items) == 1:
            return as_json([_fields(0, items[0])])
        in_order = sorted(enumerate(items), key=lambda each: each[1].run_id)
        return as_json([_fields(place, item) for place, item in in_order])

    def write_sqlite(self, connection: sqlite3.Connection, items: Sequence[Guarded]) -> list[Any]:
        return [_write_one(connection, item) for item in items]


OWNER = OwnerDeed()


@functools.cache
def spell_statement(parts: frozenset[str]) -> str:
    """Put the statement for PostgreSQL together, of the parts that are needed."""
    given = [_GIVEN[part] for part in _GIVEN if part in parts]
    written = "".join(f", {_WRITTEN[part]}" for part in _WRITTEN if part in parts)
    columns = [name.split()[0] for words in given for name in words.split(", ")]
    leaves = _LEAVES if "leaving" in parts else ""
    edge = "AND (given.status IS NULL OR run.status = ANY (given.sources))" if "leaving" in parts else ""
    told, message = ("told.id", "LEFT JOIN told ON told.body = ours.body") if "message" in parts else ("NULL", "")
    return f"""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS given(
        {", ".join((_KEYS, *given))})
), ours AS (
    UPDATE aft_runs AS run SET
        seq = run.seq + 1, updated_at = statement_timestamp(), deaths = 0, deaths_alone = 0 {leaves}
    FROM given
    WHERE run.id = ANY (ARRAY(SELECT run_id FROM given)) AND run.id = given.run_id
        AND {FENCE}
        AND (given.read_to IS NULL OR run.inbox_seq <= given.read_to) {edge}
    -- All that follows reads from here alone: joining what was given once more would cost its square.
    RETURNING given.place, run.id, run.seq AS number, run.inbox_seq {"".join(f", given.{name}" for name in columns)}
){written}
SELECT ours.place, ours.inbox_seq, {told} FROM ours {message}
"""


#: What must be true of a run for its owner to write.
FENCE = "run.epoch = given.epoch AND run.worker_id = given.worker AND run.seq = given.seq"
_KEYS = "place integer, run_id text, worker text, epoch bigint, seq bigint, read_to bigint"
#: What is given for each part.
_GIVEN = {
    "leaving": (
        "leaves boolean, ends boolean, turning text, status text, sources text[], result text, waits text, "
        "savepoints text"
    ),
    "entry": "entry json",
    "frame": "frame json",
    "undone": "undone bigint",
    "fault": "fault json",
    "settled": "settled json",
    "message": "its_namespace text, queue text, body text, hold double precision",
}
_LEAVES = """,
        status = coalesce(given.status, run.status),
        cause = CASE WHEN given.turning IS NULL THEN run.cause ELSE 'fault' END,
        fault_id = coalesce(given.turning, run.fault_id),
        deadline_at = CASE WHEN given.turning IS NULL THEN run.deadline_at END,
        result = CASE WHEN given.ends THEN given.result ELSE run.result END,
        ended_as = CASE WHEN given.ends THEN given.status ELSE run.ended_as END,
        ended_at = CASE WHEN given.ends THEN statement_timestamp() ELSE run.ended_at END,
        waits = CASE WHEN given.leaves THEN given.waits ELSE run.waits END,
        savepoints = CASE WHEN given.leaves THEN given.savepoints ELSE run.savepoints END,
        worker_id = CASE WHEN given.leaves THEN NULL ELSE run.worker_id END,
        wake_id = CASE WHEN given.leaves THEN NULL ELSE run.wake_id END,
        due_at = CASE WHEN given.leaves THEN NULL ELSE run.due_at END,
        sweep_at = CASE WHEN given.leaves THEN NULL ELSE run.sweep_at END"""
#: What each part writes.
_WRITTEN = {
    "entry": f"""journaled AS (
    INSERT INTO aft_journal (run_id, seq, {", ".join(JOURNAL)})
    SELECT ours.id, ours.number, {", ".join(f"entry.{name}" for name in JOURNAL)}
    FROM ours, json_to_record(ours.entry) AS entry({as_record(journal, JOURNAL)})
    WHERE ours.entry IS NOT NULL
)""",
    "frame": f"""pushed AS (
    INSERT INTO aft_frames (run_id, seq, {", ".join(FRAME)})
    SELECT ours.id, ours.number, {", ".join(f"frame.{name}" for name in FRAME)}
    FROM ours, json_to_record(ours.frame) AS frame({as_record(frames, FRAME)})
    WHERE ours.frame IS NOT NULL
)""",
    "undone": """taken_off AS (
    UPDATE aft_frames AS frame SET state = 'undone', note = NULL, settled_at = statement_timestamp()
    FROM ours
    WHERE frame.run_id = ANY (ARRAY(SELECT id FROM ours WHERE undone IS NOT NULL))
        AND frame.run_id = ours.id AND frame.seq = ours.undone
)""",
    "fault": f"""raised AS (
    INSERT INTO aft_faults (run_id, {", ".join(FAULT)})
    SELECT ours.id, {", ".join(f"fault.{name}" for name in FAULT)}
    FROM ours, json_to_record(ours.fault) AS fault({as_record(faults, FAULT)})
    WHERE ours.fault IS NOT NULL
)""",
    "settled": """settled AS (
    UPDATE aft_faults AS fault SET state = settled.state, settled_at = statement_timestamp()
    FROM ours, json_to_recordset(ours.settled) AS settled(id text, state text)
    WHERE fault.id = ANY (ARRAY(SELECT each.id FROM ours, json_to_recordset(ours.settled) AS each(id text)))
        AND fault.id = settled.id
)""",
    "ending": """dropped AS (
    UPDATE aft_faults AS fault SET state = 'resolved', settled_at = statement_timestamp()
    FROM ours
    WHERE fault.run_id = ANY (ARRAY(SELECT id FROM ours WHERE ends))
        AND fault.run_id = ours.id AND fault.state IN ('open', 'waiting', 'handled')
)""",
    "message": """told AS (
    INSERT INTO aft_outbox (namespace, queue, body, taken_until)
    SELECT its_namespace, queue, body, statement_timestamp() + make_interval(secs => hold)
    FROM ours
    WHERE body IS NOT NULL
    RETURNING id, body
)""",
}


def _parts(write: Write) -> frozenset[str]:
    """Name the parts of the statement that a write needs."""
    others = (write.undone, write.fault, write.message, write.leaving, write.turning)
    if write.entry is not None and not write.settled and all(part is None for part in others):
        return _OUTCOME if write.frame is None else _FRAMED
    there = {
        "entry": write.entry is not None,
        "frame": write.frame is not None,
        "undone": write.undone is not None,
        "fault": write.fault is not None,
        "settled": bool(write.settled),
        "message": write.message is not None,
        "leaving": write.leaving is not None or write.turning is not None,
        "ending": write.leaving is not None and write.leaving.ends,
    }
    return frozenset(part for part, needed in there.items() if needed)


#: What most writes are: an outcome, and perhaps its frame.
_OUTCOME, _FRAMED = frozenset(["entry"]), frozenset(["entry", "frame"])


def _fields(place: int, item: Guarded) -> dict[str, Any]:
    """Spell a write for PostgreSQL; what is not there is null."""
    write = item.write
    row: dict[str, Any] = {
        "place": place,
        "run_id": item.run_id,
        "worker": item.worker,
        "epoch": item.epoch,
        "seq": item.seq,
        "read_to": item.read_to,
        "entry": write.entry,
        "frame": write.frame,
        "undone": write.undone,
        "fault": write.fault,
    }
    if write.settled:
        row["settled"] = [{"id": id, "state": state.value} for id, state in write.settled]
    if write.message is not None:
        row["its_namespace"], row["queue"], row["body"], row["hold"] = write.message
    if (leaving := write.leaving) is not None:
        row |= {
            "leaves": True,
            "ends": leaving.ends,
            "status": leaving.status,
            "sources": _sources(leaving.status),
            "result": leaving.result,
            "waits": leaving.waits,
            "savepoints": leaving.savepoints,
        }
    elif write.turning is not None:
        status = Status.COMPENSATING
        row |= {"turning": write.turning, "status": status, "sources": _sources(status)}
    return row


def _sources(status: Status | None) -> list[str] | None:
    """The states from which a run may come to this one."""
    return None if status is None else [source.value for source in sources(status)]


# SQLite ---------------------------------------------------------------------------------------------------------

_GUARD = "id = :run_id AND epoch = :epoch AND worker_id = :worker AND seq = :seq"
_PROGRESS = f"seq = seq + 1, updated_at = {SQLITE_NOW}, deaths = 0, deaths_alone = 0"
_UNREAD = "(:read_to IS NULL OR inbox_seq <= :read_to)"
_STAY = f"UPDATE aft_runs SET {_PROGRESS} WHERE {_GUARD} AND {_UNREAD} RETURNING inbox_seq"
_NO_OWNER = "worker_id = NULL, wake_id = NULL, due_at = NULL, sweep_at = NULL"
_LEFT = f"{_PROGRESS}, {_NO_OWNER}, status = coalesce(:status, status), waits = :waits, savepoints = :savepoints"
_FROM = f"{_GUARD} AND {_UNREAD} AND (:status IS NULL OR instr(:sources, ' ' || status || ' '))"
_LEAVE = f"UPDATE aft_runs SET {_LEFT} WHERE {_FROM} RETURNING inbox_seq"
_ENDED = f"result = :result, ended_as = :status, ended_at = {SQLITE_NOW}"
_END = f"UPDATE aft_runs SET {_LEFT}, {_ENDED} WHERE {_FROM} RETURNING inbox_seq"
_TURNED = "status = :status, cause = 'fault', fault_id = :turning, deadline_at = NULL"
_TURN = f"UPDATE aft_runs SET {_PROGRESS}, {_TURNED} WHERE {_FROM} RETURNING inbox_seq"
_ENTRY = insert_one(journal, ("run_id", "seq", *JOURNAL))
_FRAME = insert_one(frames, ("run_id", "seq", *FRAME))
_FAULT = insert_one(faults, ("run_id", *FAULT))
_UNDONE = f"UPDATE aft_frames SET state = 'undone', note = NULL, settled_at = {SQLITE_NOW} WHERE run_id = ? AND seq = ?"
_SETTLED = f"UPDATE aft_faults SET state = ?, settled_at = {SQLITE_NOW} WHERE id = ?"
_DROPPED = (
    f"UPDATE aft_faults SET state = 'resolved', settled_at = {SQLITE_NOW} "
    "WHERE run_id = ? AND state IN ('open', 'waiting', 'handled')"
)
_TOLD = (
    f"INSERT INTO {outbox.name} (namespace, queue, body, taken_until) VALUES (?, ?, ?, {SQLITE_NOW} + ?) RETURNING id"
)


def _write_one(connection: sqlite3.Connection, item: Guarded) -> tuple[int, int | None] | None:
    write, run_id, seq = item.write, item.run_id, item.seq + 1
    found = connection.execute(*_guard(item)).fetchall()
    if not found:
        return None
    if write.entry is not None:
        connection.execute(_ENTRY, {"run_id": run_id, "seq": seq, **for_sqlite(write.entry, JOURNAL)})
    if write.frame is not None:
        connection.execute(_FRAME, {"run_id": run_id, "seq": seq, **for_sqlite(write.frame, FRAME)})
    if write.undone is not None:
        connection.execute(_UNDONE, (run_id, write.undone))
    if write.fault is not None:
        connection.execute(_FAULT, {"run_id": run_id, **for_sqlite(write.fault, FAULT)})
    for id, state in write.settled:
        connection.execute(_SETTLED, (state.value, id))
    if write.leaving is not None and write.leaving.ends:
        connection.execute(_DROPPED, (run_id,))
    told = None if write.message is None else connection.execute(_TOLD, write.message).fetchall()[0][0]
    return found[0][0], told


def _guard(item: Guarded) -> tuple[str, dict[str, Any]]:
    row: dict[str, Any] = {
        "run_id": item.run_id,
        "worker": item.worker,
        "epoch": item.epoch,
        "seq": item.seq,
        "read_to": item.read_to,
    }
    leaving, turning = item.write.leaving, item.write.turning
    if leaving is None and turning is None:
        return _STAY, row
    status = Status.COMPENSATING if leaving is None else leaving.status
    row |= {"status": status, "sources": f" {' '.join(_sources(status) or ())} "}
    if leaving is None:
        return _TURN, {**row, "turning": turning}
    row |= {"waits": leaving.waits, "savepoints": leaving.savepoints}
    return (_END, {**row, "result": leaving.result}) if leaving.ends else (_LEAVE, row)
