"""Claims about what takes longer than expected, and about looking runs up by what was said of them."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select

import aft
from aft.cli.root import root
from aft.flows.runtime.slow_activities import SlowActivityWatch
from aft.ids import RunId
from aft.runs.find import find_runs
from aft.runs.find.find_runs import RunFilter
from aft.runs.records.overdue_runs import ANY_OVERDUE, take_overdue
from aft.store.db_time import later
from aft.store.tables import runs
from aft.telemetry import ActivityOverdue, Event, RunOverdue, Telemetry
from tests.setups import Setup, eventually
from tests.storing import HandClock, Stage, at_once
from tests.world import gates

MINUTE = timedelta(minutes=1)


@aft.activity(expected="50ms", resource="payments", levels=["20ms"])
def dawdle(order: str) -> str:
    assert gates[order].wait(60)
    return order


@aft.activity(resource="cms", levels=["20ms"])
def stumble(order: str) -> str:
    if gates[order].is_set():
        return order
    gates[order].set()
    raise ConnectionError(order)


@aft.flow
def dawdling(order: str) -> str:
    return dawdle(order)


@aft.flow
def stumbling(order: str) -> str:
    return stumble(order)


@pytest.fixture
def order() -> str:
    made = secrets.token_hex(4)
    return made


def past(stage: Stage, **changes: Any) -> RunId:
    """A run that should have ended a while ago."""
    run = stage.queued(expected=MINUTE, **changes)
    stage.change(run.id, created_at=later(-120), overdue_at=later(-60))
    return run.id


def tell(stage: Stage, limit: int = 100) -> list[RunOverdue]:
    with stage.store.write() as connection:
        return take_overdue(connection, stage.namespace, limit)


def overdue_at(stage: Stage, run_id: RunId) -> Any:
    with stage.store.read() as connection:
        return connection.execute(select(runs.c.overdue_at).where(runs.c.id == run_id)).scalar()


def listed(stage: Stage, **asked: Any) -> set[RunId]:
    with stage.store.read() as connection:
        return {row.id for row in find_runs.find(connection, stage.namespace, RunFilter(**asked), limit=50)}


# --- activities ---


class Watch:
    """A registry of attempts on a clock that goes as the test says."""

    def __init__(self) -> None:
        self.clock, self.told = HandClock(), list[Event]()
        telemetry = Telemetry()
        telemetry.subscribe(self.told.append)
        self.attempts = SlowActivityWatch(self.clock, telemetry)


def test_an_activity_that_takes_too_long_is_told_once_while_it_runs() -> None:
    watch = Watch()
    with watch.attempts.watched("r", "1", "pay", timedelta(seconds=2)):
        watch.clock.passed = 2.0
        watch.attempts.report_overdue()
        assert watch.told == []
        watch.clock.passed = 3.0
        watch.attempts.report_overdue()
        watch.attempts.report_overdue()
        watch.clock.passed = 9.0
    watch.attempts.report_overdue()
    expected, elapsed = timedelta(seconds=2), timedelta(seconds=3)
    assert watch.told == [ActivityOverdue(run="r", path="1", activity="pay", expected=expected, elapsed=elapsed)]


def test_an_activity_that_took_too_long_between_two_looks_is_told_at_its_end() -> None:
    watch = Watch()

    def fail() -> None:
        watch.clock.passed = 5.0
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), watch.attempts.watched("r", "1", "pay", timedelta(seconds=2)):
        fail()
    assert [event.name for event in watch.told] == ["ActivityOverdue"]


def test_an_activity_that_ended_in_time_is_not_told() -> None:
    watch = Watch()
    with watch.attempts.watched("r", "1", "pay", timedelta(seconds=2)):
        watch.clock.passed = 1.0
    with watch.attempts.watched("r", "2", "pack", None):
        watch.clock.passed = 100.0
        watch.attempts.report_overdue()
    assert watch.told == []


def test_a_heartbeat_tells_of_an_activity_that_still_runs(setup: Setup, order: str, quick_beats: float) -> None:
    app, told = setup.app(lease=quick_beats), list[Event]()
    app.telemetry.subscribe(lambda event: told.append(event) if event.name == "ActivityOverdue" else None)
    with app.dispatcher():
        run = app.submit(dawdling, order)
        event = eventually(lambda: told and told[0])
        assert (event.run, event.activity, event.path) == (run.id, "dawdle", "1")
        assert event.elapsed > event.expected == timedelta(milliseconds=50)
        assert run.status == "running"
        gates[order].set()
        assert run.result(60) == order
    assert len(told) == 1


def test_a_fault_carries_the_resource_of_its_activity(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(stumbling, order).result(60) == order
    (fault,) = app.faults()
    assert fault.resource == "cms"
    shown = CliRunner(env=setup.environ()).invoke(root, ["faults", "show", fault.id, "--json"])
    assert json.loads(shown.stdout)["resource"] == "cms"


# --- runs ---


def test_what_is_said_of_a_run_is_stored_with_it(setup: Setup, order: str) -> None:
    app = setup.app()
    gates[order].set()
    said = dawdling.options(owner="ads", priority=5, expected="10m", resources=["payments", "cms", "payments"])
    for run in (app.start(said, order), app.submit(said, order)):
        row = run.row
        assert (row.owner, row.priority, row.expected) == ("ads", 5, timedelta(minutes=10))
        assert row.resources == ("payments", "cms")
    plain = app.submit(dawdling, order).row
    assert (plain.resources, plain.expected) == ((), None)


def test_a_run_past_its_time_is_told_once(stage: Stage) -> None:
    run = past(stage)
    assert tell(stage) == [RunOverdue(run=run, flow="order", expected=MINUTE)]
    assert tell(stage) == []


def test_a_run_within_its_time_is_not_told(stage: Stage) -> None:
    run = stage.queued(expected=MINUTE)
    stage.queued()
    assert stage.store.query([(ANY_OVERDUE, stage.namespace)]) == [[]]
    assert tell(stage) == []
    left = overdue_at(stage, run.id) - run.created_at
    assert abs(left - MINUTE) < timedelta(milliseconds=1)


@pytest.mark.parametrize("end", [{"status": "completed"}, {"status": "parked", "ended_as": "compensated"}])
def test_a_run_that_has_ended_is_not_told_and_not_looked_at_again(stage: Stage, end: dict[str, str]) -> None:
    run = past(stage)
    stage.change(run, **end)
    assert stage.store.query([(ANY_OVERDUE, stage.namespace)]) == [[(run,)]]
    assert tell(stage) == []
    assert overdue_at(stage, run) is None


def test_runs_of_another_namespace_are_left_alone(stage: Stage) -> None:
    run = past(stage, namespace=stage.namespace + "x")
    assert tell(stage) == []
    assert overdue_at(stage, run) is not None


def test_no_more_are_told_than_one_round_may(stage: Stage) -> None:
    made = {past(stage) for _ in range(5)}
    first = tell(stage, limit=3)
    assert len(first) == 3
    assert {event.run for event in [*first, *tell(stage)]} == made


def test_of_many_sweepers_that_come_at_once_one_tells(stage: Stage) -> None:
    made = {past(stage) for _ in range(6)}
    told = [event.run for events in at_once([lambda: tell(stage)] * 4) for event in events]
    told += [event.run for event in tell(stage)]
    assert len(told) == 6
    assert set(told) == made


def test_the_owner_of_a_run_that_is_told_is_not_fenced(stage: Stage) -> None:
    owner = stage.owned(stage.lease(), expected=MINUTE)
    stage.change(owner.run_id, overdue_at=later(-1))
    assert len(tell(stage)) == 1
    owner.write(lambda connection, seq: None)


# --- looking up ---


def test_runs_are_found_by_owner_and_by_resource(stage: Stage) -> None:
    one = stage.queued(owner="ads", resources=("payments", "cms")).id
    two = stage.queued(owner="Ads", resources=("Payments",)).id
    odd = stage.queued(resources=('a "quoted", name', "%", "ü")).id
    assert listed(stage) == {one, two, odd}
    assert listed(stage, owner="ads") == {one}
    assert listed(stage, resource="payments") == {one}
    assert listed(stage, resource="cms", owner="ads") == {one}
    assert [listed(stage, resource=name) for name in ('a "quoted", name', "%", "ü")] == [{odd}] * 3
    assert [listed(stage, resource=name) for name in ("pay", ", ", "quoted", "pay%")] == [set()] * 4


def test_overdue_runs_are_found_also_after_they_were_told(stage: Stage) -> None:
    run = past(stage)
    stage.change(past(stage), status="completed", ended_as="completed")
    stage.queued(expected=MINUTE)
    stage.queued()
    assert listed(stage, overdue=True) == {run}
    tell(stage)
    assert listed(stage, overdue=True) == {run}
    assert listed(stage, overdue=True, owner="nobody") == set()


def test_the_command_line_and_the_app_find_the_same(setup: Setup, order: str) -> None:
    app = setup.app()
    mine = app.submit(dawdling.options(owner="ads", expected="1ms", resources=["payments"], priority=2), order)
    app.submit(dawdling, order)
    eventually(lambda: app.runs(overdue=True))
    filters: tuple[dict[str, Any], ...] = (
        {"owner": "ads"},
        {"resource": "payments"},
        {"priority": 2},
        {"priority": 1},
        {"overdue": True},
    )
    for asked in filters:
        assert [run.id for run in app.runs(**asked)] == [mine.id]
    assert app.runs(priority=3) == []
    for words in (["--owner", "ads"], ["--resource", "payments"], ["--priority", "2"], ["--overdue"]):
        found = json.loads(command(setup, *words, "--json"))
        assert [run["id"] for run in found] == [mine.id]
    said = {name: found[0][name] for name in ("owner", "priority", "resources", "expected")}
    assert said == {"owner": "ads", "priority": 2, "resources": ["payments"], "expected": 0.001}
    shown = command(setup, "--owner", "ads")
    assert "OWNER" in shown
    assert "PRIORITY" in shown
    assert "1ms" in shown


def test_the_command_line_says_what_it_did_not_find(setup: Setup) -> None:
    setup.app().check()
    asked = ["runs", "list", "--owner", "ads", "--resource", "cms", "--priority", "1", "--overdue"]
    result = CliRunner(env=setup.environ()).invoke(root, asked)
    assert "No runs of owner 'ads' that need 'cms' of priority 1 or more that are overdue in namespace" in result.stderr


def command(setup: Setup, *words: str) -> str:
    result = CliRunner(env=setup.environ()).invoke(root, ["runs", "list", *words])
    assert result.exit_code == 0, result.output
    return result.stdout
