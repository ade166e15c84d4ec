"""What an exlet makes of the step that it is for: written into the fault, with a letter to the run's owner.

The run's row is locked first, then the fault's. Somebody may have settled the fault meanwhile: a person who cancelled
the run, a deadline. Then there is nothing left to be decided, and the note says so.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from sqlalchemy import Connection, select, update

from aft.dispatcher.classify import classify
from aft.dispatcher.judging import plain_route, retry_route
from aft.dispatcher.route import GiveUp, ParkRun, RetryLater, Rule, Settled, route
from aft.errors import OrderRefused, RuleRefused
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import RunId
from aft.rules import kept, primitives
from aft.rules.conditions import Expression
from aft.rules.kinds import On
from aft.rules.plans import Plan
from aft.rules.primitives import NOTHING, Target
from aft.runs import faults as fault_rows
from aft.runs import parking, steering, waking
from aft.runs.inbox import Verb
from aft.runs.orders import Person
from aft.runs.rows import RunRow
from aft.runs.rulings import Do, Ruling
from aft.runs.states import Status
from aft.runs.waking import Post
from aft.store.moments import later, now
from aft.store.tables import faults, runs

#: How often a step is begun anew by rules; then a person looks.
MOST_RESTARTS = 10
GONE = "its fault was settled meanwhile"


def decide(
    connection: Connection,
    namespace: str,
    plan: Plan,
    primitive: primitives.Primitive,
    at: datetime,
    grace: timedelta,
) -> str | None:
    """Do a primitive that is about the step itself; returns what there is to say about it.

    Raises RuleRefused if the exlet cannot go on.
    """
    run, fault = _lock(connection, namespace, plan.run_id, plan.fault_id)
    if run is None or fault is None:
        return GONE
    ruling, why = Ruling.decode(fault.ruling), f"exlet {plan.exlet.name}: {primitive}"
    post = Post(Verb.RULING, {"fault": fault.id}, plan.actor, at, grace)
    match primitive:
        case primitives.Set():
            _set(connection, plan, run, fault, ruling, primitive)
        case primitives.Unwind(to=str() as savepoint):
            return _unwind_to(connection, run, plan, savepoint, fault, ruling, post, at, grace)
        case primitives.Complete(computed=str() as source):
            value, warning = _compute(source, plan)
            if warning is not None:
                told = f"the result cannot be computed: {warning}; change the rule, then retry"
                _follow(connection, run, fault, ruling, ParkRun(told), post)
                return warning
            _rule(connection, run, fault, replace(ruling, do=Do.COMPLETE, result=(value,)), FaultState.FINAL, why, post)
        case primitives.Restart() if kept.read(fault).restarts >= MOST_RESTARTS:
            told = f"it was begun anew {MOST_RESTARTS} times in a row; change the rule, then retry"
            _follow(connection, run, fault, ruling, ParkRun(told), post)
        case primitives.Restart():
            _rule(connection, run, fault, replace(ruling, do=Do.RESTART), FaultState.WAITING, why, post)
        case primitives.Remove(target=Target.ACTIVITY):
            _rule(connection, run, fault, replace(ruling, do=Do.REMOVE, why=why), FaultState.FINAL, why, post)
        case primitives.Retry():
            _follow(connection, run, fault, ruling, retry_route(fault, primitive, why), post)
        case _ if (chosen := plain_route(fault, primitive, why)) is not None:
            _follow(connection, run, fault, ruling, chosen, post)
    return None


def by_default(connection: Connection, namespace: str, plan: Plan, at: datetime, grace: timedelta) -> None:
    """Let a fault that no primitive has decided about go its way: with what was set, or as aft would have it.

    In the transaction that ends its plan: from then on nothing else would wake the run. Orders that it has not read
    change nothing about that. They may be for other steps, or be refused.
    """
    run, fault = _lock(connection, namespace, plan.run_id, plan.fault_id)
    if run is None or fault is None:
        return
    post = Post(Verb.RULING, {"fault": fault.id}, plan.actor, at, grace)
    if fault.path is None:
        # Its worker was lost, whatever the run was doing: also one that is being undone, or has ended, has to go on.
        _follow_death(connection, run, fault, route(fault, classify(fault)), post)
        return
    if run.cause is not None:
        return  # it is being undone: nobody asks for its steps any more, and its end settles their faults
    ruling, why = Ruling.decode(fault.ruling), f"exlet {plan.exlet.name} is done"
    if ruling.result and fault.exception != On.ACTIVITY_POST:
        chosen: Settled = Rule(Ruling(Do.COMPLETE), FaultState.FINAL, f"{why}; it has a result")
    elif ruling.args or fault.kind is FaultKind.CONSTRAINT:
        chosen = Rule(Ruling(Do.GO), FaultState.WAITING, f"{why}; it goes on")
    else:
        _hand_back(connection, run, fault, post)
        return
    _follow(connection, run, fault, ruling, chosen, post)


def park(
    connection: Connection, namespace: str, run_id: RunId, fault_id: str, why: str, at: datetime, grace: timedelta
) -> None:
    """Leave a fault that its exlet cannot decide about to a person."""
    run, fault = _lock(connection, namespace, run_id, fault_id)
    if run is not None and fault is not None:
        post = Post(Verb.RULING, {"fault": fault.id}, "exlet", at, grace)
        _follow(connection, run, fault, Ruling.decode(fault.ruling), ParkRun(why), post)


def again(fault: Fault, ruling: Ruling | None = None) -> Ruling:
    """What it means to try a step again: one that had its effect is undone before."""
    return replace(ruling or Ruling(), do=Do.AGAIN if kept.had_effect(fault) else None)


def fault_of(fault: Fault, ruling: Ruling) -> dict[str, Any]:
    """What a ruling changes in its fault's row, besides itself: a constraint fails with what its exlet says."""
    if ruling.do is Do.FAIL and ruling.why and fault.kind is FaultKind.CONSTRAINT:
        return {"message": ruling.why, "args": json.dumps([ruling.why])}
    return {}


def _lock(connection: Connection, namespace: str, run_id: RunId, fault_id: str) -> tuple[RunRow | None, Fault | None]:
    run = waking.lock(connection, namespace, run_id)
    statement = select(faults).where(faults.c.id == fault_id, faults.c.state == FaultState.HANDLED.value)
    row = connection.execute(statement.with_for_update()).one_or_none()
    return run, None if row is None else fault_rows.from_row(row)


def _follow(connection: Connection, run: RunRow, fault: Fault, ruling: Ruling, chosen: Settled, post: Post) -> None:
    """Write a route into the fault, as a ruling where that is needed."""
    if fault.path is None:
        _follow_death(connection, run, fault, chosen, post)
        return
    match chosen:
        case RetryLater(wait=wait):
            seconds = 0.0 if wait is None else wait.total_seconds()
            more = {"wait_seconds": seconds, "level": chosen.level, "try_in_level": chosen.try_in_level}
            _rule(connection, run, fault, again(fault, ruling), FaultState.WAITING, chosen.why, post, seconds, **more)
        case ParkRun(why=why):
            _rule(connection, run, fault, replace(ruling, do=Do.PARK, why=why), FaultState.FINAL, why, post)
        case GiveUp(why=why):
            _rule(connection, run, fault, replace(ruling, do=Do.FAIL), FaultState.FINAL, why, post)
        case Rule(ruling=given, state=state, why=why):
            result = given.result or ruling.result
            merged = replace(given, args=ruling.args, result=result)
            _rule(connection, run, fault, merged, state, why, post)
        case _:
            assert_never(chosen)


def _follow_death(connection: Connection, run: RunRow, fault: Fault, chosen: Settled, post: Post) -> None:
    """Decide about a worker's death: it is of no step, so its run goes on, or waits for a person."""
    if isinstance(chosen, ParkRun) and run.worker_id is None:
        marked = {"state": FaultState.PARKED.value, "verdict": chosen.why, "settled_at": now()}
        connection.execute(update(faults).where(faults.c.id == fault.id).values(**marked))
        parking.park(connection, run.id, chosen.why)
        return
    _rule(connection, run, fault, Ruling(Do.GO), FaultState.WAITING, chosen.why, post)


def _rule(
    connection: Connection,
    run: RunRow,
    fault: Fault,
    ruling: Ruling,
    state: FaultState,
    verdict: str,
    post: Post,
    seconds: float = 0.0,
    **more: Any,
) -> None:
    more |= fault_of(fault, ruling)
    connection.execute(
        update(faults)
        .where(faults.c.id == fault.id)
        .values(state=state.value, ruling=ruling.encode(), verdict=verdict, due_at=later(seconds), **more)
    )
    # One that was stopped reads it when it is resumed.
    waking.send(connection, run, post, lambda row: row.status not in (Status.PARKED, Status.SUSPENDED))


def _hand_back(connection: Connection, run: RunRow, fault: Fault, post: Post) -> None:
    """Let the fault be decided about as if there were no rules: its owner raises it once more."""
    opened = {"state": FaultState.OPEN.value, "ruling": Ruling().encode()}
    connection.execute(update(faults).where(faults.c.id == fault.id).values(**opened))
    waking.send(connection, run, post, lambda row: row.status not in (Status.PARKED, Status.SUSPENDED))


def _unwind_to(
    connection: Connection,
    run: RunRow,
    plan: Plan,
    savepoint: str,
    fault: Fault,
    ruling: Ruling,
    post: Post,
    at: datetime,
    grace: timedelta,
) -> str | None:
    by = Person(plan.actor, f"for fault {plan.fault_id}")
    try:
        steering.undo_to(connection, run, by, at, grace, savepoint=savepoint)
        told = f"exlet {plan.exlet.name}: unwind to {savepoint!r}"
        final = {"state": FaultState.FINAL.value, "ruling": replace(ruling, do=Do.FAIL).encode(), "verdict": told}
        connection.execute(update(faults).where(faults.c.id == fault.id).values(**final))
    except OrderRefused as refused:
        told = f"exlet {plan.exlet.name} cannot unwind: {refused}; decide by hand, then retry"
        _rule(connection, run, fault, replace(ruling, do=Do.PARK, why=told), FaultState.FINAL, told, post)
        return str(refused)
    return None


def _compute(source: str, plan: Plan) -> tuple[Any, str | None]:
    """What an expression comes to for the case that an exlet was chosen for."""
    asked = {name.removeprefix("source."): "dyn" for name in plan.facts if name.startswith("source.")}
    try:
        return Expression.compile(source, asked).value(plan.facts)
    except RuleRefused as refused:
        return None, str(refused)


def _set(
    connection: Connection, plan: Plan, run: RunRow, fault: Fault, ruling: Ruling, primitive: primitives.Set
) -> None:
    """Change what the step is executed with, or what it has come to, and the run's tags.

    Raises RuleRefused if a value cannot be computed: what follows was meant for the new one, so a person decides.
    """
    args, tags = dict(primitive.args), dict(primitive.tags)
    result = () if primitive.result is NOTHING else (primitive.result,)
    for key, source in primitive.computed.items():
        value, warning = _compute(source, plan)
        if warning is not None:
            raise RuleRefused(f"{key} cannot be computed: {warning}; change the rule, then retry")
        kind, _, name = key.partition(".")
        if kind == "args":
            args[name] = value
        elif kind == "tags":
            tags[name] = value
        else:
            result = (value,)
    changed = ruling.with_args(args) if args else ruling
    changed = replace(changed, result=result) if result else changed
    connection.execute(update(faults).where(faults.c.id == fault.id).values(ruling=changed.encode()))
    if tags:
        merged = json.dumps({**run.tags, **tags})
        connection.execute(update(runs).where(runs.c.id == run.id).values(tags=merged, updated_at=now()))
