"""Constraints: rules that are asked where a run is executed, before and after it and each of its activities.

Only *whether* something is wrong is asked here: then the step is blocked by a fault that holds what the rules chose,
and the dispatcher carries the exlet out, as for any other fault. Where nobody has taught rules of a type, nothing is
asked.
"""

from __future__ import annotations

import json
from typing import Any

from aft.fault import Answer, Fault, FaultKind, FaultState
from aft.flows.tools import Tools
from aft.ids import FaultId, StepPath, new_id
from aft.recovery.levels import Ladder
from aft.rules import asking, case, history, kept, sources
from aft.rules.asking import ANY, RuleChoice
from aft.rules.case import Case, StepFacts
from aft.rules.kinds import On
from aft.runs.owner import Owner
from aft.runs.rulings import Do, Ruling
from aft.telemetry import RuleWarned

#: What a flow sees when an exlet makes a step fail for its constraint.
TYPE = "aft.errors.ConstraintViolated"
LINEAGE = (TYPE, "aft.errors.AftError", "builtins.Exception", "builtins.BaseException", "builtins.object")


class Constraints:
    """Asks for one run's owner. Thread-safe."""

    def __init__(self, tools: Tools, owner: Owner) -> None:
        self._tools = tools
        self._owner = owner

    def any(self, on: On, activity: str) -> bool:
        """Whether there are rules to be asked."""
        return self._tools.book.current().is_taught(on, self._owner.run.flow, activity)

    def ask(self, on: On, step: StepFacts) -> RuleChoice | None:
        """What the rules choose for this step, or this run; None: all is as it should be."""
        tools, run = self._tools, self._owner.run
        rules = tools.book.current()
        if not rules.is_taught(on, run.flow, step.name):
            return None
        at = tools.clock.now()

        def gather_history(wanted: frozenset[str]) -> dict[str, Any]:
            with tools.store.read() as connection:
                return history.of_signature(connection, tools.namespace, step.name or run.flow, TYPE, at, wanted)

        facts = {**case.of_run(run, at), **case.of_step(step)}
        found = Case(facts, {"history": gather_history, "source": sources.ask_named})
        trees = rules.find(on, run.flow, step.name)
        if on is On.ABORT:
            # What is said of all activities is asked by the dispatcher, which does not know which one it was.
            trees = [tree for tree in trees if tree.tree.activity != ANY]
        decision = asking.ask(trees, on, found)
        if decision is None:
            for why in found.warnings:
                tools.telemetry.emit(RuleWarned(run=run.id, fault="", why=why))
        return decision

    def make_fault(
        self,
        on: On,
        decision: RuleChoice,
        path: StepPath,
        step: StepFacts,
        before: Fault | None = None,
        ladder: Ladder | None = None,
    ) -> Fault:
        """The fault that records what is wrong. Its ``attempt`` counts such ones in a row; it burns no try of the step.

        ``before`` stood against the step; ``ladder`` is the one in force for it.
        """
        why = decision.why
        repeated = before is not None and before.kind is FaultKind.CONSTRAINT and before.exception == on.value
        return Fault(
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
            message=why,
            args=json.dumps([why]),
            exact=True,
            traceback="",
            said=Answer.UNRECOVERABLE,
            declared=None,
            status=None,
            after=None,
            ladder=(ladder or self._tools.ladder).spelled,
            raised_at=self._tools.clock.now(),
            exception=on.value,
            step=kept.keep(step, before, case.of_run(self._owner.run, self._tools.clock.now())),
            decision=decision.encode(),
        )


def asks_again(fault: Fault | None) -> bool:
    """Whether a step that rules objected to before it began is to be asked about again: nobody has let it go on."""
    objected = fault is not None and fault.exception == On.ACTIVITY_PRE
    return objected and fault is not None and Ruling.decode(fault.ruling).do is not Do.GO
