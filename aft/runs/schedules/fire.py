"""Fires schedules: makes the runs of due occurrences and sets the next occurrence, in one transaction.

Who may run at the same time: any number of dispatchers, people who change the schedule, and processes that declare it.
A dispatcher locks the row and skips one that is locked; after the commit the next one finds that ``next_at`` has moved
on. A run's idempotency key names its schedule and occurrence, so that even a row that was set back fires none twice. A
crash before the commit leaves the occurrence due: the next round fires it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, func, select

from aft.errors import DefinitionError, KeyConflict, OrderRefused
from aft.ids import RunId, new_id
from aft.run_options import OF_SCHEDULE
from aft.runs import submit
from aft.runs.new_runs import NewRun
from aft.runs.records import audit
from aft.runs.run_rows import RunRow, has_ended
from aft.runs.schedules import calendar, schedule_rows
from aft.runs.schedules.calendar import LATE, MOST_CLOSE, CatchUp, ExecutionSpan
from aft.runs.schedules.schedule_rows import COLUMNS, ScheduleRow, decode_options
from aft.runs.wakes.unserved_runs import served_flows
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import later
from aft.store.tables import runs
from aft.store.tables import schedules as table
from aft.telemetry import Event, RunStarted, ScheduleFired, ScheduleSkipped

#: Seconds between two looks for schedules that are declared meanwhile.
LOOK = 1.0


def find_due(connection: Connection, namespace: str, at: datetime, limit: int) -> list[str]:
    """Return the names of due schedules, longest due first; locks nothing."""
    statement = select(table.c.name).where(_is_due(namespace, at)).order_by(table.c.next_at).limit(limit)
    return list(connection.execute(statement).scalars())


def find_next(connection: Connection, namespace: str, at: datetime) -> datetime | None:
    """Return when the next schedule becomes due that is not due yet; None if there is none."""
    statement = select(func.min(table.c.next_at)).where(_is_live(namespace), table.c.next_at > at)
    return connection.execute(statement).scalar()


def fire(connection: Connection, namespace: str, name: str, at: datetime, grace: timedelta) -> list[Event]:
    """Fire the due occurrences of one schedule and return the events; none if another dispatcher fires or has fired it.

    Raises DefinitionError if the row cannot be read.
    """
    statement = select(*COLUMNS).where(_is_due(namespace, at), table.c.name == name).with_for_update(skip_locked=True)
    found = connection.execute(statement).one_or_none()
    return [] if found is None else _Firing(connection, schedule_rows.from_row(found), at, grace).fire()


def run_now(connection: Connection, row: ScheduleRow, by: str, at: datetime, grace: timedelta) -> RunRow:
    """Make an extra run of a schedule whose row is locked; raises OrderRefused where it would overlap."""
    if not row.overlap and _goes_on(connection, row.last_run_id):
        raise OrderRefused(
            f"schedule {row.name!r} lets no two runs overlap, and run {row.last_run_id} has not ended; wait for its "
            "end, or declare the schedule with overlap=True"
        )
    new = _new_run(connection, row, f"now/{new_id()}")
    made, _ = submit.enqueue(connection, new, at, grace)
    audit.write(connection, made.id, by, "schedule", f"{row.name}, besides its moments")
    schedule_rows.write(connection, row, last_run_id=made.id)
    return made


class _Firing:
    """Fires one schedule in one transaction, with its row locked."""

    def __init__(self, connection: Connection, row: ScheduleRow, at: datetime, grace: timedelta) -> None:
        self._connection = connection
        self._row = row
        self._at = at
        self._grace = grace
        self._last_run = row.last_run_id
        self._changes: dict[str, object] = {}
        self._events: list[Event] = []
        self._executed: list[ExecutionSpan] | None = None

    def fire(self) -> list[Event]:
        row = self._row
        policy = _catch_up(row)
        turn = calendar.decide(row.calendar(), row.next_at or self._at, self._at, policy)
        then = turn.next
        if turn.missed is not None:
            self._skip(turn.missed, f"it was missed, and catch_up is {policy.value!r}")
        for moment in turn.fire:
            if row.overlap or not _goes_on(self._connection, self._last_run):
                self._make_run(moment)
            elif self._waits_its_turn(policy, moment):
                then = moment
                break
            else:
                self._skip(moment, f"run {self._last_run} has not ended, and overlap is off")
        if then != row.next_at or self._changes:
            schedule_rows.write(self._connection, row, next_at=then, **self._changes)
        return self._events

    def _waits_its_turn(self, policy: CatchUp, moment: datetime) -> bool:
        """Return whether an occurrence is fired when the previous run has ended, instead of being skipped.

        With ``CatchUp.ALL`` missed ones are caught up one after the other. An occurrence that is not missed yet waits
        if no run executed when it came: then it was the dispatcher that was late. One that came while a run executed is
        skipped, though a later run executes by now: else each that waits would make others wait, and a schedule that
        was late once would stay late.
        """
        if self._at - moment > LATE:
            return policy is CatchUp.ALL
        return not calendar.is_within(moment, self._executions())

    def _executions(self) -> list[ExecutionSpan]:
        """Return the execution spans of runs that may cover an occurrence which is not missed; cached."""
        if self._executed is None:
            row = self._row
            moments = row.calendar().latest(self._at - 3 * LATE, self._at, MOST_CLOSE)
            named = (runs.c.namespace == row.namespace) & runs.c.key.in_(
                [_key(row, format_occurrence(each)) for each in moments]
            )
            statement = select(runs.c.created_at, runs.c.ended_at).where(named | (runs.c.id == self._last_run))
            self._executed = [ExecutionSpan(made, ended) for made, ended in self._connection.execute(statement)]
        return self._executed

    def _make_run(self, moment: datetime) -> None:
        new = _new_run(self._connection, self._row, format_occurrence(moment))
        try:
            made, fresh = submit.enqueue(self._connection, new, self._at, self._grace)
        except KeyConflict as error:
            self._skip(moment, str(error))
            return
        self._last_run = made.id
        self._executed = None
        self._changes |= {"last_at": moment, "last_run_id": made.id}
        if fresh:
            self._events.append(RunStarted(run=made.id, flow=made.flow))
            fired = ScheduleFired(
                schedule=self._row.name, occurrence=format_occurrence(moment), run=made.id, flow=made.flow
            )
            self._events.append(fired)

    def _skip(self, moment: datetime, why: str) -> None:
        self._changes |= {"skipped_at": moment, "skipped_why": why}
        self._events.append(ScheduleSkipped(schedule=self._row.name, occurrence=format_occurrence(moment), why=why))


def format_occurrence(moment: datetime) -> str:
    """Format an occurrence as it is written in a run's key."""
    return moment.astimezone(UTC).isoformat()


def _new_run(connection: Connection, row: ScheduleRow, moment: str) -> NewRun:
    return NewRun(
        id=RunId(new_id()),
        namespace=row.namespace,
        flow=row.flow,
        version=row.version or _newest(connection, row) or row.declared_version,
        args=row.args,
        options=replace(decode_options(row.options), key=_key(row, moment)),
    )


def _key(row: ScheduleRow, moment: str) -> str:
    return f"{OF_SCHEDULE}{row.name}/{moment}"


def _newest(connection: Connection, row: ScheduleRow) -> int | None:
    """Return the newest version of its flow that a live worker has; None if none has any."""
    formatted = (flow.rpartition("@") for flow in served_flows(connection, row.namespace))
    return max((int(version) for name, _, version in formatted if name == row.flow), default=None)


def _catch_up(row: ScheduleRow) -> CatchUp:
    try:
        return CatchUp(row.catch_up)
    except ValueError:
        known = ", ".join(repr(policy.value) for policy in CatchUp)
        raise DefinitionError(f"catch_up={row.catch_up!r} is none of {known}") from None


def _goes_on(connection: Connection, run_id: str | None) -> bool:
    if run_id is None:
        return False
    return connection.execute(select(runs.c.id).where(runs.c.id == run_id, ~has_ended())).first() is not None


def _is_live(namespace: str | ColumnElement[str]) -> ColumnElement[bool]:
    return (
        (table.c.namespace == namespace)
        & table.c.next_at.is_not(None)
        & table.c.paused.is_(False)
        & table.c.broken.is_(None)
    )


def _is_due(namespace: str, at: datetime) -> ColumnElement[bool]:
    return _is_live(namespace) & (table.c.next_at <= at)


#: Whether a schedule of a namespace is due, or becomes due before the next look.
ANY_SOON = PreparedQuery.of(select(table.c.name).where(_is_live(GIVEN), table.c.next_at <= later(LOOK)).limit(1))
