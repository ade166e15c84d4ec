"""A run's deadline: once it has passed, the step that the run is at fails for that, and the flow hears of it once.

The deadline is taken out of the run's row in the transaction that journals the failure; so no other branch, and no
later step, is told again.
"""

from __future__ import annotations

from aft.errors import DeadlineExceeded
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures
from aft.flows.asks import Ask, Landed
from aft.flows.failures import Place
from aft.flows.policy import Policy
from aft.flows.steps import Stepper
from aft.runs import faults
from aft.runs.journal import Entry, Outcome


def check_deadline(stepper: Stepper, ask: Ask, landed: Landed | None) -> Entry | None:
    """Journal that a step failed because the run's deadline has passed, once; None: it has not."""
    owner, tools = stepper.owner, stepper.tools
    deadline = owner.run.deadline_at
    if deadline is None or (deadline > tools.clock.now() and deadline > stepper.mailbox.now):
        return None
    fault = _fault(stepper, ask, f"run {owner.run_id} had to end by {deadline:%Y-%m-%d %H:%M:%S} UTC")
    scope = ask.path.rpartition(".")[0]
    entry = Entry(ask.path, scope, ask.kind, ask.name, Outcome.FAILED, tools.clock.now(), fault_id=fault.id)
    with owner.lock:
        if owner.run.deadline_at is None:
            return None  # another branch was told
        owner.change(deadline_at=None)
        return stepper.record(
            entry, lambda connection, seq: faults.add(connection, tools.namespace, fault), landed, deadline_at=None
        )


def _fault(stepper: Stepper, ask: Ask, why: str) -> Fault:
    owner, tools = stepper.owner, stepper.tools
    return failures.describe(
        DeadlineExceeded(why),
        Place(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
        Policy(),
        tools.ladder,
        tools.clock.now(),
        state=FaultState.FINAL,
        verdict=f"the deadline passed at {ask.kind.value} {ask.name!r} (step {ask.path})",
    )
