"""What is due is judged by the database's clock alone: a wrong clock of a machine ends nothing early or late."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

import aft
from aft import do
from aft.clock import SystemClock
from aft.config import Settings
from aft.runs.states import Status
from tests.acceptance import agency
from tests.acceptance.observe import database_now
from tests.acceptance.theatre import teach
from tests.setups import Setup, eventually
from tests.world import ledger, trouble


class WrongClock(SystemClock):
    """A machine's clock that is minutes ahead of the database's, or behind it."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes

    def now(self) -> datetime:
        return super().now() + timedelta(minutes=self.minutes)


def make_app(setup: Setup, minutes: int) -> aft.Aft:
    """An app on a machine whose clock is wrong."""
    given = {"database_url": setup.database, "broker_url": setup.broker, "namespace": setup.namespace}
    settings = Settings.load(**given, lease=60.0, grace=1.0, levels="50ms*2, 100ms")
    made = aft.Aft(settings=settings, clock=WrongClock(minutes))
    setup.apps.append(made)
    return made


def test_a_clock_that_is_ahead_ends_no_deadline(setup: Setup, journey: str) -> None:
    app = make_app(setup, 5)
    with app.dispatcher():
        run = app.submit(agency.approval.options(deadline="3m"), journey)
        eventually(lambda: run.status is Status.WAITING)
        due = run.row.due_at
        assert due is not None
        assert due == run.row.deadline_at, "it is woken when that has passed"
        run.signal("verdict", "yes")
        assert run.result(60) == "yes"


def test_a_clock_that_is_behind_does_not_outlast_a_deadline(setup: Setup, journey: str) -> None:
    app = make_app(setup, -5)
    with app.dispatcher():
        run = app.submit(agency.approval.options(deadline="1s"), journey)
        with pytest.raises(aft.FlowCompensated, match="DeadlineExceeded"):
            run.result(60)
    # Where the machine stands still for a second, it has passed before the first step.
    assert ledger[journey] in (["draft", "undraft"], [])


@pytest.mark.parametrize("minutes", [5, -5])
def test_a_run_that_begins_later_begins_by_the_database_s_clock(setup: Setup, journey: str, minutes: int) -> None:
    app = make_app(setup, minutes)
    ahead = minutes > 0
    begins = database_now(app) + timedelta(minutes=3 if ahead else -3)
    run = app.submit(agency.approval.options(at=begins, deadline="1h"), journey)
    assert run.row.deadline_at is not None
    assert run.row.deadline_at - run.row.created_at <= timedelta(hours=1, minutes=3 if ahead else 0)
    assert (run.row.due_at == begins) is ahead


def test_a_run_that_is_resumed_before_its_time_begins_when_it_was_to(setup: Setup, journey: str) -> None:
    app = make_app(setup, 5)
    run = app.submit(agency.approval.options(after="3m"), journey)
    begins = run.row.due_at
    run.suspend()
    run.resume()
    assert (run.status, run.row.due_at) == (Status.RUNNING, begins)


def test_a_step_that_a_person_lets_begin_again_is_due_at_once(setup: Setup, journey: str) -> None:
    app = make_app(setup, 5)
    trouble[journey, "pay"] = [aft.Unrecoverable("no")]
    teach(app, agency.pays, "fault", "true", do.set(args={"journey": journey}), do.park("look"))
    with app.dispatcher():
        run = app.submit(agency.pays, journey)
        eventually(lambda: run.status is Status.PARKED)
        run.retry()
        assert run.result(60) == "paid"
