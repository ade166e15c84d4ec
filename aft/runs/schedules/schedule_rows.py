"""The rows of schedules: declare, read, pause, resume and remove them.

Who may run at the same time: several processes that declare the same schedule when they start, people, and dispatchers
that fire it. Each locks a row before it changes it; two that declare it at once do so one after the other, and the
second finds nothing to do. Everything is one transaction: a crash leaves a schedule as it was, or fully changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from aft.codec.text import StoredJson
from aft.errors import DefinitionError, OrderRefused, UnknownSchedule
from aft.run_options import DEFAULTS, RunOptions
from aft.runs.records import audit
from aft.runs.schedules.calendar import Calendar, CatchUp, Timing
from aft.store.db_time import now
from aft.store.tables import schedules
from aft.texts import format_value

#: The options of a run that a schedule stores for its runs, which have keys and times of their own.
STORED_OPTIONS = ("priority", "owner", "expected", "resources", "tags", "deadline")
#: Left out if empty, as in rows of older versions: else each would differ from its declaration.
_NOT_IN_OLD_ROWS = ("tags", "deadline")

_STORED: StoredJson[RunOptions] = StoredJson(RunOptions)


def encode_options(options: RunOptions) -> str:
    """Encode the options of a schedule's runs for their column."""
    values = {name: getattr(options, name) for name in STORED_OPTIONS}
    kept = {name: value for name, value in values.items() if name not in _NOT_IN_OLD_ROWS or value not in (None, {})}
    return json.dumps(kept, sort_keys=True, default=timedelta.total_seconds)


def decode_options(text: str) -> RunOptions:
    """Decode what ``encode_options`` wrote; raises DefinitionError if the column holds something else."""
    try:
        return _STORED.read(text)
    except ValueError as error:
        raise DefinitionError(f"its options {text!r:.200} cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """The declaration of a schedule: which flow, with which encoded arguments, when."""

    namespace: str
    name: str
    flow: str
    #: None: at each firing the newest that a live worker has, else ``declared_version``.
    version: int | None
    declared_version: int
    args: str = field(repr=False)
    timing: Timing
    catch_up: CatchUp = CatchUp.SKIP
    overlap: bool = False
    options: RunOptions = DEFAULTS

    def columns(self) -> dict[str, Any]:
        """Return the columns of its row without the timing."""
        return {
            "flow": self.flow,
            "version": self.version,
            "declared_version": self.declared_version,
            "args": self.args,
            "options": encode_options(self.options),
            "catch_up": self.catch_up.value,
            "overlap": self.overlap,
        }

    def clock_columns(self) -> dict[str, Any]:
        """Return the columns of its timing."""
        every = self.timing.every
        return {
            "cron": self.timing.cron,
            "every_seconds": None if every is None else every.total_seconds(),
            "zone": self.timing.zone,
        }


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One row of the table, unchecked: people may have edited it, so its readers check each value."""

    namespace: str
    name: str
    flow: str
    version: int | None
    declared_version: int
    args: str = field(repr=False)
    options: str
    cron: str | None
    every_seconds: float | None
    zone: str
    catch_up: str
    overlap: bool
    since: datetime
    next_at: datetime | None
    last_at: datetime | None
    last_run_id: str | None
    skipped_at: datetime | None
    skipped_why: str | None
    paused: bool
    broken: str | None
    made_by: str
    changed_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def timing(self) -> Timing:
        """Its timing; raises DefinitionError if its interval is no length of time."""
        try:
            every = None if self.every_seconds is None else timedelta(seconds=self.every_seconds)
        except (OverflowError, ValueError, TypeError):
            raise DefinitionError(f"its interval of {self.every_seconds!r} seconds is no length of time") from None
        return Timing(self.cron, every, self.zone)

    def calendar(self) -> Calendar:
        """Return its calendar; raises DefinitionError if its timing cannot be read."""
        return Calendar(self.timing, self.since)


COLUMNS = [schedules.c[name] for name in ScheduleRow.__slots__]


def from_row(row: Row[Any]) -> ScheduleRow:
    """Read a row that was selected by ``COLUMNS``."""
    return ScheduleRow(**row._mapping)


# Declaring ------------------------------------------------------------------------------------------------------


def declare(connection: Connection, new: NewSchedule, by: str, *, replace: bool = True) -> bool:
    """Make a schedule, or change the one of that name; False if an equal one exists already.

    A change of anything but the timing keeps the next occurrence, and a paused schedule stays paused. Without
    ``replace``, raises OrderRefused and changes nothing if a different one exists.
    """
    if _insert(connection, new, by, read_time(connection)):
        audit.write_about(connection, by, "schedule add", new.name)
        return True
    row = lock(connection, new.namespace, new.name)
    others = {name: value for name, value in new.columns().items() if getattr(row, name) != value}
    times = {name: value for name, value in new.clock_columns().items() if getattr(row, name) != value}
    if not others and not times and row.broken is None:
        return False
    if not replace:
        differs = ", ".join([*others, *times]) or "nothing, but it is broken"
        raise OrderRefused(
            f"schedule {new.name!r} is there already; what differs: {differs}. Choose another name, or replace it: "
            "--replace"
        )
    # Read after the row is locked: an occurrence that was fired while we waited for the lock is past.
    moved = _begin(new.timing, read_time(connection)) if times or row.broken is not None else {}
    _change(connection, row, by, **others, **times, **moved)
    audit.write_about(connection, by, "schedule change", new.name)
    return True


def _insert(connection: Connection, new: NewSchedule, by: str, at: datetime) -> bool:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = (
        insert(schedules)
        .values(
            namespace=new.namespace,
            name=new.name,
            **new.columns(),
            **new.clock_columns(),
            **_begin(new.timing, at),
            made_by=by,
            changed_by=by,
            created_at=now(),
            updated_at=now(),
        )
        .on_conflict_do_nothing(index_elements=["namespace", "name"])
        .returning(schedules.c.name)
    )
    return connection.execute(statement).one_or_none() is not None


def _begin(timing: Timing, at: datetime) -> dict[str, Any]:
    since = at.replace(microsecond=0)
    return {"since": since, "next_at": Calendar(timing, since).after(at), "broken": None}


# By hand --------------------------------------------------------------------------------------------------------


def pause(connection: Connection, namespace: str, name: str, by: str) -> None:
    """Stop firing a schedule until it is resumed; raises OrderRefused if it is paused."""
    row = lock(connection, namespace, name)
    if row.paused:
        raise OrderRefused(f"schedule {name!r} is paused already, by {row.changed_by!r}; there is nothing to pause")
    _change(connection, row, by, paused=True)
    audit.write_about(connection, by, "schedule pause", name)


def resume(connection: Connection, namespace: str, name: str, by: str) -> None:
    """Fire a schedule again, from its next occurrence on; those of the pause are not caught up. Raises OrderRefused."""
    row = lock(connection, namespace, name)
    if not row.paused and row.broken is None:
        raise OrderRefused(f"schedule {name!r} is not paused; there is nothing to resume")
    try:
        following = row.calendar().after(read_time(connection))
    except DefinitionError as error:
        raise OrderRefused(f"schedule {name!r} cannot be resumed: {error}; declare it again") from None
    _change(connection, row, by, paused=False, broken=None, next_at=following)
    audit.write_about(connection, by, "schedule resume", name)


def remove(connection: Connection, namespace: str, name: str, by: str) -> None:
    """Delete a schedule; its runs stay, and go on."""
    lock(connection, namespace, name)
    connection.execute(delete(schedules).where(schedules.c.namespace == namespace, schedules.c.name == name))
    audit.write_about(connection, by, "schedule remove", name)


def mark_broken(connection: Connection, namespace: str, name: str, why: str) -> None:
    """Stop firing a schedule that cannot be fired, until it is declared again or resumed."""
    connection.execute(
        update(schedules)
        .where(schedules.c.namespace == namespace, schedules.c.name == name)
        .values(broken=why, updated_at=now())
    )


def _change(connection: Connection, row: ScheduleRow, by: str, **changes: Any) -> None:
    write(connection, row, changed_by=by, **changes)


def write(connection: Connection, row: ScheduleRow, **changes: Any) -> None:
    """Change a row that is locked."""
    connection.execute(
        update(schedules)
        .where(schedules.c.namespace == row.namespace, schedules.c.name == row.name)
        .values(updated_at=now(), **changes)
    )


# Looking --------------------------------------------------------------------------------------------------------


def get_schedule(connection: Connection, namespace: str, name: str) -> ScheduleRow:
    """Return a schedule, or raise UnknownSchedule."""
    return _found(connection.execute(_named(namespace, name)).one_or_none(), namespace, name)


def lock(connection: Connection, namespace: str, name: str) -> ScheduleRow:
    """Return a schedule and lock its row until the transaction ends; raises UnknownSchedule."""
    return _found(connection.execute(_named(namespace, name).with_for_update()).one_or_none(), namespace, name)


def listing(connection: Connection, namespace: str) -> list[ScheduleRow]:
    """Return all schedules, sorted by name."""
    statement = select(*COLUMNS).where(schedules.c.namespace == namespace).order_by(schedules.c.name)
    return [from_row(row) for row in connection.execute(statement)]


def read_time(connection: Connection) -> datetime:
    """Return the time of the database's clock, which is used to declare and to fire."""
    return connection.execute(select(now())).scalar_one()


def _named(namespace: str, name: str) -> Select[Any]:
    return select(*COLUMNS).where(schedules.c.namespace == namespace, schedules.c.name == name)


def _found(row: Row[Any] | None, namespace: str, name: str) -> ScheduleRow:
    if row is None:
        raise UnknownSchedule(
            f"no schedule has the name {format_value(name)} in namespace {namespace!r}; "
            "`aft schedules list` shows what there is"
        )
    return from_row(row)
