"""Constraints: rules that the worker asks before and after a run and each of its activities, and during an attempt.

Only *whether* something is wrong is asked here. If so, the step is blocked by a fault that holds the rules' choice, and
the dispatcher carries the exlet out, as for any other fault. Without taught rules of a type, nothing is asked.
"""

from __future__ import annotations

import json
from typing import Any

from aft.fault import Fault, FaultKind, FaultState, Recoverability
from aft.flows.exceptions.failure_groups import in_group
from aft.flows.session.dependencies import Dependencies
from aft.ids import FaultId, StepPath, new_id
from aft.recovery.levels import Ladder
from aft.rules.cases import case, history, sources, step_snapshot
from aft.rules.cases.case import Case, StepFacts
from aft.rules.rule_types import RuleType
from aft.rules.trees import choose
from aft.rules.trees.choose import ANY, RuleChoice
from aft.runs.ownership.owner import Owner
from aft.runs.rulings import Ruling, RulingAction
from aft.telemetry import RuleWarned

#: What a flow sees when an exlet makes a step fail for its constraint.
TYPE = "aft.errors.ConstraintViolated"
LINEAGE = (TYPE, "aft.errors.AftError", "builtins.Exception", "builtins.BaseException", "builtins.object")


class Constraints:
    """Asks the rules for one run's owner. Thread-safe."""

    def __init__(self, deps: Dependencies, owner: Owner) -> None:
        self._deps = deps
        self._owner = owner

    def any(self, on: RuleType, activity: str) -> bool:
        """Whether rules of this type are taught for the run's flow and this activity."""
        return self._deps.rules.current().is_taught(on, self._owner.run.flow, activity)

    def find_objection(self, on: RuleType, step: StepFacts) -> RuleChoice | None:
        """Return the rules' choice for this step or run; None if they do not object. Emits: RuleWarned."""
        deps, run = self._deps, self._owner.run
        rules = deps.rules.current()
        if not rules.is_taught(on, run.flow, step.name):
            return None
        at = deps.clock.now()

        def gather_history(wanted: frozenset[str]) -> dict[str, Any]:
            with deps.store.read() as connection:
                return history.of_signature(connection, deps.namespace, step.name or run.flow, TYPE, at, wanted)

        facts = {**case.of_run(run, at), **case.of_step(step)}
        found = Case(facts, {"history": gather_history, "source": sources.fetch_named})
        trees = rules.find(on, run.flow, step.name)
        if on is RuleType.ABORT:
            # Trees about all activities are asked by the dispatcher, which does not know which activity it was.
            trees = [tree for tree in trees if tree.tree.activity != ANY]
        decision = choose.choose_rule(trees, on, found)
        if decision is None:
            for why in found.warnings:
                deps.telemetry.emit(RuleWarned(run=run.id, fault="", why=why))
        return decision

    def make_fault(
        self,
        on: RuleType,
        decision: RuleChoice,
        path: StepPath,
        step: StepFacts,
        before: Fault | None = None,
        ladder: Ladder | None = None,
    ) -> Fault:
        """Make the fault of a violated constraint; it uses up no try of the step.

        Its ``attempt`` counts them in a row. ``before`` is the step's fault until now; ``ladder`` is the one in force.
        """
        repeated = before is not None and before.kind is FaultKind.CONSTRAINT and before.rule_type == on.value
        fault = Fault(
            id=FaultId(new_id()),
            run_id=self._owner.run_id,
            path=path,
            kind=FaultKind.CONSTRAINT,
            name=step.name or self._owner.run.flow,
            state=FaultState.OPEN,
            epoch=self._owner.epoch,
            attempt=before.attempt + 1 if repeated and before is not None else 1,
            type=TYPE,
            lineage=LINEAGE,
            message=decision.why,
            args=json.dumps([decision.why]),
            args_exact=True,
            traceback="",
            own_answer=Recoverability.UNRECOVERABLE,
            declared_answer=None,
            http_status=None,
            after=None,
            ladder=(ladder or self._deps.ladder).stored,
            raised_at=self._deps.clock.now(),
            rule_type=on.value,
            step_snapshot=step_snapshot.encode(step, before, case.of_run(self._owner.run, self._deps.clock.now())),
            decision=decision.encode(),
        )
        return in_group(fault)


def asks_again(fault: Fault | None) -> bool:
    """Whether rules are asked again about a step that they objected to before it began: no ruling lets it go on."""
    objected = fault is not None and fault.rule_type == RuleType.ACTIVITY_PRE
    return objected and fault is not None and Ruling.decode(fault.ruling).do is not RulingAction.GO
