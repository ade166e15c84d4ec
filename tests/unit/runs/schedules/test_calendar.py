"""Claims about calendars: which moments a schedule has, when clocks are changed too, and which are fired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aft.errors import DefinitionError
from aft.runs.schedules.calendar import (
    LATE,
    MOST_MISSED,
    Calendar,
    CatchUp,
    DueOccurrences,
    ExecutionSpan,
    Timing,
    check_timing,
    decide,
    is_within,
)

VIENNA = ZoneInfo("Europe/Vienna")
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
#: Times around the two changes of the year in Vienna, and in New York, and any other.
CHANGES = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 3, 8, 7, tzinfo=UTC),
]
CRONS = [
    "30 2 * * *",
    "0 3 * * *",
    "*/15 * * * *",
    "15 2,3 * * *",
    "0 2-4 * * *",
    "10 3 * * 0",
    "5 * * * *",
    "0 0 1 * *",
]

near = st.builds(
    lambda change, seconds: change + timedelta(seconds=seconds),
    st.sampled_from(CHANGES),
    st.integers(-3 * 86400, 3 * 86400),
)
crons = st.builds(
    Timing,
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(["Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "UTC"]),
)
intervals = st.builds(
    Timing, every=st.builds(timedelta, seconds=st.integers(1, 100_000), milliseconds=st.integers(0, 999))
)
calendars = st.builds(Calendar, crons | intervals, st.just(SINCE))


def cron(line: str, zone: str = "Europe/Vienna") -> Calendar:
    return Calendar(Timing(cron=line, zone=zone), SINCE)


def at(text: str) -> datetime:
    """A time in Vienna; ``fold`` where it is the second one of that name."""
    text, second, _ = text.partition(" fold")
    return datetime.fromisoformat(text).replace(tzinfo=VIENNA, fold=int(bool(second))).astimezone(UTC)


def following(calendar: Calendar, begin: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    for _ in range(count):
        moment = calendar.after(found[-1] if found else begin)
        assert moment is not None
        found.append(moment)
    return found


# --- when clocks are changed ---


def test_a_time_of_day_that_clocks_leap_over_comes_once_at_the_end_of_the_gap() -> None:
    found = following(cron("30 2 * * *"), at("2026-03-28T12:00"), 2)
    assert found == [at("2026-03-29T03:00"), at("2026-03-30T02:30")]


def test_a_time_of_day_that_clocks_show_twice_comes_the_first_time_only() -> None:
    found = following(cron("30 2 * * *"), at("2026-10-24T12:00"), 2)
    assert found == [at("2026-10-25T02:30"), at("2026-10-26T02:30")]
    assert found[0] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_a_line_with_a_star_goes_on_through_gap_and_fold() -> None:
    quarterly = cron("*/30 * * * *")
    assert following(quarterly, at("2026-03-29T01:00"), 2) == [at("2026-03-29T01:30"), at("2026-03-29T03:00")]
    assert following(quarterly, at("2026-10-25T02:00"), 4) == [
        at("2026-10-25T02:30"),
        at("2026-10-25T02:00 fold"),
        at("2026-10-25T02:30 fold"),
        at("2026-10-25T03:00"),
    ]


def test_asked_in_the_second_of_two_equal_hours_the_answer_is_in_the_future() -> None:
    assert cron("30 2 * * *").after(at("2026-10-25T02:10 fold")) == at("2026-10-26T02:30")


def test_the_same_time_of_day_is_another_moment_in_summer() -> None:
    nightly = cron("0 3 * * *")
    assert nightly.after(at("2026-01-10T12:00")) == datetime(2026, 1, 11, 2, tzinfo=UTC)
    assert nightly.after(at("2026-07-10T12:00")) == datetime(2026, 7, 11, 1, tzinfo=UTC)


def test_an_interval_does_not_care_about_clocks() -> None:
    calendar = Calendar(Timing(every=timedelta(hours=6), zone="Europe/Vienna"), SINCE)
    found = following(calendar, at("2026-03-28T12:00"), 8)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=6)}


# --- for whatever calendar ---


@settings(deadline=None, max_examples=60)
@given(calendars, near)
def test_moments_strictly_increase(calendar: Calendar, begin: datetime) -> None:
    found = [begin, *following(calendar, begin, 8)]
    assert all(earlier < later for earlier, later in pairwise(found))


@settings(deadline=None, max_examples=60)
@given(calendars, near, st.integers(0, 86_400))
def test_the_moments_are_the_same_wherever_one_begins_to_count(calendar: Calendar, begin: datetime, more: int) -> None:
    first, second = following(calendar, begin, 2)
    between = min(first + timedelta(seconds=more), second - timedelta(microseconds=1))
    assert calendar.after(between) == second
    assert calendar.after(first - timedelta(microseconds=1)) == first


@settings(deadline=None, max_examples=60)
@given(calendars, near, st.integers(0, 30))
def test_the_latest_moments_are_those_of_counting_forward(calendar: Calendar, begin: datetime, most: int) -> None:
    forward = following(calendar, begin, 40)
    assert calendar.latest(begin, forward[-1], most) == tuple(forward[len(forward) - most :])


@settings(deadline=None, max_examples=60)
@given(calendars, near, st.sampled_from(CatchUp), st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
def test_no_moment_is_fired_twice_and_none_too_early(
    calendar: Calendar, begin: datetime, policy: CatchUp, rounds: list[int]
) -> None:
    upcoming, time, fired = calendar.after(begin), begin, list[datetime]()
    for seconds in rounds:
        time += timedelta(seconds=seconds)
        assert upcoming is not None
        if upcoming > time:
            continue
        turn = decide(calendar, upcoming, time, policy)
        assert all(moment <= time for moment in turn.fire)
        fired += turn.fire
        upcoming = turn.next
        assert upcoming is not None
        assert upcoming > time
    assert fired == sorted(set(fired))


# --- which are fired ---

DAILY = cron("0 3 * * *", "UTC")
FIRST = datetime(2026, 5, 1, 3, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize("policy", CatchUp)
def test_a_moment_is_fired_that_is_hardly_late(policy: CatchUp) -> None:
    assert decide(DAILY, FIRST, FIRST + LATE, policy) == DueOccurrences((FIRST,), None, FIRST + DAY)


@pytest.mark.parametrize(
    ("policy", "fired", "missed"),
    [
        (CatchUp.SKIP, (), FIRST),
        (CatchUp.ONE, (FIRST + 2 * DAY,), FIRST),
        (CatchUp.ALL, (FIRST, FIRST + DAY, FIRST + 2 * DAY), None),
    ],
)
def test_what_was_missed_is_made_up_for_as_declared(
    policy: CatchUp, fired: tuple[datetime, ...], missed: datetime | None
) -> None:
    assert decide(DAILY, FIRST, FIRST + 2.5 * DAY, policy) == DueOccurrences(fired, missed, FIRST + 3 * DAY)


def test_after_a_long_time_away_a_moment_that_is_now_is_fired_and_not_the_missed_ones() -> None:
    assert decide(DAILY, FIRST, FIRST + 2 * DAY, CatchUp.SKIP) == DueOccurrences(
        (FIRST + 2 * DAY,), FIRST, FIRST + 3 * DAY
    )


def test_of_very_many_missed_moments_the_latest_are_made_up_for() -> None:
    turn = decide(cron("* * * * *", "UTC"), FIRST, FIRST + 3650 * DAY, CatchUp.ALL)
    assert len(turn.fire) == MOST_MISSED
    assert turn.fire[-1] == FIRST + 3650 * DAY
    assert turn.missed == FIRST


def test_a_next_moment_that_is_none_of_its_own_fires_nothing() -> None:
    set_back = FIRST + timedelta(hours=1)
    assert decide(DAILY, set_back, set_back + timedelta(hours=1), CatchUp.ALL) == DueOccurrences((), None, FIRST + DAY)


# --- what is refused ---


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing(), "a schedule has either cron="),
        (Timing(cron="0 3 * * *", every=timedelta(hours=1)), "give one of the two"),
        (Timing(every=timedelta(milliseconds=999)), "every='999ms' is not between one second and ten years"),
        (Timing(every=timedelta(days=4000)), "is not between"),
        (Timing(cron="61 * * * *"), "cron='61 \\* \\* \\* \\*' cannot be read: bad minute"),
        (Timing(cron="* * * * * *"), "must have five fields"),
        (Timing(cron="@daily"), "must have five fields"),
        (Timing(cron=""), "must have five fields"),
        (Timing(cron="0 0 30 2 *"), "bad day-of-month"),
        (Timing(cron="0 0 31 4 *"), "bad day-of-month"),
        (Timing(cron="0 0 * 2 1#6"), "bad day-of-week"),
        (Timing(cron="1," * 150 + "1 * * * *"), "200 characters at the most"),
        (Timing(cron="0 3 * * *", zone="Europe/Wien"), "zone='Europe/Wien' is not a time zone"),
        (Timing(cron="0 3 * * *", zone="Europe/Viena"), "did you mean 'Europe/Vienna'"),
        (Timing(cron="0 3 * * *", zone="../etc/passwd"), "is not a time zone"),
        (Timing(cron="0 3 * * *", zone="Europe"), "is not a time zone"),
        (Timing(cron="0 3 * * *", zone=""), "is not a time zone"),
    ],
)
def test_a_timing_that_cannot_work_is_refused_with_what_would(timing: Timing, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        check_timing(timing)


@settings(deadline=None, max_examples=60)
@given(st.text("0123456789*/,-#LWlwMONJAN? \t", max_size=40))
def test_whatever_is_written_as_a_cron_line_is_read_or_refused(line: str) -> None:
    try:
        calendar = cron(line)
    except DefinitionError:
        return
    moment = calendar.after(SINCE)
    assert moment is None or moment > SINCE


@pytest.mark.parametrize("policy", CatchUp)
@pytest.mark.parametrize("line", ["0 0 * * MON#5", "0 0 * 2 MON#5", "0 0 29 2 *", "30 2 * * SUN#5"])
def test_a_day_that_comes_seldom_is_decided_about_whatever_was_missed(line: str, policy: CatchUp) -> None:
    calendar = cron(line, "Europe/Vienna")
    for years in (0.1, 1, 30):
        at = FIRST + years * 365 * DAY
        turn = decide(calendar, FIRST, at, policy)
        assert turn.next == calendar.after(at)
        assert all(FIRST <= moment <= at for moment in turn.fire)


def test_moments_end_where_the_years_of_python_do() -> None:
    last = datetime(9999, 12, 30, tzinfo=UTC)
    assert cron("0 0 29 2 *", "UTC").after(last) is None
    assert decide(cron("0 0 29 2 *", "UTC"), datetime(1, 1, 2, tzinfo=UTC), FIRST, CatchUp.ONE).fire


@pytest.mark.parametrize("policy", CatchUp)
def test_close_moments_are_all_fired_though_somebody_looks_seconds_late(policy: CatchUp) -> None:
    second = timedelta(seconds=1)
    calendar = Calendar(Timing(every=second), FIRST)
    turn = decide(calendar, FIRST + second, FIRST + 5.5 * second, policy)
    assert turn == DueOccurrences(tuple(FIRST + n * second for n in range(1, 6)), None, FIRST + 6 * second)


def test_of_close_moments_those_of_the_last_minute_are_fired_and_the_others_were_missed() -> None:
    second = timedelta(seconds=1)
    calendar = Calendar(Timing(every=second), FIRST)
    turn = decide(calendar, FIRST + second, FIRST + 100 * second, CatchUp.SKIP)
    assert turn.fire == tuple(FIRST + n * second for n in range(40, 101))
    assert turn.missed == FIRST + second


def lateness_after(every: int, takes: int, away: int) -> list[timedelta]:
    """How late runs are made in the third minute after nobody was there for a while, where none may overlap."""
    second, runs, late = timedelta(seconds=1), list[ExecutionSpan](), list[timedelta]()
    calendar, back = Calendar(Timing(every=every * second), FIRST), FIRST + away * second
    first = calendar.after(FIRST)
    for tick in range(10 * 180):
        at = back + tick * second / 10
        turn = decide(calendar, first or at, at, CatchUp.SKIP)
        first = turn.next
        for moment in turn.fire:
            if not is_within(at, runs):
                runs.append(ExecutionSpan(at, at + takes * second))
                if at >= back + 120 * second:
                    late.append(at - moment)
            elif not is_within(moment, runs):
                first = moment
                break
    return late


@given(every=st.integers(1, 15), takes=st.integers(1, 30), away=st.integers(1, 55))
def test_a_schedule_that_was_late_once_does_not_stay_late(every: int, takes: int, away: int) -> None:
    found = lateness_after(every, takes, away)
    assert found
    assert max(found) <= timedelta(seconds=takes)
