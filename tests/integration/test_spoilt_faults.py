"""A fault whose row somebody has spoilt is set aside, and reported; the others are decided about at once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import literal_column, select, update

import aft
from aft import do
from aft.fault import FaultKind, FaultState
from aft.ids import FaultId
from aft.rules.exlets import plans
from aft.rules.exlets.plans import PlanState
from aft.runs.records import inbox
from aft.runs.records.faults import read_live
from aft.runs.records.inbox import InboxVerb
from aft.store import tables
from aft.telemetry import Event, RuleWarned
from tests.deciding import carry_out, intake, put_fault, put_plan
from tests.setups import Setup
from tests.storing import Stage


@pytest.fixture
def app(setup: Setup) -> aft.Aft:
    made = setup.app()
    made.check()
    made.delays().declare(made.waits())
    return made


def decide_with_spoilt(app: aft.Aft, **spoilt: Any) -> tuple[FaultState, list[Event]]:
    """Decide about five faults, one of which is spoilt; return its state, and the events about it."""
    stage, events = Stage(app.store, app.namespace), list[Event]()
    app.telemetry.subscribe(events.append)
    rows = [stage.queued() for _ in range(5)]
    ids = [put_fault(app, row, number) for number, row in enumerate(rows)]
    with app.store.write() as connection:
        connection.execute(update(tables.faults).where(tables.faults.c.id == ids[2]).values(**spoilt))
    decided = intake(app).decide(ids)
    assert {(ids[number], rows[number].id) for number in (0, 1, 3, 4)} <= decided
    with app.store.read() as connection:
        state = connection.execute(select(tables.faults.c.state).where(tables.faults.c.id == ids[2])).scalar_one()
    return FaultState(state), [event for event in events if is_about(event, ids[2])]


def is_about(event: Event, fault: FaultId) -> bool:
    return getattr(event, "fault", None) == fault or fault in getattr(event, "why", "")


@pytest.mark.parametrize("column", ["after_seconds", "wait_seconds"])
@pytest.mark.parametrize("seconds", [1e300, float("inf"), float("nan")])
def test_a_time_that_is_too_long_parks_its_run(app: aft.Aft, column: str, seconds: float) -> None:
    if app.store.dialect == "sqlite" and seconds != seconds:
        seconds = -1e300  # it has no such number
    state, _ = decide_with_spoilt(app, **{column: seconds})
    assert state is FaultState.PARKED


def test_a_rule_type_that_is_none_is_decided_about_without_rules(app: aft.Aft) -> None:
    state, events = decide_with_spoilt(app, rule_type="of tomorrow")
    assert state is FaultState.FINAL
    (told,) = [event for event in events if isinstance(event, RuleWarned)]
    assert "of tomorrow" in told.why


@pytest.mark.parametrize("setup", ["sqlite"], indirect=True)
def test_a_text_that_is_none_parks_its_run(app: aft.Aft) -> None:
    state, _ = decide_with_spoilt(app, type=literal_column("x'ff00'"), kind=FaultKind.COMPENSATOR.value)
    assert state is FaultState.PARKED


def test_a_fault_that_cannot_be_read_ends_its_own_exlet_only_and_is_left_to_a_person(app: aft.Aft) -> None:
    stage = Stage(app.store, app.namespace)
    rows = [stage.queued() for _ in range(2)]
    spoilt, other = (put_fault(app, row, number) for number, row in enumerate(rows))
    begun = [put_plan(app, row, fault, do.park("look")) for row, fault in zip(rows, (spoilt, other), strict=True)]
    with app.store.write() as connection:
        connection.execute(update(tables.faults).where(tables.faults.c.id == spoilt).values(after_seconds=1e300))
    carry_out(app, *begun)
    with app.store.read() as connection:
        first, second = (plans.of_run(connection, row.id)[0] for row in rows)
        (one,) = connection.execute(select(tables.faults).where(tables.faults.c.id == spoilt)).mappings()
        told = inbox.unread(connection, rows[0].id)
    assert (first.state, second.state) == (PlanState.DROPPED, PlanState.DONE)
    # Its owner is told, and parks the run: the row says so, and cannot be read by then either.
    assert [item.verb for item in told] == [InboxVerb.RULING]
    assert read_live({**one}).state is FaultState.PARKED
