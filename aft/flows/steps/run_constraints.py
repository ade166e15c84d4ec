"""Constraints of a whole run: rules asked before its code begins, and when it has returned.

Nothing is journaled if the rules do not object. If they do, a fault blocks the run at a path of its own; once an exlet
lets it go on, that is journaled, so that the rules are not asked again.
"""

from __future__ import annotations

from dataclasses import dataclass

from aft.fault import FaultState
from aft.flows.session.blocks import Blocked, ParkNeeded, RunRemoved
from aft.flows.steps.run_session import RunSession
from aft.ids import StepPath
from aft.rules.cases.case import StepFacts
from aft.rules.rule_types import RuleType
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.states import Status

#: The journal path of each decision.
PATHS = {RuleType.RUN_PRE: StepPath("begin"), RuleType.RUN_POST: StepPath("end")}


@dataclass(frozen=True, slots=True)
class RunConstraints:
    """Asks the rules in one pass over a flow's code; ``recorded`` are the journal entries by path."""

    session: RunSession
    recorded: dict[str, Entry]
    #: Whether no step of the run has an outcome yet: only then does it begin.
    begins: bool

    def check(self, on: RuleType, result: str | None = None) -> Entry | None:
        """Raise Blocked if the rules object and that is not decided yet; return the decision's entry, if any."""
        path, step_states = PATHS[on], self.session.step_states
        if path in self.recorded:
            return self.recorded[path]
        step_states.check_ladder(path, Status.RECOVERING)
        if step_states.fault(path) is not None:
            return self._apply_ruling(path)
        if on is RuleType.RUN_PRE and not self.begins:
            return None
        facts = StepFacts("", None, result)
        decision = self.session.constraints.find_objection(on, facts)
        if decision is not None:
            fault = self.session.constraints.make_fault(on, decision, path, facts)
            self.session.fail(path, fault, Status.RECOVERING)
        return None

    def _apply_ruling(self, path: StepPath) -> Entry:
        fault = self.session.step_states.fault(path)
        assert fault is not None
        ruling = Ruling.decode(fault.ruling)
        if ruling.do is RulingAction.PARK:
            raise Blocked(ParkNeeded(ruling.why, fault, (), reopens=True))
        if ruling.do is RulingAction.REMOVE:
            raise Blocked(RunRemoved(ruling.why))
        failed = fault.state is FaultState.FINAL
        entry = Entry(
            path,
            "",
            EntryKind.RULE,
            self.session.owner.run.flow,
            Outcome.FAILED if failed else Outcome.OK,
            self.session.deps.clock.now(),
            fault_id=fault.id if failed else None,
        )
        made = self.session.record(entry)
        self.session.step_states.note_recorded(path)
        return made
