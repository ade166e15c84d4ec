"""Short ways to have a dispatcher decide about faults that a test has written."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

import aft
from aft.dispatcher.exlets.plans import PlanExecutor
from aft.dispatcher.intake import Intake
from aft.fault import FaultState
from aft.ids import FaultId
from aft.recovery.relay import Relay
from aft.rules.exlets import plans
from aft.rules.exlets.primitives import Primitive
from aft.runs.records import faults
from aft.runs.run_rows import RunRow
from aft.store import tables
from tests.storing import a_fault


def intake(app: aft.Aft) -> Intake:
    """What decides about faults in a dispatcher of this app."""
    relay = Relay(app.store, app.broker, app.namespace, app.delays().topology, app.telemetry, app.clock, app.seal)
    return app.make_intake(app.delays(), relay)


def put_fault(app: aft.Aft, run: RunRow, number: int, **changes: Any) -> FaultId:
    """Write a fault of a run, with a name that comes after those of smaller numbers."""
    made = a_fault(run.id, run.epoch, id=FaultId(f"{app.namespace}-{number}"), **changes)
    with app.store.write() as connection:
        faults.add(connection, app.namespace, made)
    return made.id


def put_plan(app: aft.Aft, run: RunRow, fault: FaultId, *steps: Primitive) -> str:
    """Hand a fault over to an exlet of these primitives."""
    with app.store.write() as connection:
        handled = {"state": FaultState.HANDLED.value}
        connection.execute(update(tables.faults).where(tables.faults.c.id == fault).values(**handled))
        return plans.begin(connection, app.namespace, run.id, fault, aft.Exlet("exlet", steps), {})


def carry_out(app: aft.Aft, *begun: str) -> None:
    """Carry out plans as a dispatcher does, each up to its end or a failure."""
    executor = PlanExecutor(app.make_dispatcher_deps())
    for plan in begun:
        executor.begin(plan)
    for _ in range(6 * len(begun)):
        executor.interrupt()  # so that no step waits
        executor.step()
