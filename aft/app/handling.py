"""How rules and exlets have handled a fault, in words for people. Reads what is stored; never raises for damage."""

from __future__ import annotations

from sqlalchemy import Connection

from aft.app.hindsight import stored_decision
from aft.errors import RuleRefused
from aft.fault import Fault
from aft.ids import RunId
from aft.rules import plans
from aft.rules.asking import RuleChoice
from aft.rules.plans import Plan, PlanState
from aft.runs.rulings import Do, Ruling

_DOES: dict[Do, str] = {
    Do.GO: "it goes on",
    Do.COMPLETE: "it is taken for done",
    Do.FAIL: "it has failed for good",
    Do.PROCEED: "it has failed for good, and the flow goes on with aft.FAILED",
    Do.AGAIN: "it is tried again, what it did is undone before",
    Do.RESTART: "it begins anew",
    Do.REMOVE: "it is removed",
    Do.PARK: "a person has to look",
}


def plans_of(connection: Connection, run_id: RunId) -> dict[str, Plan]:
    """The exlets that are or were carried out for a run, by their fault: of several for one, the last."""
    return {plan.fault_id: plan for plan in plans.of_run(connection, run_id)}


def taught(fault: Fault) -> RuleChoice | None:
    """What a rule of somebody's has chosen for a fault; None where aft's own answer held."""
    try:
        decision = stored_decision(fault)
    except RuleRefused:
        return None
    return None if decision is None or decision.asked[-1].revision == 0 else decision


def spell_rule(decision: RuleChoice) -> str:
    """Name the rule that has answered."""
    last = decision.asked[-1]
    where = " × ".join(part for part in (last.flow, decision.on, last.activity) if part)
    return f"rule {decision.node} of {where}"


def spell_progress(plan: Plan) -> str:
    """Say how far an exlet is."""
    steps = plan.exlet.steps
    note = f" ({plan.note})" if plan.note else ""
    if plan.state is PlanState.DONE:
        return f"done{note}"
    if plan.state is PlanState.DROPPED:
        return f"dropped after {plan.position} of {len(steps)}{note}"
    coming = f", next: {steps[plan.position]}" if plan.position < len(steps) else ""
    return f"{plan.position} of {len(steps)} done{coming}{note}"


def spell_ruling(fault: Fault) -> str:
    """Say what was decided about the step; empty if nothing was."""
    ruling = read_ruling(fault)
    if ruling.do is None:
        return ""
    changed = f", with {', '.join(ruling.args)} changed" if ruling.args else ""
    return f"{_DOES[ruling.do]}{changed}"


def read_ruling(fault: Fault) -> Ruling:
    """What was decided about the step; nothing if that was damaged."""
    try:
        return Ruling.decode(fault.ruling)
    except (ValueError, TypeError, AttributeError):
        return Ruling()
