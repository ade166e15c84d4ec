"""Fires each schedule when its next occurrence is due.

Any number of dispatchers may do this; rows that one has locked are skipped by the others (``runs.schedules.fire``).
Each schedule is fired in its own transaction: one that cannot be fired is marked as broken and reported, and does not
delay the others. No flow code is needed: a run whose flow is not served waits for a worker. Emits: RunStarted,
ScheduleFired, ScheduleSkipped, ScheduleBroken.
"""

from __future__ import annotations

from datetime import datetime

from aft.dispatcher.dependencies import DispatcherDependencies
from aft.errors import StoreError
from aft.runs.schedules import fire, schedule_rows
from aft.telemetry import ScheduleBroken
from aft.texts import describe_error

#: Schedules that one round fires at most.
BATCH = 1000
#: Seconds between two checks of an occurrence that waits for the run before it.
TURN = 0.1


class ScheduleFirer:
    """Fires the schedules of one namespace. One thread at a time."""

    def __init__(self, deps: DispatcherDependencies) -> None:
        self._namespace = deps.namespace
        self._store = deps.store
        self._telemetry = deps.telemetry
        self._grace = deps.grace

    def step(self) -> float:
        """Run one round; return the seconds until the next schedule is due, ``fire.LOOK`` at most."""
        if not self._store.query([(fire.ANY_SOON, self._namespace)])[0]:
            return fire.LOOK
        with self._store.read() as connection:
            at = schedule_rows.read_time(connection)
        if self.fire_due(at):
            return 0.0
        with self._store.read() as connection:
            if fire.find_due(connection, self._namespace, at, 1):
                return TURN  # one waits until the run before it has ended
            following = fire.find_next(connection, self._namespace, at)
        return fire.LOOK if following is None else min(fire.LOOK, (following - at).total_seconds())

    def fire_due(self, at: datetime) -> int:
        """Fire everything that is due at that time, and return how many. One that fails stops no other."""
        with self._store.read() as connection:
            names = fire.find_due(connection, self._namespace, at, BATCH)
        fired, errors = 0, list[StoreError]()
        for name in names:
            try:
                fired += self._fire(name, at)
            except Exception as error:
                if isinstance(error, StoreError) and not error.refused:
                    errors.append(error)  # the database's trouble, not the schedule's: it stays due
                else:
                    self._mark_broken(name, error)
        if errors:
            raise errors[0]
        return fired

    def _fire(self, name: str, at: datetime) -> int:
        with self._store.write() as connection:
            events = fire.fire(connection, self._namespace, name, at, self._grace)
        for event in events:
            self._telemetry.emit(event)
        return len(events)

    def _mark_broken(self, name: str, error: Exception) -> None:
        why = f"it cannot be fired: {describe_error(error)}"
        with self._store.write() as connection:
            schedule_rows.mark_broken(connection, self._namespace, name, why)
        self._telemetry.emit(ScheduleBroken(schedule=name, why=why))
