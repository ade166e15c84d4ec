"""Schedules: fires each one when its moment has come.

Any number of dispatchers may do this; rows that one holds are skipped by the others (``runs.firing``). Each schedule
has a transaction of its own: one that cannot be fired is marked as broken, told, and keeps nobody else waiting. No
flow's code is needed: a run whose flow nobody has waits for a worker. Emits: RunStarted, ScheduleFired,
ScheduleSkipped, ScheduleBroken.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from aft.errors import StoreError
from aft.runs import firing, schedules
from aft.store import Store
from aft.telemetry import ScheduleBroken, Telemetry
from aft.texts import escape_unstorable, shorten

#: Schedules that one round fires at the most.
BATCH = 1000
#: Seconds between two looks at a moment that waits for its turn.
TURN = 0.1
#: Seconds between two looks at the most: schedules may be declared meanwhile.
PATIENCE = 1.0


class Schedules:
    """Fires the schedules of one namespace. One thread at a time."""

    def __init__(self, namespace: str, store: Store, telemetry: Telemetry, grace: timedelta) -> None:
        self._namespace = namespace
        self._store = store
        self._telemetry = telemetry
        self._grace = grace

    def step(self) -> float:
        """One round; returns how long it is until the next schedule is due, or a while, whichever is less."""
        with self._store.read() as connection:
            at = schedules.tell_time(connection)
        if self.fire_due(at):
            return 0.0
        with self._store.read() as connection:
            if firing.find_due(connection, self._namespace, at, 1):
                return TURN  # one waits until the run before it has ended
            following = firing.find_next(connection, self._namespace, at)
        return PATIENCE if following is None else min(PATIENCE, (following - at).total_seconds())

    def fire_due(self, at: datetime) -> int:
        """Fire everything that is due at that time, and tell how much that was. One that fails stops no other."""
        with self._store.read() as connection:
            names = firing.find_due(connection, self._namespace, at, BATCH)
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
            events = firing.fire(connection, self._namespace, name, at, self._grace)
        for event in events:
            self._telemetry.emit(event)
        return len(events)

    def _mark_broken(self, name: str, error: Exception) -> None:
        why = f"it cannot be fired: {shorten(escape_unstorable(str(error) or repr(error)))}"
        with self._store.write() as connection:
            schedules.mark_broken(connection, self._namespace, name, why)
        self._telemetry.emit(ScheduleBroken(schedule=name, why=why))
