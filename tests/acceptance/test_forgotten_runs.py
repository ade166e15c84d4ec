"""A run that nothing would ever wake is found, woken and told of; one that something is awaited for is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

import aft
from aft.runs.wakes import stranded_runs
from aft.store.db_time import later
from aft.store.tables import runs
from aft.telemetry import RunForgotten
from tests.acceptance.theatre import listen
from tests.setups import Setup, eventually
from tests.world import tries


@aft.activity(name="forgotten_busy")
def be_busy(order: str) -> str:
    raise aft.Recoverable("busy", after="1h")


@aft.activity(name="forgotten_spoilt", levels=[])
def spoil(order: str) -> int:
    return "not a number"  # type: ignore[return-value]


@aft.activity(name="forgotten_note")
def note(order: str) -> str:
    tries[order] += 1
    return order


@aft.flow(name="forgotten_flow")
def noting(order: str) -> str:
    return note(order)


@aft.flow(name="forgotten_waiting")
def waiting(order: str) -> Any:
    return aft.wait_for("never")


@aft.flow(name="forgotten_above")
def above(order: str) -> Any:
    return waiting(order)


@aft.flow(name="forgotten_in_ladder")
def in_ladder(order: str) -> str:
    return be_busy(order)


@aft.flow(name="forgotten_parked")
def parked(order: str) -> int:
    return spoil(order)


def let_pass(app: aft.Aft, run: aft.Run[Any], **changes: Any) -> None:
    """Let minutes pass in which nothing happens to a run."""
    with app.store.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=later(-600), **changes))


def test_a_run_that_nothing_would_wake_is_woken_and_told_of(setup: Setup, order: str) -> None:
    app = setup.app()
    heard = listen(app)
    run = app.submit(noting, order)
    let_pass(app, run, wake_id=None, due_at=None, sweep_at=None)
    with app.dispatcher():
        assert run.result(60) == order
    told = [event.run for event in heard if isinstance(event, RunForgotten)]
    assert (told, tries[order]) == ([run.id], 1)


def test_a_run_in_its_ladder_without_a_time_is_forgotten(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(in_ladder, order)
        eventually(lambda: run.status == "recovering" and run.row.worker_id is None and run.row.due_at is not None)
    let_pass(app, run, wake_id=None, due_at=None, sweep_at=None)
    with app.store.read() as connection:
        assert stranded_runs.any_stranded(connection, app.settings.namespace)


@pytest.mark.parametrize(
    ("flow", "status"),
    [(waiting, "waiting"), (above, "waiting"), (in_ladder, "recovering"), (parked, "parked"), (noting, "completed")],
    ids=lambda value: value.name if isinstance(value, aft.Flow) else "",
)
def test_a_run_that_something_is_awaited_for_is_not_forgotten(
    setup: Setup, order: str, flow: aft.Flow[[str], Any], status: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(flow, order)
        eventually(lambda: run.status == status and run.row.worker_id is None)
    for one in app.runs():
        let_pass(app, one)
    with app.store.read() as connection:
        assert not stranded_runs.any_stranded(connection, app.settings.namespace)


def test_a_run_whose_fault_nobody_has_decided_about_is_not_forgotten(setup: Setup, order: str) -> None:
    app = setup.app()
    run = app.start(in_ladder, order)
    assert (run.status, run.row.wake_id) == ("recovering", None)
    let_pass(app, run)
    with app.store.read() as connection:
        assert not stranded_runs.any_stranded(connection, app.settings.namespace)


def test_a_run_that_is_suspended_or_due_is_not_forgotten(setup: Setup, order: str) -> None:
    app = setup.app()
    due, stopped = app.submit(noting, order), app.submit(waiting, order)
    with app.dispatcher():
        eventually(lambda: stopped.status == "waiting")
        stopped.suspend()
        eventually(lambda: stopped.status == "suspended")
        due.result(60)
    due = app.submit(noting, order)
    let_pass(app, due)
    let_pass(app, stopped)
    with app.store.read() as connection:
        assert not stranded_runs.any_stranded(connection, app.settings.namespace)
