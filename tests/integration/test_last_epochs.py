"""A run whose epoch somebody has set to the greatest number is parked once, and keeps no other from being claimed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import aft
from aft.flows.worker.claimer import RunClaimer
from aft.flows.worker.unserved_runs import claim_undoable
from aft.ids import RunId
from aft.runs.ownership.owner import MOST_SHARED_DEATHS
from aft.runs.park import LAST_EPOCH
from aft.runs.wakes.unserved_runs import Undoable
from aft.store.db_time import later
from aft.telemetry import RunParked
from tests.setups import Setup, eventually
from tests.storing import Stage
from tests.world import ledger


@aft.activity(name="last_epochs_note")
def note(order: str) -> str:
    ledger[order].append("note")
    return order


@aft.flow(name="last_epochs_flow")
def noting(order: str) -> str:
    return note(order)


@pytest.fixture
def app(setup: Setup) -> aft.Aft:
    return setup.app(grace=0.3)


def is_parked(run: aft.Run[Any]) -> bool:
    row = run.row
    return (row.status, row.worker_id, row.wake_id) == ("parked", None, None) and "epoch" in (row.reason or "")


@pytest.mark.parametrize("deaths", [0, MOST_SHARED_DEATHS])
def test_it_is_parked_once_and_goes_on_once_it_is_mended(
    app: aft.Aft, order: str, deaths: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aft")
    stage, heard = Stage(app.store, app.namespace), list[RunParked]()
    app.telemetry.subscribe(lambda event: heard.append(event) if isinstance(event, RunParked) else None)
    made = [app.submit(noting, f"{order}-{number}") for number in range(3)]
    for number, run in enumerate(made):
        changes = {"epoch": LAST_EPOCH} if number == 0 else {}
        stage.change(run.id, deaths=deaths, sweep_at=later(-10 + number), **changes)
    with app.dispatcher(concurrency=2):
        assert [run.result(60) for run in made[1:]] == [f"{order}-{number}" for number in (1, 2)]
        eventually(lambda: is_parked(made[0]))
        told = [record for record in caplog.records if made[0].id in record.getMessage()]
        assert [event.run for event in heard] == [made[0].id]
        assert len(told) <= 1
        made[0].retry()
        eventually(lambda: len(heard) == 2 and is_parked(made[0]))
        stage.change(made[0].id, epoch=5)
        made[0].retry()
        assert made[0].result(60) == f"{order}-0"
    assert ledger[f"{order}-0"] == ["note"]


def test_those_that_must_be_alone_are_claimed_one_at_a_time_beside_it(app: aft.Aft, order: str) -> None:
    stage = Stage(app.store, app.namespace)
    made = [app.submit(noting, f"{order}-{number}") for number in range(3)]
    for number, run in enumerate(made):
        changes = {"epoch": LAST_EPOCH} if number == 0 else {}
        stage.change(run.id, deaths=MOST_SHARED_DEATHS, sweep_at=later(-10 + number), **changes)
    claimer = RunClaimer(app.make_deps(stage.lease()))
    claimed: list[RunId] = []
    for _ in range(4):
        found = claimer.claim_due(1, lambda ids: None, alone=True)
        assert len(found) <= 1
        claimed += [row.id for row in found if row.unreadable is None]
    assert claimed == [run.id for run in made[1:]]


@pytest.mark.parametrize("alone", [False, True])
def test_those_that_only_need_undoing_are_claimed_beside_it(app: aft.Aft, order: str, alone: bool) -> None:
    stage = Stage(app.store, app.namespace)
    made = [app.submit(noting, f"{order}-{number}") for number in range(3)]
    for number, run in enumerate(made):
        changes = {"epoch": LAST_EPOCH} if number == 0 else {}
        stage.change(run.id, deaths=MOST_SHARED_DEATHS if alone else 0, **changes)
    found = [Undoable((run.id, run.row.wake_id or ""), (noting.name, noting.version), alone) for run in made]
    claimed = claim_undoable(app.make_deps(stage.lease()), found, lambda ids: None, alone=alone)
    assert {row.id for row in claimed if row.unreadable is None} == {run.id for run in made[1:]}


@pytest.mark.parametrize("column", ["seq", "inbox_seq", "deaths", "key_generation"])
@pytest.mark.parametrize("setup", ["sqlite"], indirect=True)
def test_a_number_that_is_none_parks_its_run_which_goes_on_once_it_is_mended(
    app: aft.Aft, order: str, column: str
) -> None:
    stage, run = Stage(app.store, app.namespace), app.submit(noting, order)
    with app.store.write() as connection:
        connection.exec_driver_sql(f"UPDATE aft_runs SET {column} = 0.5 WHERE id = ?", (run.id,))
    with app.dispatcher():
        eventually(lambda: run.status == "parked")
        assert f"cannot be read: {column}" in (run.row.reason or "")
        stage.change(run.id, **{column: 0})
        run.retry()
        assert run.result(60) == order


@pytest.mark.parametrize("column", ["epoch", "deaths", "deaths_alone"])
def test_a_run_of_a_lost_worker_is_rescued_or_parked_however_great_its_numbers_are(
    app: aft.Aft, order: str, column: str
) -> None:
    stage = Stage(app.store, app.namespace)
    lost, other = (stage.owned(stage.lease(), flow=noting.name, args='{"order": "x"}') for _ in range(2))
    stage.change(lost.run_id, **{column: LAST_EPOCH if column == "epoch" else 2**31 - 1})
    for owner in (lost, other):
        assert owner.worker is not None
        stage.expire(owner.worker)
    with app.dispatcher():
        eventually(lambda: stage.row(other.run_id).status == "completed")
        eventually(lambda: (row := stage.row(lost.run_id)).status == "parked" and row.worker_id is None)
    assert ("epoch" in (stage.row(lost.run_id).reason or "")) is (column == "epoch")


@pytest.mark.parametrize("column", ["sweep_at", "deadline_at"])
def test_an_infinite_time_of_one_run_stops_no_timer(production: Setup, order: str, column: str) -> None:
    app = production.app(grace=0.3)
    stage = Stage(app.store, app.namespace)
    damaged, other = (app.submit(noting, f"{order}-{number}") for number in range(2))
    with app.store.write() as connection:
        for run in (damaged, other):  # only the timer wakes them
            connection.exec_driver_sql(f"UPDATE aft_runs SET sweep_at = now() WHERE id = '{run.id}'")
        connection.exec_driver_sql(f"UPDATE aft_runs SET {column} = '-infinity' WHERE id = '{damaged.id}'")
        connection.exec_driver_sql("DELETE FROM aft_outbox")
    with app.dispatcher():
        assert other.result(60) == f"{order}-1"
    assert stage.row(other.id).status == "completed"
