"""A run whose records somebody has spoilt is parked, once for each order, and goes on when they are mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Table, select, update

import aft
from aft.fault import FaultState
from aft.store.db_time import now
from aft.store.tables import faults, inbox, journal, runs
from tests.setups import Setup, eventually
from tests.world import ledger, trouble


@aft.activity(name="unreadable_records_pay", levels=[])
def pay(order: str) -> str:
    if order.endswith("refused"):
        raise aft.Unrecoverable("no")
    return order


@aft.flow(name="unreadable_records_order")
def ordering(order: str) -> str:
    pay(order)
    try:
        return pay(f"{order} refused")
    except aft.Unrecoverable:
        return str(aft.wait_for("word", str))


#: What somebody writes into the records of a run.
SPOILT = [
    (journal.c.kind, "x"),
    (journal.c.outcome, "x"),
    (faults.c.lineage, "{"),
    (inbox.c.payload, "{"),
    (runs.c.tags, "{"),
]


def write(app: aft.Aft, run: aft.Run[Any], column: Any, value: Any) -> Any:
    """Write a value to a column of one of the run's records, and return what was there."""
    table: Table = column.table
    of_run = table.c.id == run.id if table is runs else table.c.run_id == run.id
    with app.store.write() as connection:
        key = list(table.primary_key.columns)
        first = connection.execute(select(*key, column.label("before")).where(of_run).order_by(*key)).first()
        assert first is not None
        only = [part == found for part, found in zip(key, first, strict=False)]
        assert connection.execute(update(table).where(*only).values({column: value})).rowcount == 1
    return first.before


def is_at_rest(run: aft.Run[Any]) -> bool:
    """Whether the run is parked, and nothing wakes it."""
    row = run.row
    return (row.status, row.worker_id, row.wake_id) == ("parked", None, None)


def rests_with(run: aft.Run[Any], owners: int) -> Callable[[], bool]:
    """Return whether the run is at rest after it had so many owners."""
    return lambda: is_at_rest(run) and run.row.epoch >= owners


@pytest.mark.parametrize("order", ["retry", "cancel"])
@pytest.mark.parametrize(("column", "value"), SPOILT, ids=[str(column) for column, _ in SPOILT])
def test_an_order_to_a_run_with_spoilt_records_is_one_attempt_and_is_kept(
    setup: Setup, column: Any, value: str, order: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(ordering, order)
        eventually(lambda: run.status == "waiting" and run.row.worker_id is None)
        run.signal("other", "kept")
        before = write(app, run, column, value)
        run.signal("word", "now")
        eventually(lambda: is_at_rest(run))
        owners = run.row.epoch
        for _ in range(3):
            owners += 1
            getattr(run, order)()
            eventually(rests_with(run, owners), within=20)
            assert run.row.epoch == owners
        with app.store.read() as connection:
            of_run = select(faults.c.state).where(faults.c.run_id == run.id, faults.c.state != FaultState.TRIED.value)
            live = [state for state in connection.execute(of_run).scalars() if state != FaultState.FINAL.value]
        assert live == [FaultState.PARKED.value]
        write(app, run, column, before)
        run.retry()
        if order == "cancel":
            eventually(lambda: run.status == "compensated")
        else:
            assert run.result(60) == "now"


def unbook(order: str) -> None:
    ledger[order].append("unbook")


@aft.compensate_with(unbook)
@aft.activity(name="unreadable_records_book", levels=["1h"])
def book(order: str) -> str:
    ledger[order].append("book")
    if trouble[order, "book"]:
        raise trouble[order, "book"].pop()
    return order


@aft.flow(name="unreadable_records_booking")
def booking(order: str) -> str:
    book(f"{order}-1")
    return book(order)


@pytest.mark.parametrize("column", ["lineage", "own_answer", "kind", "ladder"])
@pytest.mark.parametrize("order_given", ["retry", "cancel"])
@pytest.mark.parametrize("state", [FaultState.OPEN, FaultState.WAITING])
def test_a_run_whose_fault_cannot_be_read_is_parked_and_goes_on_by_order(
    setup: Setup, order: str, state: FaultState, order_given: str, column: str
) -> None:
    app = setup.app()
    trouble[order, "book"].append(aft.Recoverable("busy"))
    with app.dispatcher():
        run = app.submit(booking, order)
        eventually(lambda: any(fault.run_id == run.id and fault.due_at for fault in app.faults()))
        with app.store.write() as connection:
            spoilt = {"state": state.value, column: "{", "due_at": now()}
            connection.execute(update(faults).where(faults.c.run_id == run.id).values(**spoilt))
            # The timer is the one that wakes the run, or the sweeper finds the open fault.
            due = {"sweep_at": now()} if state is FaultState.WAITING else {"wake_id": None, "sweep_at": None}
            connection.execute(update(runs).where(runs.c.id == run.id).values(**due))
        eventually(lambda: is_at_rest(run))
        assert f"cannot be read: {column}" in (run.row.reason or "")
        (fault,) = app.faults(state="parked")
        assert (fault.run_id, fault.state, fault.path) == (run.id, FaultState.PARKED, "2")
        assert "cannot be read" in fault.message
        getattr(run, order_given)()
        if order_given == "retry":
            assert run.result(60) == order
            assert ledger[order] == ["book", "book"]
        else:
            eventually(lambda: run.status == "compensated")
            assert ledger[f"{order}-1"] == ["book", "unbook"]
    assert app.faults(state="parked") == []
