"""Making runs, many at once: one statement inserts what several threads begin or submit at the same time.

A key that names a run already is no error: that one is not made, and has no answer. Whoever brought it looks it up.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aft import names
from aft.envelope import Message
from aft.errors import StoreError
from aft.ids import OrderId, WorkerId, new_id
from aft.runs import submit
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.submit import NewRun
from aft.store import Store
from aft.store.moments import SQLITE_NOW
from aft.store.spelling import as_json, as_record
from aft.store.tables import runs

#: What a new run's row is given as it is; the rest are times, counted from now.
_GIVEN = (
    *("id", "namespace", "flow", "version", "args", "defaulted", "key", "priority", "owner", "resources", "tags"),
    *("expected_seconds", "status", "root_id", "worker_id", "epoch", "wake_id"),
)
#: Seconds from now, by the column that they end in.
_TIMES = ("overdue_at", "deadline_at", "started_at", "due_at", "sweep_at")


@dataclass(frozen=True, slots=True)
class Beginning:
    """A run that begins at once: here, with ``worker`` as its owner, or wherever its message is read."""

    new: NewRun
    worker: WorkerId | None = None
    #: The order that wakes it, and its message: queue and body.
    order: OrderId | None = None
    message: tuple[str, str] | None = None
    #: Seconds after which the timer takes it, if the message has not.
    patience: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Its row, with times as seconds from now."""
        new, begins_here = self.new, self.worker is not None
        expected = None if new.expected is None else new.expected.total_seconds()
        return {
            "id": new.id,
            "namespace": new.namespace,
            "flow": new.flow,
            "version": new.version,
            "args": new.args,
            "defaulted": json.dumps(new.defaulted) if new.defaulted else None,
            "key": new.key,
            "priority": new.priority,
            "owner": new.owner,
            "resources": json.dumps(new.resources) if new.resources else None,
            "tags": json.dumps(new.tags) if new.tags else None,
            "expected_seconds": expected,
            "status": Status.RUNNING.value,
            "root_id": new.id,
            "worker_id": self.worker,
            "epoch": 1 if begins_here else 0,
            "wake_id": self.order,
            "overdue_at": expected,
            "deadline_at": None if new.deadline is None else new.deadline.total_seconds(),
            "started_at": 0.0 if begins_here else None,
            "due_at": None if begins_here else 0.0,
            "sweep_at": None if begins_here else self.patience,
        }

    def row(self, created_at: Any, deadline_at: Any) -> RunRow:
        """The run as it was made."""
        new, made = self.new, _moment(created_at)
        begins_here = self.worker is not None
        return RunRow(
            id=new.id,
            namespace=new.namespace,
            flow=new.flow,
            version=new.version,
            key=new.key,
            key_generation=0,
            args=new.args,
            status=Status.RUNNING,
            reason=None,
            cause=None,
            result=None,
            ended_as=None,
            fault_id=None,
            priority=new.priority,
            owner=new.owner,
            resources=new.resources,
            tags=new.tags,
            expected=new.expected,
            root_id=new.id,
            parent_id=None,
            parent_path=None,
            parent_generation=None,
            parent_seq=None,
            parent_inbox_seq=None,
            waits=(),
            savepoints={},
            deadline_at=None if deadline_at is None else _moment(deadline_at),
            pivoted_at=None,
            epoch=1 if begins_here else 0,
            worker_id=self.worker,
            wake_id=self.order,
            due_at=None if begins_here else made,
            seq=0,
            inbox_seq=0,
            deaths=0,
            created_at=made,
            started_at=made if begins_here else None,
            updated_at=made,
            ended_at=None,
            erased_at=None,
        )


def _moment(seconds: Any) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)


def begin(store: Store, new: NewRun, worker: WorkerId) -> tuple[RunRow, bool]:
    """Make a run that ``worker`` owns from the start; False: the key already named one, returned as it is."""
    row = _make(store, Beginning(new, worker))
    if row is not None:
        return row, True
    with store.write() as connection:
        return submit.begin(connection, new, worker)


def enqueue(store: Store, new: NewRun, at: datetime, grace: timedelta) -> tuple[RunRow, bool]:
    """Make a run that some worker will take; False: the key already named one, returned as it is."""
    if new.after is None and new.at is None:
        order = OrderId(new_id())
        address = names.resume_run(new.namespace, new.flow, new.version)
        message = (address, Message.about_order(new.id, order, at).encode())
        row = _make(store, Beginning(new, None, order, message, submit.patience(new, grace)))
        if row is not None:
            return row, True
    with store.write() as connection:
        return submit.enqueue(connection, new, at, grace)


def _make(store: Store, beginning: Beginning) -> RunRow | None:
    """Make a run in a commit that others share; None: it is there already, or has to be made alone."""
    try:
        answer = store.commit(BEGINNING, beginning)
    except StoreError:
        return None
    return None if answer is None else beginning.row(*answer)


class BeginningDeed:
    """Makes runs. Answers: when they were made, and their deadlines; none: there is such a run already."""

    def spell(self, items: Sequence[Beginning]) -> bytes:
        # In one order for all: two that make runs with the same keys must not wait for each other crosswise.
        in_order = sorted(enumerate(items), key=lambda each: (each[1].new.key or "", each[1].new.id))
        return as_json([self._fields(place, item) for place, item in in_order])

    def _fields(self, place: int, item: Beginning) -> dict[str, Any]:
        queue, body = item.message or (None, None)
        return {**item.fields(), "place": place, "queue": queue, "body": body}

    def statement(self, items: Sequence[Beginning]) -> str:
        return _TOLD if any(item.message is not None for item in items) else _UNTOLD

    def write_sqlite(self, connection: sqlite3.Connection, items: Sequence[Beginning]) -> list[Any]:
        return [_make_one(connection, item) for item in items]


def _statement(told: str) -> str:
    return f"""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS given(
        place integer, queue text, body text, {as_record(runs, _GIVEN)},
        {", ".join(f"{name} double precision" for name in _TIMES)})
), made AS (
    INSERT INTO aft_runs ({", ".join(_GIVEN)}, {", ".join(_TIMES)}, created_at, updated_at)
    SELECT {", ".join(_GIVEN)},
        {", ".join(f"statement_timestamp() + make_interval(secs => {name})" for name in _TIMES)},
        statement_timestamp(), statement_timestamp()
    FROM given
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, deadline_at
){told}
SELECT given.place, extract(epoch FROM made.created_at), extract(epoch FROM made.deadline_at)
FROM made JOIN given USING (id)
"""


_UNTOLD = _statement("")
_TOLD = _statement(""", told AS (
    INSERT INTO aft_outbox (namespace, queue, body, taken_until)
    SELECT given.namespace, given.queue, given.body, statement_timestamp()
    FROM made JOIN given USING (id)
    WHERE given.body IS NOT NULL
)""")

BEGINNING = BeginningDeed()

_MAKE = (
    f"INSERT INTO aft_runs ({', '.join(_GIVEN)}, {', '.join(_TIMES)}, created_at, updated_at) "
    f"VALUES ({', '.join(f':{name}' for name in _GIVEN)}, {', '.join(f'{SQLITE_NOW} + :{name}' for name in _TIMES)}, "
    f"{SQLITE_NOW}, {SQLITE_NOW}) ON CONFLICT DO NOTHING RETURNING created_at, deadline_at"
)
_TELL = f"INSERT INTO aft_outbox (namespace, queue, body, taken_until) VALUES (?, ?, ?, {SQLITE_NOW})"


def _make_one(connection: sqlite3.Connection, item: Beginning) -> tuple[float, float | None] | None:
    made = connection.execute(_MAKE, item.fields()).fetchall()
    if not made:
        return None
    if item.message is not None:
        connection.execute(_TELL, (item.new.namespace, *item.message))
    return made[0][0], made[0][1]
