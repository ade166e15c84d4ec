"""Schedules: flows that are run at certain times. On every combination of database and broker.

Time is moved in two ways: a round is told what time it is, or a row is set back as if nobody had been there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

import aft
from aft.app.schedule import Schedule
from aft.dispatcher.sweep.schedules import ScheduleFirer
from aft.runs import submit
from aft.runs.run_rows import RunRow
from aft.runs.schedules import fire as firing
from aft.runs.schedules.calendar import MOST_MISSED
from aft.runs.states import Status
from aft.store.tables import runs, schedules
from aft.telemetry import Event, ScheduleBroken, ScheduleFired, ScheduleSkipped
from tests.acceptance import agency
from tests.setups import Setup, eventually
from tests.world import ledger

DAY = timedelta(days=1)
#: A moment of ``0 3 * * *`` in UTC, long after today.
THREE = datetime(2041, 5, 17, 3, tzinfo=UTC)


def fire(app: aft.Aft, at: datetime) -> None:
    """One round of a dispatcher that believes it is that time."""
    ScheduleFirer(app.make_dispatcher_deps()).fire_due(at)


def set_row(schedule: Schedule, **values: Any) -> None:
    """Edit a schedule's row by hand."""
    row = schedule.row
    statement = update(schedules).where(schedules.c.namespace == row.namespace, schedules.c.name == row.name)
    with schedule._app.store.write() as connection:
        connection.execute(statement.values(**values))


def runs_of(app: aft.Aft, schedule: Schedule) -> list[RunRow]:
    """The runs of a schedule, oldest first."""
    found = [run.row for run in reversed(app.runs(limit=1000))]
    return [row for row in found if (row.key or "").startswith(f"schedule/{schedule.name}/")]


def moments_of(app: aft.Aft, schedule: Schedule) -> list[datetime]:
    """The moments that were fired, in the order of their firing."""
    return [datetime.fromisoformat((row.key or "").rpartition("/")[2]) for row in runs_of(app, schedule)]


def heard(app: aft.Aft) -> list[Event]:
    """What is told from now on."""
    events: list[Event] = []
    app.telemetry.subscribe(events.append)
    return events


def race(work: Callable[[], object]) -> None:
    """Do the same on several threads, begun at once."""
    gate = threading.Barrier(6)

    def one() -> None:
        gate.wait(60)
        work()

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(one) for _ in range(6)]:
            done.result(60)


def some_hours_ago(days: int) -> tuple[str, datetime]:
    """A cron line in UTC whose last moment was twelve hours ago, and its moment so many days before that."""
    at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=12)
    return f"{at.minute} {at.hour} * * *", at - days * DAY


# --- firing ---


def test_each_moment_is_fired_exactly_once_though_two_dispatchers_run(setup: Setup, journey: str) -> None:
    one, two = setup.app(), setup.app()
    schedule = one.schedule("each", agency.pays.call(journey), every="1s", catch_up="all", overlap=True)
    since = schedule.row.since
    with one.dispatcher(), two.dispatcher():
        eventually(lambda: len(runs_of(one, schedule)) >= 3)
        schedule.pause()
        for row in (found := runs_of(one, schedule)):
            assert one.run(row.id).result(60) == "paid"
    second = timedelta(seconds=1)
    assert moments_of(one, schedule) == [since + count * second for count in range(1, len(found) + 1)]
    assert ledger[journey] == ["pay"] * len(found)


def test_rounds_that_race_fire_a_moment_once(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("raced", agency.pays.call(journey), cron="0 3 * * *", overlap=True)
    set_row(schedule, next_at=THREE)
    events = heard(app)
    race(lambda: fire(app, THREE))
    assert moments_of(app, schedule) == [THREE]
    assert [type(event) for event in events].count(ScheduleFired) == 1
    assert schedule.row.next_at == THREE + DAY


def test_rounds_that_race_tell_once_of_a_moment_that_is_let_go(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("raced", agency.pays.call(journey), cron="0 3 * * *")
    schedule.run_now()
    set_row(schedule, next_at=THREE)
    events = heard(app)
    race(lambda: fire(app, THREE))
    assert [type(event) for event in events] == [ScheduleSkipped]


def test_a_crash_before_the_commit_leaves_the_moment_due(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    schedule = app.schedule("crashed", agency.pays.call(journey), cron="0 3 * * *")
    set_row(schedule, next_at=THREE)

    def dies(*_: Any) -> Any:
        enqueue(*_)
        raise aft.StoreError("the plug was pulled")

    enqueue = submit.enqueue
    monkeypatch.setattr(submit, "enqueue", dies)
    with pytest.raises(aft.StoreError, match="the plug"):
        fire(app, THREE)
    monkeypatch.undo()
    assert runs_of(app, schedule) == []
    fire(app, THREE + timedelta(seconds=1))
    assert moments_of(app, schedule) == [THREE]


def test_a_row_that_was_set_back_fires_no_moment_twice(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("twice", agency.pays.call(journey), cron="0 3 * * *", overlap=True)
    for _ in range(2):
        set_row(schedule, next_at=THREE)
        fire(app, THREE)
    assert moments_of(app, schedule) == [THREE]


def test_before_its_moment_nothing_is_fired(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("early", agency.pays.call(journey), cron="0 3 * * *")
    set_row(schedule, next_at=THREE)
    fire(app, THREE - timedelta(milliseconds=1))
    assert runs_of(app, schedule) == []


def test_a_run_is_what_the_schedule_says(setup: Setup, journey: str) -> None:
    app = setup.app()
    call = agency.pays.options(priority=7, owner="ads", expected="1h", resources=["cms"]).call(journey)
    schedule = app.schedule("told", call, cron="0 3 * * *")
    set_row(schedule, next_at=THREE)
    events = heard(app)
    fire(app, THREE)
    (row,) = runs_of(app, schedule)
    assert (row.flow, row.version, row.priority, row.owner) == ("agency_pays", 1, 7, "ads")
    assert (row.expected, row.resources) == (timedelta(hours=1), ("cms",))
    assert row.key == "schedule/told/2041-05-17T03:00:00+00:00"
    fired = ScheduleFired(schedule="told", occurrence="2041-05-17T03:00:00+00:00", run=row.id, flow="agency_pays")
    assert fired in events
    assert (schedule.row.last_at, schedule.row.last_run_id) == (THREE, row.id)
    assert schedule.last_run is not None
    assert schedule.last_run.id == row.id


# --- versions ---


def versions(journey: str) -> tuple[aft.Flow[[], int], aft.Flow[[], int]]:
    """A flow that nobody else has, in two versions."""

    @aft.flow(name=f"versioned_{journey}")
    def old() -> int:
        return 1

    @aft.flow(name=f"versioned_{journey}", version=2)
    def new() -> int:
        return 2

    return old, new


def test_a_schedule_takes_the_newest_version_that_a_worker_has_unless_it_is_pinned(setup: Setup, journey: str) -> None:
    app = setup.app()
    old, _ = versions(journey)
    newest = app.schedule("newest", old.call(), cron="0 3 * * *")
    pinned = app.schedule("pinned", old.call(), cron="0 3 * * *", pinned=True)
    for schedule in (newest, pinned):
        set_row(schedule, next_at=THREE)
    with app.dispatcher(only=["work"]):
        fire(app, THREE)
    assert [row.version for row in runs_of(app, newest)] == [2]
    assert [row.version for row in runs_of(app, pinned)] == [1]


def test_a_version_that_only_starts_runs_elsewhere_is_not_taken_by_a_schedule(setup: Setup, journey: str) -> None:
    app, other = setup.app(), setup.app()
    old, new = versions(journey)
    schedule = app.schedule("newest", old.call(), cron="0 3 * * *")
    set_row(schedule, next_at=THREE)
    other.start(new).result(60)  # it is a worker, too, but only for what it starts
    fire(app, THREE)
    assert [row.version for row in runs_of(app, schedule)] == [1]


def test_a_flow_that_nobody_knows_is_still_started_and_waits_for_a_worker(setup: Setup, journey: str) -> None:
    app = setup.app()
    _, new = versions(journey)
    schedule = app.schedule("lonely", new.call(), cron="0 3 * * *")
    set_row(schedule, next_at=THREE)
    fire(app, THREE)
    (row,) = runs_of(app, schedule)
    assert (row.version, row.status) == (2, Status.RUNNING)
    with app.dispatcher():
        assert app.run(row.id).result(60) == 2


# --- missed moments ---


@pytest.mark.parametrize(("policy", "made_up_for"), [("skip", []), ("one", [3]), ("all", [0, 1, 2, 3])])
def test_a_restarted_dispatcher_makes_up_for_what_was_missed_as_declared(
    setup: Setup, journey: str, policy: str, made_up_for: list[int]
) -> None:
    app = setup.app()
    line, first = some_hours_ago(days=3)
    schedule = app.schedule("missed", agency.pays.call(journey), cron=line, catch_up=policy)
    set_row(schedule, next_at=first)
    events = heard(app)
    with app.dispatcher():
        eventually(lambda: (schedule.row.next_at or first) > datetime.now(UTC))
        for row in runs_of(app, schedule):
            assert app.run(row.id).result(60) == "paid"
    assert moments_of(app, schedule) == [first + count * DAY for count in made_up_for]
    assert schedule.row.next_at == first + 4 * DAY
    told = [event for event in events if isinstance(event, ScheduleSkipped)]
    assert [event.occurrence for event in told] == ([] if policy == "all" else [first.isoformat()])


def test_missed_moments_are_made_up_for_one_after_the_other_where_none_may_overlap(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("queued", agency.approval.call(journey), cron="0 3 * * *", catch_up="all")
    set_row(schedule, next_at=THREE)
    back = THREE + 2 * DAY + timedelta(hours=1)
    with app.dispatcher(only=["work", "intake", "relay"]):
        for expected in ([THREE], [THREE, THREE + DAY], [THREE, THREE + DAY, THREE + 2 * DAY]):
            fire(app, back)
            fire(app, back)
            assert moments_of(app, schedule) == expected
            run = app.run(runs_of(app, schedule)[-1].id)
            run.signal("verdict", "yes")
            run.result(60)
    assert schedule.row.next_at == THREE + 3 * DAY
    assert schedule.row.skipped_at is None


def test_of_very_many_missed_moments_the_latest_are_made_up_for_and_the_rest_is_told(
    setup: Setup, journey: str
) -> None:
    app = setup.app()
    schedule = app.schedule("many", agency.pays.call(journey), cron="* * * * *", catch_up="all", overlap=True)
    set_row(schedule, next_at=THREE)
    fire(app, THREE + DAY)
    fired = moments_of(app, schedule)
    assert (len(fired), fired[-1]) == (MOST_MISSED, THREE + DAY)
    assert schedule.row.skipped_at == THREE


# --- overlap ---


def test_a_moment_is_let_go_and_told_while_the_run_before_it_has_not_ended(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("alone", agency.approval.call(journey), cron="0 3 * * *")
    set_row(schedule, next_at=THREE)
    fire(app, THREE)
    (first,) = runs_of(app, schedule)
    events = heard(app)
    fire(app, THREE + DAY)
    why = f"run {first.id} has not ended, and overlap is off"
    assert events == [ScheduleSkipped(schedule="alone", occurrence=(THREE + DAY).isoformat(), why=why)]
    assert (schedule.row.skipped_at, schedule.row.skipped_why) == (THREE + DAY, why)
    with app.dispatcher(only=["work", "intake", "relay"]):
        app.run(first.id).signal("verdict", "yes")
        app.run(first.id).result(60)
    fire(app, THREE + 2 * DAY)
    assert moments_of(app, schedule) == [THREE, THREE + 2 * DAY]


@pytest.mark.parametrize("overlap", [False, True])
def test_close_moments_are_all_fired_though_the_dispatcher_comes_late(
    setup: Setup, journey: str, overlap: bool
) -> None:
    app = setup.app()
    schedule = app.schedule("dense", agency.pays.call(journey), every="1s", overlap=overlap)
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=20)
    first = since + timedelta(seconds=12)
    set_row(schedule, since=since, next_at=first)
    events = heard(app)
    # Later ones may be skipped, where a run takes more than a second.
    late = [first + timedelta(seconds=number) for number in range(8)]
    with app.dispatcher():
        eventually(lambda: len(moments_of(app, schedule)) >= len(late))
    assert moments_of(app, schedule)[: len(late)] == late
    skipped = [datetime.fromisoformat(event.occurrence) for event in events if isinstance(event, ScheduleSkipped)]
    assert not set(skipped) & set(late)


def test_a_dense_schedule_that_was_late_once_does_not_stay_late(setup: Setup, journey: str) -> None:
    app, second = setup.app(), timedelta(seconds=1)
    schedule = app.schedule("lagging", agency.approval.call(journey), every="2s")
    back = datetime.now(UTC).replace(microsecond=0)
    late = [back - 7 * second, back - 5 * second, back - 3 * second, back - second]
    set_row(schedule, since=late[0] - 2 * second, next_at=late[0])
    with app.dispatcher(only=["work", "intake", "relay"]):
        for number, moment in enumerate(late):  # each run takes three seconds, in which one or two moments come
            at = back + number * 3 * second
            fire(app, at)
            assert moments_of(app, schedule)[-1] == moment
            run = app.run(runs_of(app, schedule)[-1].id)
            set_run(app, run.row, created_at=at)
            fire(app, at + second)
            run.signal("verdict", "yes")
            run.result(60)
            set_run(app, run.row, ended_at=at + 3 * second)
        fire(app, at + 3 * second)
    assert moments_of(app, schedule) == [*late, at + 2 * second]
    assert schedule.row.next_at == at + 4 * second


def set_run(app: aft.Aft, row: RunRow, **values: Any) -> None:
    """Edit a run's row by hand."""
    with app.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == row.id).values(**values))


def test_runs_may_overlap_where_that_is_declared(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("crowd", agency.approval.call(journey), cron="0 3 * * *", overlap=True)
    set_row(schedule, next_at=THREE)
    fire(app, THREE)
    fire(app, THREE + DAY)
    assert moments_of(app, schedule) == [THREE, THREE + DAY]


# --- clocks that are changed ---


def test_a_night_that_has_an_hour_twice_has_one_run_and_one_that_lacks_it_has_one_too(
    setup: Setup, journey: str
) -> None:
    app = setup.app()
    vienna: dict[str, Any] = {"cron": "30 2 * * *", "zone": "Europe/Vienna", "overlap": True}
    schedule = app.schedule("nightly", agency.pays.call(journey), **vienna)
    twice, lacking = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    for first, night_after in ((lacking, timedelta(hours=23, minutes=30)), (twice, timedelta(hours=25))):
        set_row(schedule, next_at=first)
        for minutes in range(0, 24 * 60, 30):
            fire(app, first + timedelta(minutes=minutes))
            if minutes > 120:
                break
        assert schedule.row.next_at == first + night_after
    assert moments_of(app, schedule) == [lacking, twice]


# --- declaring ---


def test_declared_again_with_the_same_things_nothing_changes(setup: Setup, journey: str) -> None:
    app = setup.app()
    before = app.schedule("same", agency.pays.call(journey), every="15m").row
    assert app.schedule("same", agency.pays.call(journey=journey), every=900).row == before


def test_declared_with_other_arguments_it_keeps_its_next_moment(setup: Setup, journey: str) -> None:
    app = setup.app()
    before = app.schedule("other", agency.pays.call(journey), every="15m").row
    after = app.schedule("other", agency.pays.call("another"), every="15m", overlap=True).row
    assert (after.next_at, after.since, after.overlap) == (before.next_at, before.since, True)
    assert after.args != before.args


def test_declared_with_other_times_it_has_another_next_moment_and_stays_paused(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("moved", agency.pays.call(journey), every="15m")
    schedule.pause()
    before = schedule.row
    after = app.schedule("moved", agency.pays.call(journey), cron="0 3 * * *", zone="Europe/Vienna").row
    assert (after.cron, after.every_seconds, after.paused) == ("0 3 * * *", None, True)
    assert after.next_at != before.next_at


def test_several_that_declare_at_once_make_one(setup: Setup, journey: str) -> None:
    app = setup.app()
    app.check()
    race(lambda: app.schedule("shared", agency.pays.call(journey), every="15m"))
    assert [schedule.name for schedule in app.schedules()] == ["shared"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cron": "61 * * * *"}, "schedule 'bad': cron='61 . . . .' cannot be read"),
        ({"cron": "0 3 * * *", "zone": "Europe/Viena"}, "did you mean 'Europe/Vienna'"),
        ({"every": "500ms"}, "not between one second"),
        ({"every": "soon"}, "every: 'soon' is not a duration"),
        ({"every": 0}, "every=0 leaves no time"),
        ({}, "give one of the two"),
        ({"cron": "0 3 * * *", "every": "1h"}, "give one of the two"),
        ({"cron": "0 3 * * *", "catch_up": "none"}, "catch_up='none' is none of 'skip', 'one', 'all'"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_and_nothing_is_changed(
    production: Setup, given: dict[str, Any], said: str
) -> None:
    app = production.app()
    with pytest.raises(aft.DefinitionError, match=said):
        app.schedule("bad", agency.pays.call("journey"), **given)
    assert app.schedules() == []


def test_what_is_no_call_of_a_flow_is_refused(production: Setup) -> None:
    app = production.app()
    wrong: list[tuple[Any, str]] = [
        (agency.pays, r"write pays\.call\(…\)"),
        (agency.book.call("a", "b"), "not a flow's call"),
        (agency.pays.options(key="k").call("a"), "leave out key="),
        (agency.pays.options(after="1h").call("a"), "leave out after="),
    ]
    for call, said in wrong:
        with pytest.raises(aft.DefinitionError, match=said):
            app.schedule("bad", call, every="1h")
    with pytest.raises(aft.DefinitionError, match="cannot name a schedule"):
        app.schedule("a/b", agency.pays.call("a"), every="1h")
    with pytest.raises(TypeError, match="missing a required argument: 'journey'"):
        app.schedule("bad", agency.pays.call(), every="1h")  # type: ignore[call-arg]
    assert app.schedules() == []


# --- by hand ---


def test_a_paused_schedule_fires_nothing_and_does_not_make_up_for_it(setup: Setup, journey: str) -> None:
    app = setup.app()
    line, first = some_hours_ago(days=3)
    schedule = app.schedule("paused", agency.pays.call(journey), cron=line, catch_up="all")
    set_row(schedule, next_at=first)
    schedule.pause(by="ann")
    fire(app, datetime.now(UTC))
    with pytest.raises(aft.OrderRefused, match="'paused' is paused already, by 'ann'"):
        schedule.pause()
    schedule.resume()
    fire(app, datetime.now(UTC))
    assert runs_of(app, schedule) == []
    assert schedule.row.next_at == first + 4 * DAY
    with pytest.raises(aft.OrderRefused, match="is not paused"):
        schedule.resume()


def test_a_removed_schedule_is_gone_and_its_runs_go_on(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("gone", agency.approval.call(journey), cron="0 3 * * *")
    set_row(schedule, next_at=THREE)
    fire(app, THREE)
    (row,) = runs_of(app, schedule)
    schedule.remove()
    fire(app, THREE + DAY)
    assert app.schedules() == []
    assert len(runs_of(app, schedule)) == 1
    for gone in (schedule.pause, schedule.resume, schedule.remove, schedule.run_now, lambda: app.schedule("gone")):
        with pytest.raises(aft.UnknownSchedule, match="'gone'"):
            gone()
    with app.dispatcher():
        app.run(row.id).signal("verdict", "no")
        assert app.run(row.id).result(60) == "no"


def test_a_run_can_be_made_at_once_unless_it_would_overlap(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("now", agency.approval.call(journey), cron="0 3 * * *")
    before = schedule.row.next_at
    run = app.schedule("now").run_now(by="ann")
    assert (schedule.row.last_run_id, schedule.row.next_at) == (run.id, before)
    with pytest.raises(aft.OrderRefused, match=f"run {run.id} has not ended"):
        schedule.run_now()
    with app.dispatcher():
        run.signal("verdict", "yes")
        assert run.result(60) == "yes"
        again = schedule.run_now()
        again.signal("verdict", "yes")
        assert again.result(60) == "yes"


# --- rows that were edited by hand ---


@pytest.mark.parametrize(
    "edited",
    [
        {"cron": "every now and then"},
        {"zone": "Middle/Earth"},
        {"catch_up": "sometimes"},
        {"options": "{"},
        {"every_seconds": 60.0},
        {"cron": None, "every_seconds": float("inf")},
        {"cron": None, "every_seconds": -1.0},
    ],
)
def test_a_row_that_cannot_be_read_is_told_and_stops_nobody_else(
    setup: Setup, journey: str, edited: dict[str, Any]
) -> None:
    app = setup.app()
    bad = app.schedule("a-bad-one", agency.pays.call(journey), cron="0 3 * * *")
    fine = app.schedule("b-fine-one", agency.pays.call(journey), cron="0 3 * * *")
    set_row(bad, next_at=THREE - timedelta(seconds=1), **edited)
    set_row(fine, next_at=THREE)
    events = heard(app)
    fire(app, THREE)
    fire(app, THREE)
    assert moments_of(app, fine) == [THREE]
    assert moments_of(app, bad) == []
    (broken,) = [event for event in events if isinstance(event, ScheduleBroken)]
    assert (broken.schedule, broken.why) == ("a-bad-one", bad.row.broken)
    with app.store.read() as connection:
        assert firing.find_due(connection, app.namespace, THREE, 10) == []


def test_a_moment_that_python_cannot_read_stops_nobody_else(setup: Setup, journey: str) -> None:
    app = setup.app()
    app.schedule("a-bad-one", agency.pays.call(journey), cron="0 3 * * *")
    fine = app.schedule("b-fine-one", agency.pays.call(journey), cron="0 3 * * *")
    set_row(fine, next_at=THREE)
    impossible = "-1e300" if setup.name == "sqlite" else "'-infinity'"
    with app.store.write() as connection:
        where = {"namespace": app.namespace, "name": "a-bad-one"}
        statement = f"UPDATE aft_schedules SET next_at = {impossible} WHERE namespace = :namespace AND name = :name"
        connection.execute(text(statement), where)
    with suppress(aft.StoreError):  # on PostgreSQL it stays due, and is told again and again
        fire(app, THREE)
    assert moments_of(app, fine) == [THREE]


def test_a_broken_schedule_goes_on_when_it_is_declared_anew(setup: Setup, journey: str) -> None:
    app = setup.app()
    schedule = app.schedule("broken", agency.pays.call(journey), cron="0 3 * * *")
    set_row(schedule, next_at=THREE, cron="every now and then")
    fire(app, THREE)
    with pytest.raises(aft.OrderRefused, match=r"cannot be resumed: cron='every now and then'.*; declare it again"):
        schedule.resume()
    app.schedule("broken", agency.pays.call(journey), cron="0 3 * * *")
    assert schedule.row.broken is None
    set_row(schedule, next_at=THREE)
    fire(app, THREE)
    assert moments_of(app, schedule) == [THREE]
