"""Computes the occurrences of a schedule, and which of them to fire now. Pure: the caller passes the time.

Occurrences are times in UTC. Those of an interval are counted from its declaration, whatever local clocks do. Those of
a cron line are local times of its zone, from cronsim, which does as Debian's cron does when clocks are changed:

==============  ======================================  ================================================
clocks go       ``30 2 * * *``: at a time of day        ``*/15 * * * *``: a ``*`` for the minute or hour
==============  ======================================  ================================================
forward         once, at the end of the gap: 03:00      none in the gap: 01:45, then 03:00
back            once, the first time: not in the fold   both times: 02:45 summer time, then 02:00 winter time
==============  ======================================  ================================================
"""

from __future__ import annotations

import difflib
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from aft import durations
from aft.errors import DefinitionError
from aft.texts import format_value

#: An occurrence that was not fired in this time was missed.
LATE = timedelta(minutes=1)
#: The maximum of missed occurrences that are caught up: the latest ones.
MOST_MISSED = 100
#: Occurrences in three times LATE, with one a second: their runs may have executed at one that is not missed.
MOST_CLOSE = 200
#: The shortest interval; for less, a loop is better than a schedule.
SHORTEST = timedelta(seconds=1)
#: Characters of a cron line.
MOST_CRON = 200

#: The shortest time there is: "from then on" is "later than the tick before".
_TICK = timedelta(microseconds=1)
#: Occurrences that are read beyond those that are wanted.
_MARGIN = 3
#: More than clocks are ever set forward or back.
_GAP = timedelta(days=1)


class CatchUp(StrEnum):
    """The policy for occurrences that were missed because no dispatcher ran."""

    SKIP = "skip"  #: none is fired
    ONE = "one"  #: the latest is fired
    ALL = "all"  #: each is fired, oldest first; of very many the latest


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of a schedule: a cron line or an interval, and the time zone."""

    cron: str | None = None
    every: timedelta | None = None
    zone: str = "UTC"

    def __str__(self) -> str:
        if self.every is not None:
            return f"every {durations.format(self.every)}"
        return f"{self.cron} {self.zone}"


@dataclass(frozen=True, slots=True)
class DueOccurrences:
    """The decision about the occurrences up to now."""

    #: To be fired, oldest first.
    fire: tuple[datetime, ...] = ()
    #: The first one that is skipped because it was missed.
    missed: datetime | None = None
    #: The next one; None: there are no more.
    next: datetime | None = None


class Calendar:
    """The occurrences of one schedule. Two calendars with the same timing and start have the same ones."""

    def __init__(self, timing: Timing, since: datetime) -> None:
        """Check the timing; ``since`` is the time from which an interval is counted. Raises DefinitionError."""
        self._timing = check_timing(timing)
        self._since = since
        self._zone = _find_zone(timing.zone)

    def after(self, at: datetime) -> datetime | None:
        """Return the first occurrence later than ``at``; None if there is none in the next fifty years."""
        return next(self._from(at), None)

    def local(self, at: datetime) -> datetime:
        """Return a time in the schedule's zone."""
        return at.astimezone(self._zone)

    def latest(self, first: datetime, at: datetime, most: int) -> tuple[datetime, ...]:
        """Return the latest ``most`` occurrences from ``first`` to ``at``, both included, oldest first.

        The work is bounded by ``most``, however many occurrences there are.
        """
        begin = max(first - _TICK, self._before(at, most, first) or first - _TICK)
        found: deque[datetime] = deque(maxlen=most)
        for moment in self._from(begin):
            if moment > at:
                break
            found.append(moment)
        return tuple(found)

    def _from(self, at: datetime) -> Iterator[datetime]:
        every = self._timing.every
        if every is None:
            return self._cron_from(at)
        return self._every_from(at, every)

    def _every_from(self, at: datetime, every: timedelta) -> Iterator[datetime]:
        count = max(1, (at - self._since) // every + 1)
        while True:
            yield self._since + count * every
            count += 1

    def _cron_from(self, at: datetime) -> Iterator[datetime]:
        last = at
        for local in _walk(self._timing.cron or "", at.astimezone(self._zone)):
            moment = local.astimezone(UTC)
            # Begun in the second of two equal hours, the first answer is of the first one: in the past.
            if moment > last:
                last = moment
                yield moment

    def _before(self, at: datetime, most: int, first: datetime) -> datetime | None:
        """Return a time shortly before the latest ``most`` occurrences; None if there are fewer after ``first``."""
        if self._timing.every is not None:
            return at - (most + 1) * self._timing.every
        # Backward, cronsim may return the other side of a gap or a fold: use it only for how far to go back. Not
        # further than to ``first``: a rare day (a fifth Monday in February) comes once in decades.
        for count, local in enumerate(
            _walk(self._timing.cron or "", at.astimezone(self._zone), backward=True), start=1
        ):
            moment = local.astimezone(UTC)
            if moment < first - _GAP:
                return None
            if count == most + _MARGIN:
                return moment
        return None


def decide(calendar: Calendar, first: datetime, at: datetime, catch_up: CatchUp) -> DueOccurrences:
    """Decide about the occurrences from ``first`` to ``at``.

    Those that are at most ``LATE`` late are not missed, and each is fired, the latest ``MOST_MISSED`` of them. Earlier
    ones are handled by ``catch_up``; with ``ONE`` a missed one is fired only if there is none that is not missed.
    """
    if catch_up is CatchUp.ALL:
        fire = calendar.latest(first, at, MOST_MISSED)
    else:
        fire = calendar.latest(max(first, at - LATE), at, MOST_MISSED)
        if not fire and catch_up is CatchUp.ONE:
            fire = calendar.latest(first, at, 1)
    earliest = calendar.after(first - _TICK)
    is_missed = earliest is not None and earliest <= at and (not fire or fire[0] != earliest)
    return DueOccurrences(fire, earliest if is_missed else None, calendar.after(at))


@dataclass(frozen=True, slots=True)
class ExecutionSpan:
    """The time in which a run of a schedule executed."""

    made: datetime
    #: None: it has not ended.
    ended: datetime | None


def is_within(moment: datetime, executions: Iterable[ExecutionSpan]) -> bool:
    """Return whether an occurrence came while a run executed."""
    return any(run.made <= moment and (run.ended is None or moment < run.ended) for run in executions)


def _walk(cron: str, begin: datetime, *, backward: bool = False) -> Iterator[datetime]:
    """Yield the times of a cron line in the zone of ``begin``; they end where Python's years do."""
    moments = CronSim(cron, begin, reverse=backward)
    while True:
        try:
            yield next(moments)
        except (StopIteration, OverflowError):
            return


def check_timing(timing: Timing) -> Timing:
    """Return the timing if it has occurrences; raises DefinitionError that says what is wrong with it."""
    if (timing.cron is None) == (timing.every is None):
        raise DefinitionError("a schedule has either cron='0 3 * * *' or every='15m'; give one of the two")
    if not isinstance(timing.zone, str):
        raise DefinitionError(f"zone={format_value(timing.zone)} must be a name, like 'Europe/Vienna' or 'UTC'")
    _find_zone(timing.zone)
    if timing.every is not None and not SHORTEST <= timing.every <= durations.LONGEST:
        raise DefinitionError(
            f"every={durations.format(timing.every)!r} is not between one second and ten years; write '15m' or '6h'"
        )
    if timing.cron is not None:
        _check_cron(timing.cron)
    return timing


def _check_cron(cron: str) -> None:
    if not isinstance(cron, str) or len(cron) > MOST_CRON:
        raise DefinitionError(f"cron={format_value(cron)} is not a text of {MOST_CRON} characters at the most")
    if len(cron.split()) != 5:
        raise DefinitionError(
            f"cron={cron!r} must have five fields: minute, hour, day of the month, month, day of the week; "
            "'0 3 * * *' is every day at three"
        )
    try:
        found = next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise DefinitionError(
            f"cron={cron!r} cannot be read: {str(error).lower()}; its fields are minute, hour, day of the month, month "
            "and day of the week"
        ) from None
    if found is None:
        raise DefinitionError(f"cron={cron!r} names a day that never comes")


@functools.cache
def _find_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # known without a time zone database, too
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        near = difflib.get_close_matches(str(name), sorted(available_timezones()), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "write one like 'Europe/Vienna', or 'UTC'"
        raise DefinitionError(f"zone={format_value(name)} is not a time zone that this machine knows; {hint}") from None
