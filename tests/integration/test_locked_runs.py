"""A run or a plan that somebody has locked, and who is paused, keeps a dispatcher from nothing that is about others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Column, select
from sqlalchemy import Table as SqlTable

import aft
from aft import do
from aft.dispatcher.sweep.sweeper import Sweeper
from aft.recovery.takeover import Takeover
from aft.rules.exlets import plans
from aft.rules.exlets.plans import PlanState
from aft.rules.exlets.primitives import Primitive
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.store import tables
from aft.store.db_time import later
from tests.deciding import carry_out, intake, put_fault, put_plan
from tests.setups import Setup
from tests.storing import Stage

#: Seconds within which what is about others is done.
SOON = 20


@pytest.fixture
def app(production: Setup) -> aft.Aft:
    made = production.app()
    made.delays().declare(made.waits())
    return made


@contextmanager
def locked(app: aft.Aft, table: SqlTable, row_id: str) -> Iterator[None]:
    """Somebody has locked a row, and is paused."""
    column: Column[str] = table.c.id
    with app.store.write() as connection, app.store.lend(connection):
        connection.execute(select(column).where(column == row_id).with_for_update())
        yield


def states(app: aft.Aft, *rows: RunRow) -> list[PlanState]:
    with app.store.read() as connection:
        return [plan.state for row in rows for plan in plans.of_run(connection, row.id)]


@pytest.mark.parametrize("exlet", [[do.park("look")], [do.suspend("run")], [do.remove("run")]], ids=str)
def test_a_locked_run_keeps_no_other_exlet_from_being_carried_out(app: aft.Aft, exlet: list[Primitive]) -> None:
    stage = Stage(app.store, app.namespace)
    rows = [stage.queued() for _ in range(2)]
    begun = [put_plan(app, row, put_fault(app, row, number), *exlet) for number, row in enumerate(rows)]
    with ThreadPoolExecutor(1) as pool, locked(app, tables.runs, rows[0].id):
        pool.submit(carry_out, app, *begun).result(SOON)
        assert states(app, *rows) == [PlanState.OPEN, PlanState.DONE]
    carry_out(app, *begun)
    assert states(app, *rows) == [PlanState.DONE, PlanState.DONE]


def test_nor_does_one_whose_exlet_is_given_up(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    rows = [stage.queued() for _ in range(2)]
    begun = [put_plan(app, row, put_fault(app, row, number), do.park("look")) for number, row in enumerate(rows)]
    with app.store.write() as connection:
        broken = tables.plans.update().where(tables.plans.c.id == begun[0])
        connection.execute(broken.values(exlet="{", due_at=later(-1)))
    with ThreadPoolExecutor(1) as pool, locked(app, tables.runs, rows[0].id):
        pool.submit(carry_out, app, *begun).result(SOON)
        assert states(app, rows[1]) == [PlanState.DONE]
        with app.store.read() as connection:
            due = select(tables.plans.c.id).where(tables.plans.c.id == begun[0], tables.plans.c.due_at > later(0))
            assert connection.execute(due).all(), "it is tried again when its time has come"
    carry_out(app, *begun)
    assert states(app, rows[0]) == [PlanState.DROPPED]


def test_nor_does_a_locked_plan(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    rows = [stage.queued() for _ in range(2)]
    begun = [put_plan(app, row, put_fault(app, row, number), do.park("look")) for number, row in enumerate(rows)]
    with ThreadPoolExecutor(1) as pool, locked(app, tables.plans, begun[0]):
        pool.submit(carry_out, app, *begun).result(SOON)
        assert states(app, *rows) == [PlanState.OPEN, PlanState.DONE]
    carry_out(app, *begun)
    assert states(app, *rows) == [PlanState.DONE, PlanState.DONE]


def test_a_locked_run_keeps_no_other_above_a_late_effect_from_being_parked(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    pairs = [(stage.queued(), stage.queued()) for _ in range(3)]
    for parent, child in pairs:
        stage.change(parent.id, status="compensated", ended_as="compensated", wake_id=None)
        stage.change(child.id, status="parked", ended_as="completed", parent_id=parent.id, wake_id=None)
    takeover = Takeover(app.namespace, app.store, app.clock, app.telemetry, lambda faults: None)
    sweeper = Sweeper(app.make_dispatcher_deps(), intake(app), takeover, lease=timedelta(seconds=30))
    with ThreadPoolExecutor(1) as pool:
        for held in pairs[0][0], pairs[1][1]:
            with locked(app, tables.runs, held.id):
                pool.submit(sweeper.park_above).result(SOON)
        assert stage.row(pairs[2][0].id).status is Status.PARKED
    sweeper.park_above()
    assert [stage.row(parent.id).status for parent, _ in pairs] == [Status.PARKED] * 3
