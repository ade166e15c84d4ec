"""Claims about plain decisions: many in one statement are what they are one by one, and nothing stale is written."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from aft import names
from aft.dispatcher.decide import Decision
from aft.dispatcher.decisions_batch import DECIDES, to_batch, written
from aft.dispatcher.decisions_single import DecisionWriter, still_open
from aft.dispatcher.judge import Judgement
from aft.dispatcher.route import GiveUp, ParkRun, RetryLater, Route
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import FaultId, RunId
from aft.runs.records import faults
from aft.runs.states import Status
from aft.store import tables
from tests.storing import GRACE, Stage, a_fault, at_once

AT = datetime(2026, 1, 1, tzinfo=UTC)
#: Seconds within which two moments are the same: each statement has its own, and a busy machine takes its time.
SAME = 45
#: What a run may be like when its faults are decided about.
STATES = (Status.RECOVERING, Status.RECOVERING, Status.RUNNING, Status.COMPENSATING, Status.SUSPENDED, Status.PARKED)


def choices(rng: random.Random) -> Route:
    """Something plain that may be chosen."""
    wait = timedelta(seconds=100 * rng.randint(0, 5))
    plain: list[Route] = [
        RetryLater(wait, "later", rng.randint(1, 3), rng.randint(1, 3)),
        RetryLater(wait, "later, by the timer", declared=False),
        RetryLater(timedelta(0), "alone", alone=True),
        GiveUp("it does not pass"),
        ParkRun("somebody must look"),
    ]
    return rng.choice(plain)


def queue_of(stage: Stage, chosen: Route) -> str | None:
    if isinstance(chosen, GiveUp):
        return names.compensate(stage.namespace)
    return names.resume(stage.namespace) if isinstance(chosen, RetryLater) and chosen.declared else None


def make(stage: Stage, seed: int, world: str) -> list[Decision]:
    """Some runs, each with some open faults, and what was chosen for them; alike in every world."""
    rng = random.Random(seed)
    made: list[Decision] = []
    for number in range(rng.randint(4, 12)):
        run = stage.queued(id=RunId(f"{world}{stage.namespace}-{number}"))
        values: dict[str, Any] = {"status": rng.choice(STATES).value, "priority": rng.choice([0, 0, 5])}
        values["wake_id"] = f"{world}order"
        if rng.random() < 0.5:
            values |= {"wake_id": None, "due_at": None, "sweep_at": None}
        if rng.random() < 0.3:
            values["deadline_at"] = datetime.now(UTC) + timedelta(seconds=150)
        if rng.random() < 0.1:
            values["worker_id"] = "somebody"
        stage.change(run.id, **values)
        for place in range(rng.choice([1, 2, 4])):
            kind = rng.choice([FaultKind.ACTIVITY, FaultKind.COMPENSATOR, FaultKind.CONSTRAINT])
            state = rng.choice([FaultState.OPEN] * 5 + [FaultState.TRIED])
            epoch = run.epoch + (rng.random() < 0.1)
            fault = a_fault(run.id, epoch, id=FaultId(f"{run.id}-{place}"), kind=kind, state=state)
            with stage.store.write() as connection:
                faults.add(connection, stage.namespace, fault)
            chosen = choices(rng)
            made.append(Decision(fault, Judgement(chosen), queue_of(stage, chosen), "flow@1"))
    return made


def decide_together(stage: Stage, chosen: list[Decision]) -> list[str]:
    plain = [to_batch(decision, stage.namespace, GRACE.total_seconds(), AT) for decision in chosen]
    answers = stage.store.write_now(DECIDES, plain)
    rows = written(plain, answers)
    with stage.store.read() as connection:
        saved = set(connection.execute(select(tables.outbox.c.id, tables.outbox.c.queue, tables.outbox.c.body)))
    assert {(row.id, row.queue, row.body) for row in rows} <= {tuple(row) for row in saved}
    return [decision.fault.id for decision, answer in zip(chosen, answers, strict=True) if answer is not None]


def decide_one_by_one(stage: Stage, chosen: list[Decision]) -> list[str]:
    carrier = DecisionWriter(stage.namespace, GRACE.total_seconds())
    with stage.store.write() as connection:
        still = set(connection.execute(still_open([decision.fault.id for decision in chosen])).scalars())
        taken = [decision for decision in chosen if decision.fault.id in still]
        seen = carrier.read_runs(connection, taken)
        for decision in taken:
            carrier.carry_out(connection, decision, AT, [], seen)
    return [decision.fault.id for decision in taken]


def look(stage: Stage, world: str) -> list[dict[str, Any]]:
    """Every run and fault of a world, with names that are not the world's own."""
    found: list[dict[str, Any]] = []
    for table in (tables.runs, tables.faults):
        with stage.store.read() as connection:
            rows = connection.execute(select(table).where(table.c.id.startswith(world)).order_by(table.c.id)).all()
        found += [{name: nameless(value, world) for name, value in row._mapping.items()} for row in rows]
    return found


def nameless(value: Any, world: str) -> Any:
    return value.removeprefix(world) if isinstance(value, str) else value


def differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """What is not the same in two worlds; moments may be some seconds apart."""
    assert len(one) == len(other)
    pairs = [(name, row[name], more[name]) for row, more in zip(one, other, strict=True) for name in row]
    return [(name, first, second) for name, first, second in pairs if not alike(first, second)]


def alike(first: Any, second: Any) -> bool:
    if isinstance(first, datetime) and isinstance(second, datetime):
        return abs((first - second).total_seconds()) < SAME
    return bool(first == second)


@pytest.mark.parametrize("seed", range(10))
def test_decisions_together_are_what_they_are_one_by_one(stage: Stage, seed: int) -> None:
    chosen = {world: make(stage, seed, world) for world in ("x-", "y-")}
    before = stage.posted()
    together = decide_together(stage, chosen["x-"])
    posted = stage.posted()[len(before) :]
    assert [one.removeprefix("x-") for one in together] == [
        one.removeprefix("y-") for one in decide_one_by_one(stage, chosen["y-"])
    ]
    assert differences(look(stage, "x-"), look(stage, "y-")) == []
    assert sorted(posted) == sorted(stage.posted()[len(before) + len(posted) :])


def decided(stage: Stage, *routes: Route, **run: Any) -> tuple[RunId, list[Decision]]:
    row = stage.queued()
    stage.change(row.id, wake_id=None, due_at=None, sweep_at=None, **run)
    made: list[Fault] = [a_fault(row.id, row.epoch) for _ in routes]
    with stage.store.write() as connection:
        for fault in made:
            faults.add(connection, stage.namespace, fault)
    return row.id, [
        Decision(fault, Judgement(chosen), queue_of(stage, chosen), "flow@1")
        for fault, chosen in zip(made, routes, strict=True)
    ]


def test_a_fault_that_several_decide_at_once_is_decided_once(stage: Stage) -> None:
    _, chosen = decided(stage, *[RetryLater(timedelta(seconds=1), "later", 1, 1)] * 20)
    before = len(stage.posted())
    found = at_once([lambda: decide_together(stage, chosen)] * 4)
    assert sorted(one for each in found for one in each) == sorted(decision.fault.id for decision in chosen)
    assert len(stage.posted()) == before + len(chosen)


def test_a_run_goes_on_with_the_earliest_of_its_faults_under_the_name_of_the_first(stage: Stage) -> None:
    waits = [RetryLater(timedelta(seconds=seconds), "later", 1, 1) for seconds in (300, 100, 200)]
    run, chosen = decided(stage, *waits)
    decide_together(stage, chosen)
    row = stage.row(run)
    assert row.wake_id == min(decision.fault.id for decision in chosen)
    assert row.due_at is not None
    assert 90 < (row.due_at - datetime.now(UTC)).total_seconds() <= 101


def test_one_that_parks_its_run_leaves_nothing_that_wakes_it(stage: Stage) -> None:
    run, chosen = decided(stage, GiveUp("over"), ParkRun("look"), RetryLater(timedelta(0), "again"))
    decide_together(stage, chosen)
    row = stage.row(run)
    assert (row.status, row.wake_id, row.due_at) == (Status.PARKED, None, None)
    assert "look" in (row.reason or "")


def test_nothing_is_decided_about_a_run_that_has_an_owner_again(stage: Stage) -> None:
    run, chosen = decided(stage, GiveUp("over"))
    stage.change(run, worker_id="somebody")
    assert decide_together(stage, chosen) == []
    assert [fault.state for fault in stage.faults(run)] == [FaultState.OPEN]
