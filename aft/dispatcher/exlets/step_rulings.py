"""Writes an exlet's decision about its step: a ruling in the fault, and an inbox item that points the owner to it.

The run's row is locked first, then the fault's. A person who cancelled the run, or a deadline, may have closed the
fault meanwhile. Then there is nothing left to decide, and the plan's note says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from sqlalchemy import Connection, Row, delete, insert, select, update

from aft.dispatcher.classify import classify
from aft.dispatcher.decision import again, texts_of
from aft.dispatcher.fault_rules import retry_route, route_of_primitive
from aft.dispatcher.route import ApplyRuling, GiveUp, ImmediateRoute, ParkRun, RetryLater, route
from aft.errors import OrderRefused, RuleRefused
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import RunId
from aft.rules.cases import step_snapshot
from aft.rules.cel.conditions import Expression
from aft.rules.exlets import primitives
from aft.rules.exlets.plans import Plan
from aft.rules.exlets.primitives import NOTHING, Target
from aft.rules.rule_types import RuleType
from aft.run_options import TAG_LABEL, labels_of
from aft.runs import park as parking
from aft.runs.orders import steer
from aft.runs.orders.actor import Actor
from aft.runs.records import faults as fault_rows
from aft.runs.records.inbox import InboxVerb
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import wake
from aft.runs.wakes.wake import NewInboxItem
from aft.store.db_time import later, now
from aft.store.tables import faults, run_labels, runs

#: How often rules may restart a step in a row; then its run is parked.
MOST_RESTARTS = 10
GONE = "its fault was closed meanwhile"


def apply_to_step(
    connection: Connection,
    namespace: str,
    plan: Plan,
    primitive: primitives.Primitive,
    at: datetime,
    grace: timedelta,
) -> str | None:
    """Carry out a primitive that is about the step itself; return a note about it, if any.

    Raises RuleRefused if the exlet cannot go on.
    """
    locked = _lock(connection, namespace, plan.run_id, plan.fault_id, plan.actor, at, grace)
    if locked is None:
        return GONE
    why = f"exlet {plan.exlet.name}: {primitive}"
    match primitive:
        case primitives.Set():
            _set(locked, plan, primitive)
        case primitives.Unwind(to=str() as savepoint):
            return _unwind_to(locked, plan, savepoint)
        case primitives.Complete(computed=str() as source):
            return _complete(locked, plan, source, why)
        case primitives.Restart():
            _restart(locked, why)
        case primitives.Remove(target=Target.ACTIVITY):
            locked.rule(replace(locked.ruling, do=RulingAction.REMOVE, why=why), FaultState.FINAL, why)
        case primitives.Retry():
            locked.write_route(retry_route(locked.fault, primitive, why))
        case (
            primitives.Unwind() | primitives.Complete() | primitives.Fail() | primitives.Park() | primitives.Continue()
        ):
            if (chosen := route_of_primitive(locked.fault, primitive, why)) is not None:
                locked.write_route(chosen)
        case primitives.Suspend() | primitives.Remove() | primitives.Notify():
            pass  # not about the step itself (``exlets.plans``)
        case _:
            assert_never(primitive)
    return None


def by_default(connection: Connection, namespace: str, plan: Plan, at: datetime, grace: timedelta) -> None:
    """Decide about a fault that no primitive has decided about: by the values that were set, or as aft itself.

    Called in the transaction that ends its plan: from then on nothing else would wake the run. Unread orders of the run
    change nothing about that: they may be for other steps, or be refused.
    """
    locked = _lock(connection, namespace, plan.run_id, plan.fault_id, plan.actor, at, grace)
    if locked is None:
        return
    fault, why = locked.fault, f"exlet {plan.exlet.name} is done"
    if fault.path is None:
        # Its worker was lost, whatever the run was doing: also one that is being undone, or has ended, has to go on.
        locked.write_route(route(fault, classify(fault)))
    elif locked.run.cause is not None:
        return  # it is being undone: its steps are not executed any more, and its end closes their faults
    elif locked.ruling.result and fault.rule_type != RuleType.ACTIVITY_POST:
        why = f"{why}; it has a result"
        locked.write_route(ApplyRuling(Ruling(RulingAction.COMPLETE), FaultState.FINAL, why))
    elif locked.ruling.args or fault.kind is FaultKind.CONSTRAINT:
        locked.write_route(ApplyRuling(Ruling(RulingAction.GO), FaultState.WAITING, f"{why}; it goes on"))
    else:
        locked.hand_back()


def park(
    connection: Connection, namespace: str, run_id: RunId, fault_id: str, why: str, at: datetime, grace: timedelta
) -> None:
    """Park the run of a fault that its exlet cannot decide about, also if the fault cannot be read."""
    locked = _lock(connection, namespace, run_id, fault_id, "exlet", at, grace, read=fault_rows.show_row)
    if locked is not None:
        locked.write_route(ParkRun(why))


@dataclass(frozen=True, slots=True)
class _LockedFault:
    """A fault that an exlet decides about, with its run; both rows are locked by this transaction."""

    connection: Connection
    run: RunRow
    fault: Fault
    #: What the run's owner gets with each decision.
    item: NewInboxItem

    @property
    def ruling(self) -> Ruling:
        """What the exlet has made of the step so far."""
        return Ruling.decode(self.fault.ruling)

    def write_route(self, chosen: ImmediateRoute) -> None:
        """Write a route into the fault as a ruling, and send the run an inbox item about it."""
        if self.fault.path is None:
            self._write_route_after_death(chosen)
            return
        ruling = self.ruling
        match chosen:
            case RetryLater(wait=wait):
                seconds = 0.0 if wait is None else wait.total_seconds()
                more = {"wait_seconds": seconds, "level": chosen.level, "try_in_level": chosen.try_in_level}
                self.rule(again(self.fault, ruling), FaultState.WAITING, chosen.why, seconds, **more)
            case ParkRun(why=why):
                self.rule(replace(ruling, do=RulingAction.PARK, why=why), FaultState.FINAL, why)
            case GiveUp(why=why):
                self.rule(replace(ruling, do=RulingAction.FAIL), FaultState.FINAL, why)
            case ApplyRuling(ruling=given, state=state, why=why):
                self.rule(replace(given, args=ruling.args, result=given.result or ruling.result), state, why)
            case _:
                assert_never(chosen)

    def _write_route_after_death(self, chosen: ImmediateRoute) -> None:
        """Decide about a lost worker's fault: it belongs to no step, so its run goes on, or is parked."""
        if isinstance(chosen, ParkRun) and self.run.worker_id is None:
            self.change(state=FaultState.PARKED.value, why=chosen.why, settled_at=now())
            parking.park(self.connection, self.run.id, chosen.why)
            return
        self.rule(Ruling(RulingAction.GO), FaultState.WAITING, chosen.why)

    def rule(self, ruling: Ruling, state: FaultState, why: str, seconds: float = 0.0, **more: Any) -> None:
        """Write a ruling into the fault, due in ``seconds``, and send the run an inbox item about it."""
        more |= texts_of(self.fault, ruling)
        self.change(state=state.value, ruling=ruling.encode(), why=why, due_at=later(seconds), **more)
        self._send()

    def hand_back(self) -> None:
        """Reopen the fault, to be decided about without rules: the run's owner raises it once more."""
        self.change(state=FaultState.OPEN.value, ruling=Ruling().encode())
        self._send()

    def change(self, **values: Any) -> None:
        """Write these columns of the fault."""
        self.connection.execute(update(faults).where(faults.c.id == self.fault.id).values(**values))

    def _send(self) -> None:
        # One that was stopped reads it when it is resumed.
        stopped = (Status.PARKED, Status.SUSPENDED)
        wake.send(self.connection, self.run, self.item, lambda row: row.status not in stopped)


def _lock(
    connection: Connection,
    namespace: str,
    run_id: RunId,
    fault_id: str,
    actor: str,
    at: datetime,
    grace: timedelta,
    read: Callable[[Row[Any]], Fault] = fault_rows.from_row,
) -> _LockedFault | None:
    """Lock a run and its fault; None if there is nothing left to decide."""
    run = wake.lock(connection, namespace, run_id)
    statement = select(faults).where(faults.c.id == fault_id, faults.c.state == FaultState.HANDLED.value)
    row = connection.execute(statement.with_for_update()).one_or_none()
    if run is None or row is None:
        return None
    fault = read(row)
    return _LockedFault(connection, run, fault, NewInboxItem(InboxVerb.RULING, {"fault": fault.id}, actor, at, grace))


def _unwind_to(locked: _LockedFault, plan: Plan, savepoint: str) -> str | None:
    by = Actor(plan.actor, f"for fault {plan.fault_id}", locked.item.at, locked.item.grace)
    ruling = locked.ruling
    try:
        steer.undo_to(locked.connection, locked.run, by, savepoint=savepoint)
        why = f"exlet {plan.exlet.name}: unwind to {savepoint!r}"
        failed = replace(ruling, do=RulingAction.FAIL)
        locked.change(state=FaultState.FINAL.value, ruling=failed.encode(), why=why)
    except OrderRefused as refused:
        why = f"exlet {plan.exlet.name} cannot unwind: {refused}; decide by hand, then retry"
        locked.rule(replace(ruling, do=RulingAction.PARK, why=why), FaultState.FINAL, why)
        return str(refused)
    return None


def _complete(locked: _LockedFault, plan: Plan, source: str, why: str) -> str | None:
    """Complete the step with a computed result; if it cannot be computed, park the run, and return why."""
    value, warning = _compute(source, plan)
    if warning is not None:
        locked.write_route(ParkRun(f"the result cannot be computed: {warning}; change the rule, then retry"))
        return warning
    locked.rule(replace(locked.ruling, do=RulingAction.COMPLETE, result=(value,)), FaultState.FINAL, why)
    return None


def _compute(source: str, plan: Plan) -> tuple[Any, str | None]:
    """Evaluate an expression on the case that the exlet was chosen for; return (value, warning)."""
    asked = {name.removeprefix("source."): "dyn" for name in plan.facts if name.startswith("source.")}
    try:
        return Expression.compile(source, asked).value(plan.facts)
    except RuleRefused as refused:
        return None, str(refused)


def _restart(locked: _LockedFault, why: str) -> None:
    if step_snapshot.read_snapshot(locked.fault).restarts >= MOST_RESTARTS:
        locked.write_route(ParkRun(f"it was started again {MOST_RESTARTS} times in a row; change the rule, then retry"))
    else:
        locked.rule(replace(locked.ruling, do=RulingAction.RESTART), FaultState.WAITING, why)


def _set(locked: _LockedFault, plan: Plan, primitive: primitives.Set) -> None:
    """Change the step's arguments or result, and the run's tags.

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
    changed = locked.ruling.with_args(args) if args else locked.ruling
    changed = replace(changed, result=result) if result else changed
    locked.change(ruling=changed.encode())
    if tags:
        run, merged = locked.run, {**locked.run.tags, **tags}
        changes = {"tags": json.dumps(merged), "updated_at": now()}
        locked.connection.execute(update(runs).where(runs.c.id == run.id).values(**changes))
        _label(locked.connection, run, merged)


def _label(connection: Connection, run: RunRow, tags: dict[str, Any]) -> None:
    """Replace the labels of a run's tags; the caller has locked the run."""
    of_tags = run_labels.c.run_id == run.id, run_labels.c.name.startswith(TAG_LABEL)
    connection.execute(delete(run_labels).where(*of_tags))
    same = {"namespace": run.namespace, "run_id": run.id}
    if rows := [{"name": name, "value": value, **same} for name, value in labels_of((), tags)]:
        connection.execute(insert(run_labels), rows)
