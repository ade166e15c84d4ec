"""Claims about decisions: many in one statement are what they are one by one, and nothing stale is written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from aft import names
from aft.dispatcher import decisions_single
from aft.dispatcher.decision import Decision
from aft.dispatcher.decisions_batch import DECIDES, written
from aft.dispatcher.route import ApplyRuling, CarryOutExlet, GiveUp, ParkRun, RetryLater, Route
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import FaultId, OrderId, RunId
from aft.rules.exlets.exlet import Exlet
from aft.runs.records import faults, inbox
from aft.runs.records.inbox import InboxVerb
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.states import Status, sources
from aft.store import tables
from tests.storing import GRACE, Stage, a_fault, at_once

AT = datetime(2026, 1, 1, tzinfo=UTC)
#: Seconds within which two moments are the same: each statement has its own, and a busy machine takes its time.
SAME = 45
#: What a run may be like when its faults are decided about.
STATES = (Status.RECOVERING, Status.RECOVERING, Status.RUNNING, Status.COMPENSATING, Status.SUSPENDED, Status.PARKED)
PARKABLE = [status.value for status in sources(Status.PARKED)]


def choices(rng: random.Random, *, more: bool) -> Route:
    """Something that may be chosen; with ``more`` also what is not written in a batch."""
    wait = timedelta(seconds=100 * rng.randint(0, 5))
    found: list[Route] = [
        RetryLater(wait, "later", rng.randint(1, 3), rng.randint(1, 3)),
        RetryLater(wait, "later, by the timer", declared=False),
        RetryLater(timedelta(0), "alone", alone=True),
        GiveUp("it does not pass"),
        ParkRun("somebody must look"),
        ApplyRuling(Ruling(RulingAction.GO), FaultState.WAITING, "it goes on"),
        ApplyRuling(Ruling(RulingAction.COMPLETE, result=(5,)), FaultState.FINAL, "it has a result"),
    ]
    if more:
        found += [
            RetryLater(rng.choice([None, wait]), "at a signal", 1, 2, declared=False, signal=rng.choice(["go", "no"])),
            ApplyRuling(Ruling(RulingAction.FAIL, why="not like this"), FaultState.FINAL, "it fails"),
            CarryOutExlet(Exlet("look_out", []), {}, "an exlet"),
        ]
    return rng.choice(found)


def queue_of(stage: Stage, chosen: Route) -> str | None:
    if isinstance(chosen, GiveUp):
        return names.compensate(stage.namespace)
    goes_on = isinstance(chosen, ApplyRuling) or (isinstance(chosen, RetryLater) and chosen.declared)
    return names.resume(stage.namespace) if goes_on else None


def make(stage: Stage, seed: int, *, more: bool = False) -> list[Decision]:
    """Some runs, each with some open faults and unread items, and what was chosen for them."""
    rng = random.Random(seed)
    made: list[Decision] = []
    for number in range(rng.randint(4, 12)):
        run = stage.queued(id=RunId(f"{stage.namespace}-{number}"))
        values: dict[str, Any] = {"status": rng.choice(STATES).value, "priority": rng.choice([0, 0, 5])}
        values["wake_id"] = "order"
        if rng.random() < 0.5:
            values |= {"wake_id": None, "due_at": None, "sweep_at": None}
        if rng.random() < 0.3:
            values["deadline_at"] = datetime.now(UTC) + timedelta(seconds=150)
        if rng.random() < 0.1:
            values["worker_id"] = "somebody"
        sent = [verb for verb in (InboxVerb.CANCEL, InboxVerb.RETRY, InboxVerb.SIGNAL) if rng.random() < 0.3]
        with stage.store.write() as connection:
            for seq, verb in enumerate(sent, 1):
                order = OrderId(f"{run.id}-{seq}")
                inbox.append(connection, run.id, seq, order, verb, {"name": "go"}, "ann", None)
        stage.change(run.id, inbox_seq=len(sent), **values)
        for place in range(rng.choice([1, 2, 4])):
            kind = rng.choice([FaultKind.ACTIVITY, FaultKind.COMPENSATOR, FaultKind.CONSTRAINT])
            state = rng.choice([FaultState.OPEN] * 5 + [FaultState.TRIED])
            epoch = run.epoch + (rng.random() < 0.1)
            given = {"ruling": rng.choice([None, Ruling().encode()])}
            fault = a_fault(run.id, epoch, id=FaultId(f"{run.id}-{place}"), kind=kind, state=state, **given)
            with stage.store.write() as connection:
                faults.add(connection, stage.namespace, fault)
                # What an earlier decision about it has left.
                before = {"level": 7, "try_in_level": 8, "wait_seconds": 9.0}
                connection.execute(update(tables.faults).where(tables.faults.c.id == fault.id).values(**before))
            chosen = choices(rng, more=more)
            made.append(Decision(fault, chosen, None, queue_of(stage, chosen), "flow@1"))
    return made


def rows_of(stage: Stage, chosen: list[Decision]) -> list[dict[str, Any]]:
    return [decision.fields(stage.namespace, GRACE.total_seconds(), AT) for decision in chosen]


def decide_together(stage: Stage, chosen: list[Decision]) -> list[str]:
    rows = rows_of(stage, chosen)
    answers = stage.store.write_now(DECIDES, rows)
    messages = written(rows, answers)
    with stage.store.read() as connection:
        saved = set(connection.execute(select(tables.outbox.c.id, tables.outbox.c.queue, tables.outbox.c.body)))
    assert {(row.id, row.queue, row.body) for row in messages} <= {tuple(row) for row in saved}
    return [decision.fault.id for decision, answer in zip(chosen, answers, strict=True) if answer is not None]


def decide_locked(stage: Stage, chosen: list[Decision]) -> list[str]:
    with stage.store.write() as connection:
        taken = decisions_single.lock(connection, chosen)
        answers, begun = decisions_single.write(connection, stage.namespace, taken, rows_of(stage, taken))
        planned = set(connection.execute(select(tables.plans.c.fault_id).where(tables.plans.c.id.in_(begun))).scalars())
    assert None not in answers
    assert planned == {one.fault.id for one in taken if isinstance(one.route, CarryOutExlet)}
    return [decision.fault.id for decision in taken]


def look(stage: Stage) -> dict[str, dict[str, Any]]:
    """Every run and fault, by its id; waits by their names only."""
    found: dict[str, dict[str, Any]] = {}
    for table in (tables.runs, tables.faults):
        with stage.store.read() as connection:
            rows = connection.execute(select(table).where(table.c.namespace == stage.namespace)).mappings()
            found |= {row["id"]: dict(row) for row in rows}
    for row in found.values():
        if "waits" in row:
            row["waits"] = [wait["name"] for wait in json.loads(row["waits"] or "[]")]
    return found


def expect(stage: Stage, before: dict[str, dict[str, Any]], chosen: list[Decision]) -> list[str]:
    """Do to the rows what the decisions mean, one after the other; return the faults that were open."""
    was = {name: dict(row) for name, row in before.items()}
    taken: list[str] = []
    for decision in sorted(chosen, key=lambda one: one.fault.id):
        fault, run = before[decision.fault.id], before[decision.fault.run_id]
        if fault["state"] != "open" or fault["epoch"] != run["epoch"] or run["worker_id"] is not None:
            continue
        taken.append(decision.fault.id)
        seen = {"run_status": was[run["id"]]["status"], "run_tags": was[run["id"]]["tags"]}
        fault |= {"queue": decision.queue, "why": decision.route.why, "decided_at": datetime.now(UTC), **seen}
        expect_of(stage, decision, fault, run)
    return sorted(taken)


def expect_of(stage: Stage, decision: Decision, fault: dict[str, Any], run: dict[str, Any]) -> None:
    here, slack = datetime.now(UTC), GRACE if decision.queue is not None else timedelta(0)
    with stage.store.read() as connection:
        order = inbox.find_new_order(connection, run["id"])
        sent = [item.payload["name"] for item in inbox.unread(connection, run["id"]) if item.verb is InboxVerb.SIGNAL]
    match decision.route:
        case RetryLater(wait=wait, signal=signal) as chosen:
            fault |= {"state": "waiting", "level": chosen.level, "try_in_level": chosen.try_in_level}
            fault["wait_seconds"] = None if wait is None else wait.total_seconds()
            fault["due_at"] = None if wait is None else here + wait
            fault["ruling"] = Ruling().encode() if fault["kind"] == "constraint" else None
            run["waits"] = [*run["waits"], *([] if signal is None else [signal])]
            expect_wake(run, fault["id"], timedelta(0) if signal in sent else wait, slack)
        case GiveUp():
            fault["state"] = "final"
            expect_wake(run, fault["id"], timedelta(0), slack)
        case ApplyRuling(ruling=ruling, state=state):
            fault |= {"state": state.value, "ruling": ruling.encode(), "due_at": here}
            if ruling.why and fault["kind"] == "constraint":
                fault |= {"message": ruling.why, "args": json.dumps([ruling.why])}
            expect_wake(run, fault["id"], timedelta(0), slack)
        case CarryOutExlet():
            fault["state"] = "handled"
            expect_wake(run, fault["id"], None, slack)
        case ParkRun(why=why):
            fault["state"] = "parked"
            if run["status"] in PARKABLE:
                due = None if order is None else here
                run |= {"status": "parked", "reason": decision.fault.describe_parked(why), "wake_id": order}
                run |= {"due_at": due, "sweep_at": due, "updated_at": here}


def expect_wake(run: dict[str, Any], fault: str, wait: timedelta | None, slack: timedelta) -> None:
    if run["status"] in ("parked", "suspended"):
        return
    here, slack = datetime.now(UTC), timedelta(0) if run["priority"] > 0 else slack
    times = {"due_at": None if wait is None else here + wait, "sweep_at": None if wait is None else here + wait + slack}
    for column, time in times.items():
        run[column] = min(filter(None, (run[column], run["deadline_at"], time)), default=None)
    run |= {"wake_id": run["wake_id"] or fault, "updated_at": here}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, str, Any, Any]]:
    """What is not the same in rows; moments may be some seconds apart."""
    pairs = [(key, name, row[name], other[key][name]) for key, row in one.items() for name in row]
    return [pair for pair in pairs if not alike(*pair[2:])]


def alike(first: Any, second: Any) -> bool:
    if isinstance(first, datetime) and isinstance(second, datetime):
        return abs((first - second).total_seconds()) < SAME
    return bool(first == second)


@pytest.mark.parametrize(("more", "decide"), [(False, decide_together), (True, decide_locked)], ids=["batch", "locked"])
@pytest.mark.parametrize("seed", range(10))
def test_decisions_together_are_what_they_are_one_by_one(
    stage: Stage, seed: int, more: bool, decide: Callable[[Stage, list[Decision]], list[str]]
) -> None:
    chosen = make(stage, seed, more=more)
    assert more or not any(decision.needs_more for decision in chosen)
    posted, expected = stage.posted(), look(stage)
    open_faults = expect(stage, expected, chosen)
    assert sorted(decide(stage, chosen)) == open_faults
    assert differences(expected, look(stage)) == []
    messages = [decision.message(AT) for decision in chosen if decision.fault.id in open_faults]
    addresses = [message[0] for message in messages if message is not None]
    assert sorted(stage.posted()) == sorted([*posted, *addresses])


def decided(stage: Stage, *routes: Route, **run: Any) -> tuple[RunId, list[Decision]]:
    row = stage.queued()
    stage.change(row.id, wake_id=None, due_at=None, sweep_at=None, **run)
    made: list[Fault] = [a_fault(row.id, row.epoch) for _ in routes]
    with stage.store.write() as connection:
        for fault in made:
            faults.add(connection, stage.namespace, fault)
    return row.id, [
        Decision(fault, chosen, None, queue_of(stage, chosen), "flow@1")
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
