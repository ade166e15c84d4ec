"""Finds runs: by what they are, by what was said about them, and by what went wrong in them. Reads only.

The filters that narrow most have an index of their own; labels and faults have tables, in which the runs of a label, a
step, an exception or a failure group lie together. Pages follow each other by run id, newest first: a run that was made
meanwhile moves no page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from aft.ids import RunId, first_id_at
from aft.run_options import RESOURCE_LABEL, TAG_LABEL, label_value
from aft.runs.run_rows import COLUMNS, RunRow, from_row, is_overdue
from aft.runs.states import Status
from aft.store import Store
from aft.store.tables import faults, run_labels, runs
from aft.texts import format_value

#: Runs that are read at a time.
PAGE = 200
#: Runs that are counted at most: a person needs no more exact number.
MOST_COUNTED = 100_000
#: Seconds by which clocks of processes may differ from the database's; the id only narrows the search.
CLOCKS = 3600.0
#: Ends a range of texts that begin alike.
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are looked for: those for which all that is given is true.

    ``activity``, ``fault_type``, ``group`` and ``text`` are about one and the same fault of the run; ``group`` is a
    failure group (``flows.exceptions.failure_groups``). ``made_from`` and ``made_before`` bound when the run was made.
    """

    statuses: tuple[Status, ...] = ()
    flow: str | None = None
    version: int | None = None
    key: str | None = None
    key_prefix: str | None = None
    tags: Mapping[str, Any] = field(default_factory=dict, repr=False)
    owner: str | None = None
    resource: str | None = None
    #: This one and above.
    priority: int | None = None
    #: Only those that should have ended by now.
    overdue: bool = False
    made_from: datetime | None = None
    made_before: datetime | None = None
    #: A part of the reason why it is parked.
    reason: str | None = field(default=None, repr=False)
    activity: str | None = None
    #: The exception's class, with or without its module.
    fault_type: str | None = None
    group: str | None = None
    #: A part of the exception's message.
    text: str | None = field(default=None, repr=False)

    def with_statuses(self, statuses: tuple[Status, ...]) -> RunFilter:
        """Return a copy for runs in one of these states."""
        return replace(self, statuses=statuses)

    def __str__(self) -> str:
        """Return it as the end of "runs": "" for any, `` that are parked of owner 'ads'``."""
        version = "" if self.version is None else f"@{self.version}"
        texts = {
            "of flow": self.flow and self.flow + version,
            "with key": self.key,
            "with keys that begin with": self.key_prefix,
            "of owner": self.owner,
            "that need": self.resource,
            "parked because of": self.reason,
            "that failed at": self.activity,
            "that met": self.fault_type,
            "of failure group": self.group,
            "whose failure says": self.text,
        }
        parts = [f"that are {' or '.join(self.statuses)}"] if self.statuses else []
        parts += [f"{words} {format_value(text)}" for words, text in texts.items() if text is not None]
        parts += [f"with tag {name}={format_value(value)}" for name, value in self.tags.items()]
        parts += [] if self.priority is None else [f"of priority {self.priority} or more"]
        parts += ["that are overdue"] if self.overdue else []
        parts += [] if self.made_from is None else [f"made since {self.made_from:%Y-%m-%d %H:%M} UTC"]
        parts += [] if self.made_before is None else [f"made before {self.made_before:%Y-%m-%d %H:%M} UTC"]
        return "".join(f" {part}" for part in parts)


def find(
    connection: Connection, namespace: str, wanted: RunFilter, *, limit: int, before: RunId | None = None
) -> list[RunRow]:
    """Return the newest of these runs, newest first; ``before``: only those that are older than this run."""
    statement = select_runs(connection, namespace, wanted, *COLUMNS).order_by(runs.c.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(runs.c.id < before)
    return [from_row(row) for row in connection.execute(statement)]


def find_all(store: Store, namespace: str, wanted: RunFilter) -> Iterator[RunRow]:
    """Return all of these runs, newest first; they are read page after page, as the caller goes on."""
    before = None
    while True:
        with store.read() as connection:
            page = find(connection, namespace, wanted, limit=PAGE, before=before)
        if not page:
            return
        yield from page
        before = page[-1].id


def count(connection: Connection, namespace: str, wanted: RunFilter) -> int:
    """Return how many runs these are, ``MOST_COUNTED`` at most."""
    some = select_runs(connection, namespace, wanted, runs.c.id).limit(MOST_COUNTED).subquery()
    return int(connection.execute(select(func.count()).select_from(some)).scalar_one())


def select_runs(connection: Connection, namespace: str, wanted: RunFilter, *columns: ColumnElement[Any]) -> Select[Any]:
    """Select columns of these runs; they may be about other tables, too, for each run."""
    return select(*columns).where(runs.c.namespace == namespace, *_conditions(connection, wanted, namespace))


def _conditions(connection: Connection, wanted: RunFilter, namespace: str) -> Iterator[ColumnElement[bool]]:
    equal = {runs.c.flow: wanted.flow, runs.c.version: wanted.version, runs.c.key: wanted.key}
    equal |= {runs.c.owner: wanted.owner}
    yield from (column == value for column, value in equal.items() if value is not None)
    if wanted.statuses:
        yield runs.c.status.in_([status.value for status in wanted.statuses])
    if wanted.key_prefix is not None:
        yield _begins_with(connection, runs.c.key, wanted.key_prefix)
    if wanted.priority is not None:
        yield runs.c.priority >= wanted.priority
    if wanted.overdue:
        yield is_overdue()
    if wanted.reason is not None:
        yield runs.c.reason.contains(wanted.reason, autoescape=True)
    yield from _made(wanted)
    labels = [(TAG_LABEL + name, value) for name, value in wanted.tags.items()]
    labels += [(RESOURCE_LABEL, wanted.resource)] if wanted.resource is not None else []
    yield from (_has_label(namespace, name, value) for name, value in labels)
    yield from _has_fault(wanted, namespace)


def _made(wanted: RunFilter) -> Iterator[ColumnElement[bool]]:
    """Bound when a run was made; its id begins with that time by its maker's clock, and is indexed."""
    if wanted.made_from is not None:
        yield runs.c.created_at >= wanted.made_from
        yield runs.c.id >= first_id_at(wanted.made_from, slack=-CLOCKS)
    if wanted.made_before is not None:
        yield runs.c.created_at < wanted.made_before
        yield runs.c.id < first_id_at(wanted.made_before, slack=CLOCKS)


def _begins_with(connection: Connection, column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    # A pattern for the index of PostgreSQL, whose order of texts is no help; a range for that of SQLite.
    if connection.dialect.name == "postgresql":
        return column.startswith(prefix, autoescape=True)
    return column.between(prefix, prefix + _LAST)


def _has_label(namespace: str, name: str, value: Any) -> ColumnElement[bool]:
    labels = run_labels.c
    same = (labels.namespace == namespace, labels.name == name, labels.value == label_value(value))
    return runs.c.id.in_(select(labels.run_id).where(*same))


def _has_fault(wanted: RunFilter, namespace: str) -> Iterator[ColumnElement[bool]]:
    asked = [
        None if wanted.activity is None else faults.c.name == wanted.activity,
        None if wanted.group is None else faults.c.group_id == wanted.group,
        None if wanted.text is None else faults.c.message.contains(wanted.text, autoescape=True),
        None if wanted.fault_type is None else _is_type(wanted.fault_type),
    ]
    given = [condition for condition in asked if condition is not None]
    if given:
        yield runs.c.id.in_(select(faults.c.run_id).where(faults.c.namespace == namespace, *given))


def _is_type(name: str) -> ColumnElement[bool]:
    return or_(faults.c.type == name, faults.c.type.endswith(f".{name}", autoescape=True))
