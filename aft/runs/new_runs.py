"""Runs to be made, and the statement that makes them: several that threads begin or submit at the same time, or one.

A key that names a run already is no error: that run is not made and has no answer, and the caller looks it up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from aft.codec import ArgumentsCodec
from aft.ids import OrderId, RunId, StepPath, WorkerId
from aft.run_options import DEFAULTS, RunOptions, labels_of
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.store import outbox
from aft.store.batch.committer import Executor
from aft.store.batch.row_format import as_json, as_record, encode_value
from aft.store.db_time import SQLITE_NOW
from aft.store.postgres.libpq import Parameters
from aft.store.tables import runs


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be made: flow, encoded arguments, and the caller's options."""

    id: RunId
    namespace: str
    flow: str
    version: int
    args: str = field(repr=False)
    options: RunOptions = DEFAULTS
    #: Of a child: its parent, the step there with its generation, and the first ancestor of both.
    parent: tuple[RunId, StepPath, int, RunId] | None = None
    #: Parameters that the caller left to their defaults.
    defaulted: tuple[str, ...] = ()
    #: The codec of the flow's arguments; None: this process does not have its code.
    arguments: ArgumentsCodec | None = None


#: Columns of a new run that are written as given; the rest are times, counted from now.
_GIVEN = (
    *("id", "namespace", "flow", "version", "args", "defaulted", "key", "priority", "owner", "resources", "tags"),
    *("expected_seconds", "status", "root_id", "parent_id", "parent_path", "parent_generation", "worker_id", "epoch"),
    "wake_id",
)
#: Columns whose values are given in seconds from now.
_TIMES = ("overdue_at", "deadline_at", "started_at", "due_at", "sweep_at")
#: Those of them that are ``begins_at`` instead, if that is given.
_BEGINS = ("due_at", "sweep_at")
#: The fields of a new run that nobody gives.
_UNTOUCHED: dict[str, Any] = {
    **dict.fromkeys(("key_generation", "seq", "inbox_seq", "deaths"), 0),
    **dict.fromkeys(("reason", "cause", "result", "ended_as", "fault_id", "parent_seq", "parent_inbox_seq")),
    **dict.fromkeys(("pivoted_at", "ended_at", "erased_at")),
    "status": Status.RUNNING,
    "waits": (),
}


@dataclass(frozen=True, slots=True)
class NewRunWrite:
    """A run to be made: with ``worker`` as its owner, or for any worker that its message or the timer brings it to."""

    new: NewRun
    worker: WorkerId | None = None
    #: The order that wakes it, and its message: queue and body; None: only the timer wakes it.
    order: OrderId | None = None
    message: tuple[str, str] | None = None
    #: Seconds until it begins, and until the timer claims it if its message has not arrived.
    due: float = 0.0
    sweep: float = 0.0
    #: When it begins, instead of both.
    begins_at: datetime | None = None

    def fields(self) -> dict[str, Any]:
        """Return its row, with times as seconds from now."""
        new, options, begins_here = self.new, self.new.options, self.worker is not None
        parent_id, parent_path, parent_generation, root_id = new.parent or (None, None, None, new.id)
        expected = None if options.expected is None else options.expected.total_seconds()
        return {
            "id": new.id,
            "namespace": new.namespace,
            "flow": new.flow,
            "version": new.version,
            "args": new.args,
            "defaulted": json.dumps(new.defaulted) if new.defaulted else None,
            "key": options.key,
            "priority": options.priority,
            "owner": options.owner,
            "resources": json.dumps(options.resources) if options.resources else None,
            "tags": json.dumps(options.tags) if options.tags else None,
            "expected_seconds": expected,
            "status": Status.RUNNING.value,
            "root_id": root_id,
            "parent_id": parent_id,
            "parent_path": parent_path,
            "parent_generation": parent_generation,
            "worker_id": self.worker,
            "epoch": 1 if begins_here else 0,
            "wake_id": self.order,
            "overdue_at": expected,
            "deadline_at": None if options.deadline is None else options.deadline.total_seconds(),
            "started_at": 0.0 if begins_here else None,
            "due_at": None if begins_here else self.due,
            "sweep_at": None if begins_here else self.sweep,
            "begins_at": self.begins_at,
        }

    def labels(self) -> list[tuple[str, str]]:
        """Return its labels, names with values."""
        options = self.new.options
        return labels_of(options.resources, options.tags) if options.resources or options.tags else []

    def row(self, created_at: Any, deadline_at: Any, due_at: Any) -> RunRow:
        """Return the run as it was made."""
        new, options, made, begins_here = self.new, self.new.options, _moment(created_at), self.worker is not None
        parent_id, parent_path, parent_generation, root_id = new.parent or (None, None, None, new.id)
        return RunRow(
            id=new.id,
            namespace=new.namespace,
            flow=new.flow,
            version=new.version,
            key=options.key,
            args=new.args,
            priority=options.priority,
            owner=options.owner,
            resources=options.resources,
            tags=options.tags,
            expected=options.expected,
            root_id=root_id,
            parent_id=parent_id,
            parent_path=parent_path,
            parent_generation=parent_generation,
            savepoints={},
            deadline_at=None if deadline_at is None else _moment(deadline_at),
            epoch=1 if begins_here else 0,
            worker_id=self.worker,
            wake_id=self.order,
            due_at=None if due_at is None else _moment(due_at),
            created_at=made,
            started_at=made if begins_here else None,
            updated_at=made,
            **_UNTOUCHED,
        )


def _moment(seconds: Any) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)


class NewRunBatch:
    """Makes runs. The answer of each is the times at which it was made, at which it fails, and at which it is due.

    One that exists already has no answer.
    """

    def for_postgresql(self, items: Sequence[NewRunWrite]) -> tuple[str, Parameters]:
        # In one order for all: two batches with the same keys must not deadlock.
        in_order = sorted(enumerate(items), key=lambda each: (each[1].new.options.key or "", each[1].new.id))
        rows = [self._fields(place, item) for place, item in in_order]
        told, labelled = any(item.message is not None for item in items), any("labels" in row for row in rows)
        return _statement(told, labelled), [as_json(rows)]

    def _fields(self, place: int, item: NewRunWrite) -> dict[str, Any]:
        queue, body = item.message or (None, None)
        labels = [{"name": name, "value": value} for name, value in item.labels()]
        return {**item.fields(), "place": place, "queue": queue, "body": body, **({"labels": labels} if labels else {})}

    def write_sqlite(self, connection: Executor, items: Sequence[NewRunWrite]) -> list[Any]:
        return [_make_one(connection, item) for item in items]


NEW_RUNS = NewRunBatch()


def _times(later: str, begins_at: str) -> str:
    """Format the values of the times; ``later`` is a time from now, with ``{}`` for the column."""
    moments = {name: later.format(name) for name in _TIMES}
    moments |= {name: f"coalesce({begins_at}, {moments[name]})" for name in _BEGINS}
    return ", ".join(moments.values())


_COLUMNS = f"{', '.join(_GIVEN)}, {', '.join(_TIMES)}, created_at, updated_at"


#: Saves the messages of those runs that were made.
_TELL = f""", told AS (
    {outbox.put_selected("given.namespace", "given.queue", "given.body")}
    FROM made JOIN given USING (id)
    WHERE given.body IS NOT NULL
)"""
#: Writes their labels.
_LABEL = """, labelled AS (
    INSERT INTO aft_run_labels (namespace, name, value, run_id)
    SELECT given.namespace, label.name, label.value, made.id
    FROM made JOIN given USING (id), json_to_recordset(given.labels) AS label(name text, value text)
    WHERE given.labels IS NOT NULL
)"""


@cache
def _statement(told: bool, labelled: bool) -> str:
    return f"""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS given(
        place integer, queue text, body text, labels json, begins_at timestamptz, {as_record(runs, _GIVEN)},
        {", ".join(f"{name} double precision" for name in _TIMES)})
), made AS (
    INSERT INTO aft_runs ({_COLUMNS})
    SELECT {", ".join(_GIVEN)}, {_times("statement_timestamp() + make_interval(secs => {})", "begins_at")},
        statement_timestamp(), statement_timestamp()
    FROM given
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, deadline_at, due_at
){_TELL if told else ""}{_LABEL if labelled else ""}
SELECT given.place, extract(epoch FROM made.created_at), extract(epoch FROM made.deadline_at),
    extract(epoch FROM made.due_at)
FROM made JOIN given USING (id)
"""


_MAKE = (
    f"INSERT INTO aft_runs ({_COLUMNS}) "
    f"VALUES ({', '.join(f':{name}' for name in _GIVEN)}, {_times(f'{SQLITE_NOW} + :{{}}', ':begins_at')}, "
    f"{SQLITE_NOW}, {SQLITE_NOW}) ON CONFLICT DO NOTHING RETURNING created_at, deadline_at, due_at"
)


_LABEL_SQLITE = "INSERT INTO aft_run_labels (namespace, name, value, run_id) VALUES (?, ?, ?, ?)"


def _make_one(connection: Executor, item: NewRunWrite) -> tuple[float, float | None, float | None] | None:
    fields = item.fields()
    made = connection.execute(_MAKE, {**fields, "begins_at": encode_value(item.begins_at)}).fetchall()
    if not made:
        return None
    for name, value in item.labels():
        connection.execute(_LABEL_SQLITE, (item.new.namespace, name, value, item.new.id))
    if item.message is not None:
        connection.execute(outbox.PUT_SQLITE, (item.new.namespace, *item.message, 0.0)).fetchall()
    created_at, deadline_at, due_at = made[0]
    return created_at, deadline_at, due_at
