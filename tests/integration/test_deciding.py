"""Dispatchers that decide about faults of the same runs at the same time do not wait for each other for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text

import aft
from aft.dispatcher.intake import Intake
from aft.ids import FaultId
from aft.recovery.relay import Relay
from aft.runs import faults
from aft.runs.rows import RunRow
from aft.store import connecting, tables
from tests.setups import Setup, eventually
from tests.storing import Stage, a_fault


@pytest.fixture
def app(production: Setup, monkeypatch: pytest.MonkeyPatch) -> aft.Aft:
    # Whoever waits for a row here waits for the test: that is not to be over too soon.
    monkeypatch.setattr(connecting, "LOCK_PATIENCE", 30_000)
    made = production.app()
    made.check()
    made.delays().declare(made.waits())
    return made


def intake(app: aft.Aft) -> Intake:
    relay = Relay(app.store, app.broker, app.namespace, app.delays().topology, app.telemetry, app.clock)
    return app.make_intake(app.delays(), relay)


def fail(app: aft.Aft, run: RunRow, number: int) -> FaultId:
    """Write a fault of a run, with a name that comes after those of smaller numbers."""
    made = a_fault(run.id, run.epoch, id=FaultId(f"{app.namespace}-{number}"))
    with app.store.write() as connection:
        faults.add(connection, app.namespace, made)
    return made.id


def blocked(app: aft.Aft) -> int:
    """How many transactions of this database wait for a row."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with app.store.read() as connection:
        return int(connection.execute(text(waiting)).scalar_one())


def test_two_dispatchers_decide_faults_of_the_same_two_runs(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    one, other = sorted((stage.queued() for _ in range(2)), key=lambda row: row.id)
    # Each has a fault of either run: in the order of the faults' names they would lock the runs crosswise.
    first, second = [fail(app, one, 1), fail(app, other, 3)], [fail(app, other, 2), fail(app, one, 4)]
    with ThreadPoolExecutor(2) as pool:
        with app.store.write() as connection, app.store.at_work(connection):
            # The first is held up in the middle, with one run locked, until the second waits, too.
            held = select(tables.faults.c.id).where(tables.faults.c.id == first[1]).with_for_update()
            connection.execute(held)
            decides = pool.submit(intake(app).decide, first)
            eventually(lambda: blocked(app) == 1)
            decides_too = pool.submit(intake(app).decide, second)
            eventually(lambda: blocked(app) == 2)
        assert decides.result(20) == {(first[0], one.id), (first[1], other.id)}
        assert decides_too.result(20) == {(second[0], other.id), (second[1], one.id)}
