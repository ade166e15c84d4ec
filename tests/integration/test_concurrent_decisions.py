"""Dispatchers that decide about faults of the same runs at the same time do not wait for each other for ever.

Nor does anybody else wait for a run that somebody has locked: it keeps only itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, select, text, update

import aft
from aft.dispatcher.sweep.sweeper import CLOCKS, Sweeper
from aft.fault import FaultKind
from aft.ids import StepPath
from aft.recovery.takeover import Takeover
from aft.runs.orders import steer
from aft.runs.records import faults, inbox
from aft.runs.wakes import wake
from aft.store import connect, tables
from aft.store.db_time import later
from tests.deciding import intake, put_fault
from tests.setups import Setup, eventually
from tests.storing import Stage, a_fault, actor


@pytest.fixture
def app(production: Setup, monkeypatch: pytest.MonkeyPatch) -> aft.Aft:
    # Whoever waits for a row here waits for the test: that is not to be over too soon.
    monkeypatch.setattr(connect, "LOCK_PATIENCE", 30_000)
    made = production.app()
    made.check()
    made.delays().declare(made.waits())
    return made


def blocked(app: aft.Aft) -> int:
    """How many transactions of this database wait for a row."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with app.store.read() as connection:
        return int(connection.execute(text(waiting)).scalar_one())


def test_two_dispatchers_decide_faults_of_the_same_two_runs(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    one, other = sorted((stage.queued() for _ in range(2)), key=lambda row: row.id)
    # Each has a fault of either run: in the order of the faults' names they would lock the runs crosswise.
    first, second = (
        [put_fault(app, one, 1), put_fault(app, other, 3)],
        [put_fault(app, other, 2), put_fault(app, one, 4)],
    )
    with ThreadPoolExecutor(2) as pool:
        with app.store.write() as connection, app.store.lend(connection):
            # The first is held up in the middle, with one run locked, until the second waits, too.
            held = select(tables.faults.c.id).where(tables.faults.c.id == first[1]).with_for_update()
            connection.execute(held)
            decides = pool.submit(intake(app).decide, first)
            eventually(lambda: blocked(app) == 1)
            decides_too = pool.submit(intake(app).decide, second)
            eventually(lambda: blocked(app) == 2)
        assert decides.result(60) == {(first[0], one.id), (first[1], other.id)}
        assert decides_too.result(60) == {(second[0], other.id), (second[1], one.id)}


def test_an_order_that_is_sent_while_its_run_is_about_to_be_parked_wakes_it(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    row = stage.queued()
    stage.change(row.id, status="recovering", wake_id=None, due_at=None, sweep_at=None)
    broken: dict[str, Any] = {"type": "builtins.ValueError", "lineage": ("builtins.ValueError",)}
    made = a_fault(row.id, row.epoch, kind=FaultKind.COMPENSATOR, path=StepPath("1/undo"), **broken)
    with app.store.write() as connection:
        faults.add(connection, app.namespace, made)
    with ThreadPoolExecutor(1) as pool:
        with app.store.write() as connection, app.store.lend(connection):
            run = wake.lock(connection, app.namespace, row.id)
            assert run is not None
            # Whoever decides has looked at the inbox by now, and waits for the run.
            decides = pool.submit(intake(app).decide, [made.id])
            eventually(lambda: blocked(app) == 1)
            steer.cancel(connection, run, actor("ann"))
        assert decides.result(60) == {(made.id, row.id)}
    parked = stage.row(row.id)
    with app.store.read() as connection:
        (item,) = inbox.unread(connection, row.id)
    assert (parked.status, parked.wake_id) == ("parked", item.id)


def test_a_fault_that_is_raised_again_while_it_is_decided_about_parks_its_run(app: aft.Aft) -> None:
    """Another branch was woken meanwhile: the run's next owner has met the fault, and let go of the run for it."""
    stage = Stage(app.store, app.namespace)
    row = stage.queued()
    stage.change(row.id, status="recovering", wake_id=None, due_at=None, sweep_at=None)
    broken: dict[str, Any] = {"type": "builtins.ValueError", "lineage": ("builtins.ValueError",)}
    made = a_fault(row.id, row.epoch, kind=FaultKind.COMPENSATOR, path=StepPath("1/undo"), **broken)
    with app.store.write() as connection:
        faults.add(connection, app.namespace, made)
    with ThreadPoolExecutor(1) as pool:
        with app.store.write() as connection, app.store.lend(connection):
            assert wake.lock(connection, app.namespace, row.id) is not None
            decides = pool.submit(intake(app).decide, [made.id])
            eventually(lambda: blocked(app) == 1)
            connection.execute(update(tables.runs).where(tables.runs.c.id == row.id).values(epoch=row.epoch + 1))
            faults.renew(connection, made.id, row.epoch + 1)
        assert decides.result(60) == {(made.id, row.id)}
    assert stage.row(row.id).status == "parked"


@aft.flow(name="locked_order")
def order() -> str:
    return "done"


@contextmanager
def locked(app: aft.Aft, run_id: str) -> Iterator[Connection]:
    """Somebody has locked a run, and is paused."""
    with app.store.write() as connection, app.store.lend(connection):
        connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == run_id).with_for_update())
        yield connection


def test_a_run_that_somebody_has_locked_does_not_keep_the_others_of_its_batch_from_being_decided(
    production: Setup,
) -> None:
    app = production.app()
    app.delays().declare(app.waits())
    stage = Stage(app.store, app.namespace)
    rows = [stage.queued() for _ in range(5)]
    ids = [put_fault(app, row, number) for number, row in enumerate(rows)]
    with locked(app, rows[2].id):
        decided = intake(app).decide(ids)
    assert decided == {(ids[number], rows[number].id) for number in (0, 1, 3, 4)}
    assert intake(app).decide(ids) == {(ids[2], rows[2].id)}


def test_nor_if_its_decision_needs_more_than_a_row(production: Setup) -> None:
    app = production.app()
    app.delays().declare(app.waits())
    stage = Stage(app.store, app.namespace)
    rows = [stage.queued() for _ in range(4)]
    waits: dict[str, Any] = {"signal": "go", "ladder": "[[1, 3]]"}
    ids = [put_fault(app, row, number, **waits) for number, row in enumerate(rows)]
    deciding = intake(app)
    with ThreadPoolExecutor(1) as pool, locked(app, rows[2].id):
        decided = pool.submit(deciding.decide, ids).result(20)
        assert decided == {(ids[number], rows[number].id) for number in (0, 1, 3)}
    assert deciding.decide(ids) == {(ids[2], rows[2].id)}


def test_whoever_decides_locks_a_run_before_its_faults(app: aft.Aft) -> None:
    """As its owner does, and people: otherwise each would wait for what the other has locked."""
    stage = Stage(app.store, app.namespace)
    row = stage.queued()
    waits: dict[str, Any] = {"signal": "go", "ladder": "[[1, 3]]"}
    fault = put_fault(app, row, 1, **waits)
    with ThreadPoolExecutor(1) as pool:
        with locked(app, row.id) as connection:
            decides = pool.submit(intake(app).decide, [fault])
            eventually(lambda: blocked(app) == 1)
            of_fault = select(tables.faults.c.id).where(tables.faults.c.id == fault)
            connection.execute(of_fault.with_for_update(nowait=True))
        assert decides.result(60) == {(fault, row.id)}


def test_nor_from_being_claimed_and_is_executed_when_it_is_free(production: Setup) -> None:
    app = production.app(grace="10m")  # the timer helps nobody here
    runs = [app.submit(order) for _ in range(5)]
    with locked(app, runs[2].id), app.dispatcher(concurrency=8):
        for number in (0, 1, 3, 4):
            assert runs[number].result(60) == "done"
    Stage(app.store, app.namespace).change(runs[2].id, sweep_at=later(-1))
    with app.dispatcher():
        assert runs[2].result(60) == "done"


def test_a_fault_whose_message_was_lost_is_decided_though_letters_keep_coming(production: Setup) -> None:
    """Each of them says that the run was changed just now."""
    app = production.app(grace="300ms")
    app.delays().declare(app.waits())
    stage = Stage(app.store, app.namespace)
    row = stage.queued()
    long_ago = datetime.now(UTC) - timedelta(seconds=CLOCKS + 5)
    made = a_fault(row.id, row.epoch, raised_at=long_ago)
    with app.store.write() as connection:
        faults.add(connection, app.namespace, made)
    stage.change(row.id, updated_at=later(0))
    assert sweeper(app).decide_unannounced() == 1


def test_a_round_of_the_sweeper_that_finds_nothing_is_one_round_trip(production: Setup) -> None:
    app = production.app()
    sweeping = sweeper(app)
    sweeping.step()
    with checkouts(app) as lent:
        sweeping.step()
    assert len(lent) == 1


def sweeper(app: aft.Aft) -> Sweeper:
    takeover = Takeover(app.namespace, app.store, app.clock, app.telemetry, lambda faults: None)
    return Sweeper(app.make_dispatcher_deps(), intake(app), takeover, lease=timedelta(seconds=30))


@contextmanager
def checkouts(app: aft.Aft) -> Iterator[list[object]]:
    """Collect the connections that are lent meanwhile."""
    lent: list[object] = []

    def note(connection: object, *_: object) -> None:
        lent.append(connection)

    pools = {app.store.engine, app.store._drivers}
    for pool in pools:
        event.listen(pool, "checkout", note)
    yield lent
    for pool in pools:
        event.remove(pool, "checkout", note)
