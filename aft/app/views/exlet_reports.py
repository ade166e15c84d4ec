"""Formats for people how rules and exlets have handled a fault. Reads what is stored; never raises for damage."""

from __future__ import annotations

from sqlalchemy import Connection

from aft.app.rules.past_faults import stored_decision
from aft.errors import RuleRefused
from aft.fault import Fault
from aft.ids import RunId
from aft.rules.exlets import plans
from aft.rules.exlets.plans import Plan, PlanState
from aft.rules.trees.choose import RuleChoice
from aft.runs.rulings import Ruling, RulingAction

_DOES: dict[RulingAction, str] = {
    RulingAction.GO: "it goes on",
    RulingAction.COMPLETE: "it is taken for done",
    RulingAction.FAIL: "it has failed for good",
    RulingAction.PROCEED: "it has failed for good, and the flow goes on with aft.FAILED",
    RulingAction.AGAIN: "it is tried again, what it did is undone before",
    RulingAction.RESTART: "it starts again",
    RulingAction.REMOVE: "it is removed",
    RulingAction.PARK: "a person has to look",
}


def plans_of(connection: Connection, run_id: RunId) -> dict[str, Plan]:
    """Return the plans of a run by their fault: of several for one, the last."""
    return {plan.fault_id: plan for plan in plans.of_run(connection, run_id)}


def taught(fault: Fault) -> RuleChoice | None:
    """Return what a taught rule has chosen for a fault; None if aft's own decision held."""
    try:
        decision = stored_decision(fault)
    except RuleRefused:
        return None
    return None if decision is None or decision.asked[-1].revision == 0 else decision


def format_rule(decision: RuleChoice) -> str:
    """Return the name of the rule that has answered."""
    last = decision.asked[-1]
    where = " × ".join(part for part in (last.flow, decision.on, last.activity) if part)
    return f"rule {decision.node} of {where}"


def format_progress(plan: Plan) -> str:
    """Format how far an exlet has been carried out."""
    steps = plan.exlet.steps
    note = f" ({plan.note})" if plan.note else ""
    if plan.state is PlanState.DONE:
        return f"done{note}"
    if plan.state is PlanState.DROPPED:
        return f"dropped after {plan.position} of {len(steps)}{note}"
    coming = f", next: {steps[plan.position]}" if plan.position < len(steps) else ""
    return f"{plan.position} of {len(steps)} done{coming}{note}"


def format_ruling(fault: Fault) -> str:
    """Format what was decided about the step; empty if nothing was."""
    ruling = read_ruling(fault)
    if ruling.do is None:
        return ""
    changed = f", with {', '.join(ruling.args)} changed" if ruling.args else ""
    return f"{_DOES[ruling.do]}{changed}"


def read_ruling(fault: Fault) -> Ruling:
    """Return what was decided about the step; an empty ruling if it cannot be decoded."""
    try:
        return Ruling.decode(fault.ruling)
    except ValueError:
        return Ruling()
