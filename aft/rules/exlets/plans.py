"""Plans: exlets being carried out, one row for each fault that one was chosen for.

Who may run at the same time: several dispatchers with the same plan. Each primitive is one transaction that locks the
plan's row, carries out the primitive and moves ``position``; the second dispatcher leaves a locked plan to the first. A
crash leaves the plan at its current primitive: it is due again after HOLD seconds, and any dispatcher continues there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from aft.errors import RuleRefused
from aft.ids import RunId, new_id
from aft.rules.exlets.exlet import Exlet
from aft.store.batch.statements import GIVEN, PreparedQuery
from aft.store.db_time import later, now
from aft.store.engine import Store
from aft.store.tables import holds, plans

#: Plans that one look finds.
BATCH = 100
#: Seconds after which a plan that has not moved is due for any dispatcher.
HOLD = 5.0
#: Stands for an exlet that cannot be read.
UNREADABLE = Exlet("(unreadable)", ())


class PlanState(StrEnum):
    """The state of a plan."""

    OPEN = "open"  #: it is being carried out
    DONE = "done"  #: every primitive was done
    DROPPED = "dropped"  #: it cannot be carried out: its run is parked


@dataclass(frozen=True, slots=True)
class Plan:
    """An exlet, the case that it was chosen for, and the primitive that is next."""

    id: str
    run_id: RunId
    fault_id: str
    exlet: Exlet
    facts: dict[str, Any] = field(repr=False)
    position: int
    #: The last run that a primitive for many runs has reached.
    reached: str | None
    state: PlanState
    note: str | None
    made_at: datetime
    ended_at: datetime | None

    @property
    def actor(self) -> str:
        """The actor of its orders, for the audit."""
        return f"exlet {self.exlet.name}"


_COLUMNS = [plans.c[name] for name in Plan.__slots__]


def begin(
    connection: Connection, namespace: str, run_id: str, fault_id: str, exlet: Exlet, facts: dict[str, Any]
) -> str:
    """Insert a plan, in the transaction that hands its fault over to it."""
    made = new_id()
    connection.execute(
        insert(plans).values(
            id=made,
            namespace=namespace,
            run_id=run_id,
            fault_id=fault_id,
            exlet=json.dumps(exlet.encode()),
            facts=json.dumps(facts),
            state=PlanState.OPEN.value,
            due_at=later(HOLD),
            made_at=now(),
        )
    )
    return made


def lock(connection: Connection, plan_id: str) -> Plan | None:
    """Read and lock an open plan; None if it is closed, or another transaction has locked it."""
    statement = select(*_COLUMNS).where(plans.c.id == plan_id, plans.c.state == PlanState.OPEN.value)
    row = connection.execute(statement.with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else _plan(row)


#: Open plans of a namespace that have not moved for a while.
_DUE = PreparedQuery.of(
    select(plans.c.id)
    .where(plans.c.namespace == GIVEN, plans.c.state == PlanState.OPEN.value, plans.c.due_at <= now())
    .order_by(plans.c.due_at)
    .limit(BATCH)
)


def find_due(store: Store, namespace: str) -> list[str]:
    """Return up to BATCH open plans that have not moved for a while."""
    (found,) = store.query([(_DUE, namespace)])
    return [plan_id for (plan_id,) in found]


def of_run(connection: Connection, run_id: str) -> list[Plan]:
    """Return every plan for a run, oldest first; one whose row was damaged has an exlet that says so."""
    statement = select(*_COLUMNS).where(plans.c.run_id == run_id).order_by(plans.c.id)
    return [_plan_or_reason(row) for row in connection.execute(statement)]


def advance(connection: Connection, plan: Plan, note: str | None) -> None:
    """Move on to the next primitive."""
    notes = "; ".join(text for text in (plan.note, note) if text) or None
    _change(connection, plan, position=plan.position + 1, reached=None, note=notes, due_at=later(HOLD))


def record_progress(connection: Connection, plan: Plan, run_id: str) -> None:
    """Record how far a primitive for many runs has come."""
    _change(connection, plan, reached=run_id, due_at=later(HOLD))


def put_off(connection: Connection, plan_id: str, note: str, seconds: float) -> None:
    """Postpone a plan whose primitive failed."""
    connection.execute(update(plans).where(plans.c.id == plan_id).values(note=note, due_at=later(seconds)))


def end(connection: Connection, plan: Plan, state: PlanState, note: str | None = None) -> None:
    """End a plan."""
    notes = "; ".join(text for text in (plan.note, note) if text) or None
    _change(connection, plan, state=state.value, note=notes, ended_at=now())


def drop(connection: Connection, plan_id: str, note: str) -> tuple[RunId, str] | None:
    """End a plan that cannot be carried out, or even read; return its run and fault, None if it had ended."""
    statement = (
        update(plans)
        .where(plans.c.id == plan_id, plans.c.state == PlanState.OPEN.value)
        .values(state=PlanState.DROPPED.value, note=note, ended_at=now())
        .returning(plans.c.run_id, plans.c.fault_id)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else (row.run_id, row.fault_id)


def record_suspended(connection: Connection, plan: Plan, target: str, run_ids: Iterable[str]) -> None:
    """Record which runs a plan has suspended, and as which target."""
    rows = [{"plan_id": plan.id, "run_id": run_id, "target": target} for run_id in run_ids]
    if rows:
        connection.execute(insert(holds), rows)


def find_suspended(connection: Connection, plan_id: str, limit: int, target: str | None = None) -> list[RunId]:
    """Return runs that a plan has suspended and not resumed: all of them, or those of one target."""
    statement = select(holds.c.run_id).where(holds.c.plan_id == plan_id).order_by(holds.c.run_id).limit(limit)
    if target is not None:
        statement = statement.where(holds.c.target == target)
    return [RunId(found) for found in connection.execute(statement).scalars()]


def delete_suspended(connection: Connection, plan_id: str, run_ids: Iterable[str]) -> None:
    """Delete the record that a plan has suspended these runs."""
    ours = (holds.c.plan_id == plan_id, holds.c.run_id.in_(list(run_ids)))
    connection.execute(delete(holds).where(*ours))


def _change(connection: Connection, plan: Plan, **changes: Any) -> None:
    connection.execute(update(plans).where(plans.c.id == plan.id).values(**changes))


def _plan_or_reason(row: Row[Any]) -> Plan:
    try:
        return _plan(row)
    except (RuleRefused, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        state = PlanState(row.state) if row.state in {*PlanState} else PlanState.DROPPED
        note = f"the row of plan {row.id} cannot be read"
        return Plan(row.id, row.run_id, row.fault_id, UNREADABLE, {}, 0, None, state, note, row.made_at, row.ended_at)


def _plan(row: Row[Any]) -> Plan:
    read = {"exlet": Exlet.decode(json.loads(row.exlet)), "facts": json.loads(row.facts), "state": PlanState(row.state)}
    return Plan(**{**row._mapping, **read})
