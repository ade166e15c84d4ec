"""Runs that begin later. On every combination of database and broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import aft
from aft.runs.states import Status
from tests.acceptance import agency
from tests.setups import Setup, run_to
from tests.world import ledger

#: Long after today.
THEN = datetime(2041, 5, 17, 8, tzinfo=ZoneInfo("Europe/Vienna"))


def test_a_run_begins_when_its_time_has_come_and_not_before(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), agency.pays.options(after="700ms"), journey) as run:
        begins = run.row.due_at
        assert begins is not None
        assert run.result(60) == "paid"
    started = run.row.started_at
    assert started is not None
    assert started >= begins
    assert begins - run.row.created_at >= timedelta(milliseconds=699)


def test_a_run_that_begins_far_in_the_future_is_left_alone(setup: Setup, journey: str) -> None:
    app = setup.app(grace=0.2)
    late = app.submit(agency.pays.options(at=THEN), journey)
    with app.dispatcher():
        assert app.submit(agency.pays, f"{journey} now").result(60) == "paid"
        assert (late.status, late.row.started_at, late.row.due_at) == (Status.RUNNING, None, THEN.astimezone(UTC))
    assert ledger[journey] == []


def test_a_time_that_is_past_means_at_once(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.submit(agency.pays.options(at=datetime(2001, 1, 1, tzinfo=UTC), expected="1h"), journey)
    assert run.row.due_at == run.row.created_at
    assert run.row.expected == timedelta(hours=1)
    with app.dispatcher():
        assert run.result(60) == "paid"


def test_a_run_that_has_not_begun_can_be_cancelled(setup: Setup, journey: str) -> None:
    app = setup.app()
    run = app.submit(agency.pays.options(at=THEN), journey)
    run.cancel()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated):
        run.result(60)
    assert ledger[journey] == []


def test_what_it_is_expected_to_take_counts_from_its_beginning(setup: Setup, journey: str) -> None:
    run = setup.app().submit(agency.pays.options(after="1h", expected="10m"), journey)
    assert run.row.expected == timedelta(hours=1, minutes=10)
    at = run.row.created_at + timedelta(days=3)
    late = setup.app().submit(agency.pays.options(at=at, expected="10m"), journey)
    assert late.row.expected is not None
    assert abs(late.row.created_at + late.row.expected - at - timedelta(minutes=10)) < timedelta(seconds=5)


def test_the_same_key_is_the_same_run_whenever_it_begins(setup: Setup, journey: str) -> None:
    app = setup.app()
    late = app.submit(agency.pays.options(key=journey, at=THEN), journey)
    assert app.submit(agency.pays.options(key=journey), journey).id == late.id
    assert late.row.due_at == THEN.astimezone(UTC)


def test_a_child_may_begin_later_too(setup: Setup, journey: str) -> None:
    app = setup.app()

    @aft.flow(name=f"patient_{journey}")
    def patient(journey: str) -> str:
        return agency.pays.options(after="300ms")(journey)

    with app.dispatcher():
        assert app.submit(patient, journey).result(60) == "paid"
    (child,) = [run.row for run in app.runs() if run.row.parent_id]
    assert child.started_at is not None
    assert child.started_at - child.created_at >= timedelta(milliseconds=299)


def test_what_is_executed_here_and_now_cannot_begin_later(setup: Setup, journey: str) -> None:
    app = setup.app()
    for later in (agency.pays.options(after="1h"), agency.pays.options(at=THEN)):
        with pytest.raises(aft.DefinitionError, match=r"executes flow 'agency_pays' here and now.*: app\.submit"):
            app.start(later, journey)
    assert app.runs() == []


def test_a_beginning_that_cannot_be_is_refused() -> None:
    with pytest.raises(aft.DefinitionError, match="must be a datetime that knows its zone"):
        agency.pays.options(at=datetime(2041, 5, 17))
    with pytest.raises(aft.DefinitionError, match="must be a datetime that knows its zone"):
        agency.pays.options(at="2041-05-17T08:00Z")  # type: ignore[arg-type]
    with pytest.raises(aft.DefinitionError, match="give one of the two"):
        agency.pays.options(at=THEN, after="1h")
    with pytest.raises(aft.DefinitionError, match="after: 'soon' is not a duration"):
        agency.pays.options(after="soon")
