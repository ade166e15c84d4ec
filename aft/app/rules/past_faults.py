"""Asks rules about stored faults again, with the facts as they were, as far as they were stored.

Reads only; needs none of the user's code except the sources that this process has declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, select

from aft.dispatcher.classify import classify
from aft.dispatcher.fault_rules import FaultRules, activity_of, rule_types_of
from aft.dispatcher.route import route
from aft.errors import RuleRefused, UnknownFault
from aft.fault import Fault, FaultKind
from aft.rules.cases import step_snapshot
from aft.rules.cases.case import Case, Facts
from aft.rules.rule_types import CONSTRAINTS, RuleType
from aft.rules.trees import choose
from aft.rules.trees.choose import ANY, RuleChoice
from aft.rules.trees.rule_cache import RuleSet
from aft.rules.trees.tree import Tree
from aft.runs import run_rows
from aft.runs.records import faults as fault_rows
from aft.runs.run_rows import RunRow
from aft.store import Store
from aft.store.tables import faults, runs
from aft.texts import format_value

#: Shown for a fault that no rule has an answer for.
NOTHING = "(nothing)"


@dataclass(frozen=True, slots=True)
class ChangedDecision:
    """A past fault that would be decided differently."""

    fault: Fault
    flow: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What a tree would change: ``examined`` past faults in its scope, and those with another answer."""

    examined: int
    changes: list[ChangedDecision]


class PastFaults:
    """Asks rules about stored faults. Thread-safe."""

    def __init__(self, namespace: str, store: Store, fault_rules: FaultRules) -> None:
        self._namespace = namespace
        self._store = store
        self._fault_rules = fault_rules

    def find_fault(self, fault_id: str) -> tuple[Fault, RunRow]:
        """Return a fault and its run; raises UnknownFault."""
        with self._store.read() as connection:
            fault = fault_rows.find_fault(connection, self._namespace, fault_id)
            if fault is None:
                raise UnknownFault(
                    f"no fault has the id {format_value(fault_id)}; `aft faults list` shows what there is"
                )
            return fault, run_rows.get_run(connection, self._namespace, fault.run_id)

    def case(self, fault: Fault, run: RunRow) -> Case:
        """Return the facts of a fault's case: those that its decision was made from, and what else is known by now."""
        classification = classify(fault)
        found = self._fault_rules.case_of(fault, run, classification, route(fault, classification))
        if fault.kind is FaultKind.CONSTRAINT:
            # Asked before there was a fault: rules about it could not look at one.
            found.facts = {name: value for name, value in found.facts.items() if not name.startswith(_NOT_YET)}
        found.facts |= step_snapshot.run_facts(fault)  # not as its run is now: rules were not asked about that
        found.facts |= stored_facts(fault)  # what is known is not gathered again
        return found

    def decide(self, rules: RuleSet, fault: Fault, run: RunRow, case: Case) -> RuleChoice | None:
        """Return what rules choose for a fault; None if they have no answer."""
        for on in rule_types_of(fault):
            decision = choose.choose_rule(rules.find(on, run.flow, activity_of(fault)), on, case)
            if decision is not None:
                return decision
        return None

    def compare(self, before: RuleSet, after: RuleSet, past: Sequence[tuple[Fault, RunRow]]) -> Preview:
        """Return which of these faults the rules in ``after`` decide differently from those in ``before``."""
        changes = []
        for fault, run in past:
            try:
                case = self.case(fault, run)
                old, new = (self.decide(rules, fault, run, case) for rules in (before, after))
            except RuleRefused:
                continue  # a row that somebody edited by hand
            first, second = (NOTHING if one is None else one.exlet for one in (old, new))
            if first != second:
                changes.append(ChangedDecision(fault, run.flow, first, second))
        return Preview(len(past), changes)

    def past(self, connection: Connection, tree: Tree, limit: int) -> list[tuple[Fault, RunRow]]:
        """Return the newest faults that a tree may be asked about, with their runs."""
        statement = select(faults).join(runs, runs.c.id == faults.c.run_id).where(faults.c.namespace == self._namespace)
        statement = statement.where(*_about(tree.on))
        if tree.flow != ANY:
            statement = statement.where(runs.c.flow == tree.flow)
        if tree.activity not in (ANY, ""):
            statement = statement.where(faults.c.name == tree.activity)
        newest = connection.execute(statement.order_by(faults.c.id.desc()).limit(limit))
        found = [fault_rows.show_row(row) for row in newest]
        known = run_rows.get_all(connection, [fault.run_id for fault in found])
        return [(fault, known[fault.run_id]) for fault in found]


#: Prefixes of facts that do not exist yet while a constraint is asked.
_NOT_YET = ("fault.", "timeout.")


def stored_decision(fault: Fault) -> RuleChoice | None:
    """Return what rules have chosen for a fault; raises RuleRefused if that cannot be decoded."""
    try:
        return RuleChoice.decode(fault.decision) if fault.decision else None
    except ValueError as error:
        raise RuleRefused(f"the decision about fault {fault.id} cannot be read: {error}") from None


def stored_facts(fault: Fault) -> Facts:
    """Return the facts that a decision was made from; empty if there was no decision, or it cannot be decoded."""
    try:
        decision = stored_decision(fault)
    except RuleRefused:
        return {}
    return {} if decision is None else dict(decision.facts)


def _about(on: RuleType) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the rows of faults that a rule type is about."""
    if on is RuleType.ABORT:
        return ((faults.c.kind == FaultKind.ABORT.value) | (faults.c.rule_type == on.value),)
    if on is RuleType.FAULT:
        kinds = [FaultKind.ACTIVITY.value, FaultKind.COMPENSATOR.value]
        return (faults.c.kind.in_(kinds),)
    violated = (faults.c.kind == FaultKind.CONSTRAINT.value,) if on in CONSTRAINTS else ()
    return (faults.c.rule_type == on.value, *violated)
