"""Carries out exlets: one primitive after the other, each in a transaction of its own.

See ``rules.exlets.plans`` for who may run at the same time and what a crash leaves. Runs are changed only through
``runs``: by orders in their inbox, by rulings in their faults. A primitive for many runs is carried out in batches,
each in its own transaction. If a run refuses an order (it has ended, or is stopped), that is noted and the plan goes
on. If somebody has locked one of the runs, and may be paused, the plan is put off after a moment: others go on.
"""

from __future__ import annotations

import queue
from typing import Any, assert_never

from sqlalchemy import Connection, select

from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.exlets import step_rulings
from aft.errors import AftError, OrderRefused, StoreError
from aft.ids import RunId
from aft.rules.exlets import plans, primitives
from aft.rules.exlets.plans import Plan, PlanState
from aft.rules.exlets.primitives import Target
from aft.runs import run_rows
from aft.runs.orders import steer
from aft.runs.orders.actor import Actor, Order
from aft.runs.records import notices
from aft.runs.run_rows import RunRow
from aft.runs.wakes import wake
from aft.store.tables import runs
from aft.telemetry import ExletDone, ServiceFailed, logger
from aft.texts import describe_error

#: Runs that one transaction of a primitive for many changes.
BATCH = 100
#: Seconds between two reads of the plans that are due, and until a failed plan is tried again.
PAUSE, PUT_OFF = 0.5, 5.0
#: Runs that a dropped plan resumes at most.
MOST_HELD = 1_000_000


#: Facts that a notice carries.
_TOLD = ("run.flow", "run.key", "run.owner", "activity.name", "fault.type", "fault.text", "activity.attempts")


class PlanExecutor:
    """Carries plans out. Thread-safe. Emits: ExletDone, ServiceFailed."""

    def __init__(self, deps: DispatcherDependencies) -> None:
        self._namespace = deps.namespace
        self._store = deps.store
        self._clock = deps.clock
        self._telemetry = deps.telemetry
        self._grace = deps.grace
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._looked = float("-inf")

    def begin(self, plan_id: str) -> None:
        """Queue a plan that was just committed, to be carried out without waiting for the next read."""
        self._waiting.put(plan_id)

    def interrupt(self) -> None:
        """Make the step that waits for a plan, or else the next one, return."""
        self._waiting.put("")

    def step(self) -> float:
        """Carry out one primitive, or a batch of it; every PAUSE seconds, queue the plans that are due in the store."""
        if self._clock.ticks() - self._looked >= PAUSE:
            for due in plans.find_due(self._store, self._namespace):
                self._waiting.put(due)
            self._looked = self._clock.ticks()  # not before: a read that failed does not count
        try:
            plan_id = self._waiting.get(timeout=PAUSE)
        except queue.Empty:
            return 0.0
        if plan_id and self._go_on(plan_id):
            self._waiting.put(plan_id)  # behind the others: one that is for many runs must not keep them waiting
        return 0.0

    def _go_on(self, plan_id: str) -> bool:
        try:
            return self._do_next(plan_id)
        except Exception as error:
            self._give_up(plan_id, error)
        return False

    def _give_up(self, plan_id: str, error: Exception) -> None:
        """Drop a plan that has failed, and would again; put it off if it may pass, or cannot be dropped either."""
        why = self._report(plan_id, error)
        try:
            if not (isinstance(error, StoreError) and error.transient):
                with self._store.write(patient=False) as connection:
                    self._drop(connection, plan_id, f"its exlet cannot be carried out: {why}")
                return
        except Exception as again:  # the row of its fault cannot be read, perhaps, or somebody has locked a run
            why = self._report(plan_id, again)
        try:
            with self._store.write(patient=False) as connection:
                plans.put_off(connection, plan_id, f"put off: {why}", PUT_OFF)
        except AftError:
            pass  # it is due again by itself

    def _report(self, plan_id: str, error: Exception) -> str:
        if not isinstance(error, AftError):
            logger.error("exlet cannot be carried out: plan=%s", plan_id, exc_info=error)
        self._telemetry.emit(ServiceFailed(service="plans", why=f"plan {plan_id}: {error!r}"))
        return describe_error(error)

    def _drop(self, connection: Connection, plan_id: str, why: str) -> None:
        """Give up a plan that would fail again: its run is parked, and the runs that it has suspended are resumed."""
        found = plans.drop(connection, plan_id, why)
        if found is None:
            return
        run_id, fault_id = found
        by = self._actor("exlet", fault_id, run_id)
        held = plans.find_suspended(connection, plan_id, MOST_HELD)
        for one in held:
            self._resume_run(connection, by, one, plan_id)
        plans.delete_suspended(connection, plan_id, held)
        step_rulings.park(connection, self._namespace, run_id, fault_id, why, self._clock.now(), self._grace)

    def _do_next(self, plan_id: str) -> bool:
        """Carry out the next primitive, or a batch of it; return False if nothing is left to do."""
        with self._store.write(patient=False) as connection:
            plan = plans.lock(connection, plan_id)
            if plan is None:
                return False
            if plan.position >= len(plan.exlet.steps):
                # No primitive has decided about the step.
                step_rulings.by_default(connection, self._namespace, plan, self._clock.now(), self._grace)
                plans.end(connection, plan, PlanState.DONE)
                return False
            primitive = plan.exlet.steps[plan.position]
            done, note = self._do(connection, plan, primitive)
            if done:
                plans.advance(connection, plan, note)
        if done:
            self._emit_done(plan, primitive, note)
        return True

    def _emit_done(self, plan: Plan, primitive: primitives.Primitive, note: str | None) -> None:
        text = str(primitive)
        exlet = plan.exlet.name
        self._telemetry.emit(ExletDone(run=plan.run_id, fault=plan.fault_id, exlet=exlet, primitive=text, note=note))

    # Primitives -------------------------------------------------------------------------------------------------

    def _do(self, connection: Connection, plan: Plan, primitive: primitives.Primitive) -> tuple[bool, str | None]:
        """Carry out a primitive, or a batch of it; return whether it is done, and a note about it."""
        match primitive:
            case primitives.Suspend(target=Target.ACTIVITY):
                return True, None  # the step waits for this plan as it is
            case primitives.Suspend(target=target):
                return self._suspend(connection, plan, target)
            case primitives.Continue(target=target) if target is not Target.ACTIVITY:
                return self._continue(connection, plan, target)
            case primitives.Remove(target=target, undo=undo) if target is not Target.ACTIVITY:
                order = steer.cancel if undo else steer.cancel_as_is
                return self._order_many(connection, plan, target, order)[:2]
            case primitives.Notify():
                return True, self._notify(connection, plan, primitive)
            case primitives.Continue() | primitives.Remove():
                return True, self._decide(connection, plan, primitive)
            case primitives.Restart() | primitives.Complete() | primitives.Fail() | primitives.Retry():
                return True, self._decide(connection, plan, primitive)
            case primitives.Unwind() | primitives.Park() | primitives.Set():
                return True, self._decide(connection, plan, primitive)
            case _:
                assert_never(primitive)

    def _decide(self, connection: Connection, plan: Plan, primitive: primitives.Primitive) -> str | None:
        return step_rulings.apply_to_step(connection, self._namespace, plan, primitive, self._clock.now(), self._grace)

    def _suspend(self, connection: Connection, plan: Plan, target: Target) -> tuple[bool, str | None]:
        def hold(connection: Connection, run: RunRow, by: Actor) -> None:
            if not steer.join_suspension(connection, run, by, plan.id):
                steer.suspend_for_exlet(connection, run, by)

        done, note, ordered = self._order_many(connection, plan, target, hold)
        plans.record_suspended(connection, plan, target, ordered)
        return done, note

    def _continue(self, connection: Connection, plan: Plan, target: Target) -> tuple[bool, str | None]:
        held = plans.find_suspended(connection, plan.id, BATCH, target)
        by = self._actor(plan.actor, plan.fault_id, plan.run_id)
        notes = [self._resume_run(connection, by, run_id, plan.id) for run_id in held]
        plans.delete_suspended(connection, plan.id, held)
        return len(held) < BATCH, _first(notes)

    def _order_many(
        self, connection: Connection, plan: Plan, target: Target, order: Order
    ) -> tuple[bool, str | None, list[RunId]]:
        """Give an order to the plan's run, or to a batch of its targets; return (done, note, runs that accepted it)."""
        found = self._targets(connection, plan, target)
        by = self._actor(plan.actor, plan.fault_id, plan.run_id)
        notes = {run_id: self._order(connection, by, run_id, order) for run_id in found}
        ordered = [run_id for run_id, note in notes.items() if note is None]
        done = len(found) < BATCH or target is not Target.FLOW
        if not done:
            plans.record_progress(connection, plan, found[-1])
        return done, _first(notes.values()) if target is Target.RUN else None, ordered

    def _targets(self, connection: Connection, plan: Plan, target: Target) -> list[RunId]:
        if target is Target.RUN:
            return [plan.run_id]
        run = run_rows.get_run(connection, self._namespace, plan.run_id)
        if target is Target.ANCESTORS:
            return _ancestors(connection, run)
        statement = (
            select(runs.c.id)
            .where(runs.c.namespace == self._namespace, runs.c.flow == run.flow, ~run_rows.has_ended())
            .order_by(runs.c.id)
            .limit(BATCH)
        )
        if plan.reached is not None:
            statement = statement.where(runs.c.id > plan.reached)
        return [RunId(found) for found in connection.execute(statement).scalars()]

    def _actor(self, name: str, fault_id: str, run_id: RunId) -> Actor:
        return Actor(name, f"for fault {fault_id} of run {run_id}", self._clock.now(), self._grace)

    def _order(self, connection: Connection, by: Actor, run_id: RunId, order: Order) -> str | None:
        """Give an order to one run; return why it was refused, or None."""
        run = wake.lock(connection, self._namespace, run_id)
        if run is None:
            return f"run {run_id} is gone"
        try:
            order(connection, run, by)
        except OrderRefused as refused:
            return str(refused)
        return None

    def _resume_run(self, connection: Connection, by: Actor, run_id: RunId, plan_id: str) -> str | None:
        """Resume a run that no other plan holds; return why it was not, or None.

        The caller deletes the hold in the same transaction, which has the run locked: of two plans that release one
        run at the same time, the second finds that it is the last.
        """

        def resume(connection: Connection, run: RunRow, by: Actor) -> None:
            steer.check_last_suspender(connection, run.id, plan_id)
            steer.resume_for_exlet(connection, run, by)

        return self._order(connection, by, run_id, resume)

    def _notify(self, connection: Connection, plan: Plan, primitive: primitives.Notify) -> str | None:
        body: dict[str, Any] = {
            "exlet": plan.exlet.name,
            "note": primitive.note,
            "run": plan.run_id,
            "fault": plan.fault_id,
            # Neither arguments nor results: what is in them is not for the world outside.
            **{name.replace(".", "_"): plan.facts[name] for name in _TOLD if plan.facts.get(name)},
        }
        notices.put(connection, self._namespace, plan.run_id, primitive.url, body)
        return None


def _ancestors(connection: Connection, run: RunRow) -> list[RunId]:
    """Return the runs that a run is a child of, the nearest first."""
    found: list[RunId] = []
    parent = run.parent_id
    while parent is not None and parent not in found:
        found.append(parent)
        parent = connection.execute(select(runs.c.parent_id).where(runs.c.id == parent)).scalar()
    return found


def _first(notes: Any) -> str | None:
    return next((note for note in notes if note), None)
