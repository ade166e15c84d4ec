"""Each column of a fault that somebody acts on: what cannot be read in it parks the run, which goes on by order."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Update, func, literal_column, select, update

import aft
from aft.clock import SystemClock
from aft.fault import FaultState
from aft.runs.ownership.rescue import make_abort
from aft.runs.records import faults as fault_rows
from aft.store.db_time import later, now
from aft.store.tables import faults, runs
from tests.acceptance.test_unreadable_records import book, booking, is_at_rest, ordering, rests_with, unbook
from tests.setups import Setup, eventually
from tests.world import ledger, trouble

__all__ = ["book", "unbook"]

DEEP = "[" * 100_000
#: What cannot be read on every database, by column.
ANYWHERE: dict[str, list[Any]] = {
    "step_snapshot": ["{", "5", '{"changed": 5}', DEEP],
    "ruling": ["{", "[]", '{"do": "x"}', '{"do": "again", "args": 5}'],
    "ladder": ["{", "[[1000, 0]]", DEEP],
    "lineage": ["{", "5", "[5]", '"x"'],
    "kind": ["x"],
    "own_answer": ["x"],
    "declared_answer": ["x"],
    "attempt": [-1, 2**31 - 1],
    "after_seconds": [1e300],
    "wait_seconds": [1e300],
}
#: What else SQLite keeps, whatever the type of the column.
TEXTS = ("step_snapshot", "ruling", "ladder", "lineage", "kind", "own_answer", "type", "message", "path", "signal")
NUMBERS = ("attempt", "after_seconds", "level", "http_status", "raised_at", "due_at", "settled_at")
ON_SQLITE: dict[str, list[Any]] = {
    **{column: [literal_column("x'ff00'")] for column in TEXTS},
    **{column: [literal_column("'soon'")] for column in NUMBERS},
}


def spoilt_columns(setup: Setup) -> list[tuple[str, Any]]:
    """What to write into the faults of as many runs."""
    both = [ANYWHERE, ON_SQLITE] if setup.name == "sqlite" else [ANYWHERE]
    return [(column, value) for each in both for column, values in each.items() for value in values]


def of_run(run: aft.Run[Any]) -> Update:
    return update(faults).where(faults.c.run_id == run.id)


def wait_in_ladders(app: aft.Aft, made: list[aft.Run[str]]) -> None:
    """Wait until each run has a fault that waits."""
    waits = faults.c.run_id.in_([run.id for run in made]), faults.c.due_at.is_not(None)

    def are_decided() -> bool:
        with app.store.read() as connection:
            return connection.execute(select(func.count()).where(*waits)).scalar_one() == len(made)

    eventually(are_decided)


def spoil(app: aft.Aft, run: aft.Run[str], state: FaultState, column: str, value: Any) -> None:
    """Spoil the fault of a run in this state, and let the run be woken for it."""
    with app.store.write() as connection:
        connection.execute(of_run(run).values({"state": state.value, "due_at": now(), column: value}))
        # The sweeper finds the open fault; a worker's timer wakes the run for another one.
        due = {"wake_id": None, "sweep_at": None} if state is FaultState.OPEN else {"sweep_at": now()}
        connection.execute(update(runs).where(runs.c.id == run.id).values(**due))


def is_undone(run: aft.Run[str]) -> bool:
    return run.status == "compensated"


@pytest.mark.parametrize("order_given", ["retry", "cancel"])
@pytest.mark.parametrize("state", [FaultState.OPEN, FaultState.WAITING, FaultState.FINAL])
def test_what_cannot_be_read_in_a_fault_parks_its_run_which_goes_on_by_order(
    setup: Setup, order: str, state: FaultState, order_given: str
) -> None:
    app, spoilt = setup.app(), spoilt_columns(setup)
    made: list[aft.Run[str]] = []
    with app.dispatcher():
        for number in range(len(spoilt)):
            trouble[f"{order}_{number}", "book"].append(aft.Recoverable("busy"))
            made.append(app.submit(booking, f"{order}_{number}"))
        wait_in_ladders(app, made)
        for run, (column, value) in zip(made, spoilt, strict=True):
            spoil(app, run, state, column, value)
        for run, (column, value) in zip(made, spoilt, strict=True):
            eventually(partial(is_at_rest, run), within=30)
            assert f"cannot be read: {column}" in (run.row.reason or ""), (column, value, run.row.reason)
            getattr(run, order_given)()
        for number, run in enumerate(made):
            if order_given == "retry":
                assert run.result(60) == f"{order}_{number}"
            else:
                eventually(partial(is_undone, run), within=30)
                assert ledger[f"{order}_{number}-1"] == ["book", "unbook"]
    assert app.faults(state="parked") == []


@pytest.mark.parametrize("column", ["step_snapshot", "ruling", "ladder"])
def test_what_only_its_decision_needed_does_not_matter_once_a_failure_is_caught(
    setup: Setup, order: str, column: str
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(ordering, order)
        eventually(lambda: run.status == "waiting" and run.row.worker_id is None)
        with app.store.write() as connection:
            connection.execute(of_run(run).values({column: "{"}))
        run.signal("word", "now")
        assert run.result(30) == "now"


@pytest.mark.parametrize("order_given", ["retry", "cancel"])
@pytest.mark.parametrize("column", ["args", "lineage"])
def test_a_lost_workers_fault_that_cannot_be_read_parks_its_run_which_goes_on_by_order(
    setup: Setup, order: str, column: str, order_given: str
) -> None:
    app = setup.app()
    trouble[order, "book"].append(aft.Recoverable("busy"))
    with app.dispatcher():
        run = app.submit(booking, order)
        wait_in_ladders(app, [run])
        with app.store.write() as connection:
            abort = make_abort(run.id, run.row.flow, run.row.epoch, 1, "lost", SystemClock().now())
            fault_rows.add(connection, app.namespace, abort)
            lost = {"state": FaultState.WAITING.value, "due_at": now(), column: '{"x": 5}'}
            connection.execute(of_run(run).values(due_at=now()))
            connection.execute(update(faults).where(faults.c.id == abort.id).values(**lost))
            connection.execute(update(runs).where(runs.c.id == run.id).values(sweep_at=now()))
        eventually(lambda: is_at_rest(run), within=30)
        assert f"cannot be read: {column}" in (run.row.reason or "")
        getattr(run, order_given)()
        if order_given == "retry":
            assert run.result(60) == order
        else:
            eventually(lambda: run.status in ("compensated", "failed"), within=30)
            assert ledger[f"{order}-1"] == ["book", "unbook"]


@pytest.mark.parametrize(("column", "value"), [("epoch", 99), ("state", "x")])
def test_a_run_whose_open_fault_nobody_would_find_is_woken(
    setup: Setup, order: str, column: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aft.dispatcher.sweep.sweeper.STRANDED_EVERY", 1)
    app = setup.app()
    trouble[order, "book"].append(aft.Recoverable("busy"))
    with app.dispatcher():
        run = app.submit(booking, order)
        wait_in_ladders(app, [run])
        spoil(app, run, FaultState.OPEN, column, value)
        with app.store.write() as connection:
            connection.execute(update(runs).where(runs.c.id == run.id).values(updated_at=later(-600)))
        if column == "state":
            eventually(rests_with(run, run.row.epoch), within=30)
            assert "cannot be read: state" in (run.row.reason or "")
            run.retry()
            assert run.result(60) == order
        else:
            eventually(lambda: any(fault.due_at and fault.epoch != value for fault in app.faults()), within=30)
