"""Constraints of a run as a whole: asked before its code begins, and when it has returned.

Nothing is journaled where all is well. Where the rules object, the run is blocked by a fault like a step, at a path of
its own; once an exlet has let it go on, that is journaled, so that nobody asks again.
"""

from __future__ import annotations

from dataclasses import dataclass

from aft.fault import FaultState
from aft.flows.leaving import Leave, Parks, Removes
from aft.flows.steps import Stepper
from aft.ids import StepPath
from aft.rules.case import StepFacts
from aft.rules.kinds import On
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.rulings import Do, Ruling
from aft.runs.states import Status

#: Where the journal keeps what came of each.
PATHS = {On.RUN_PRE: StepPath("begin"), On.RUN_POST: StepPath("end")}


@dataclass(frozen=True, slots=True)
class Whole:
    """Asks for one pass over a flow's code; ``recorded`` is what the journal has of it."""

    stepper: Stepper
    recorded: dict[str, Entry]
    #: Whether no step of the run has an outcome yet: only then does it begin.
    begins: bool

    def check(self, on: On, result: str | None = None) -> Entry | None:
        """Leave if the rules object and nobody has decided about that; returns what came of it, if anything did."""
        path, standing = PATHS[on], self.stepper.standing
        if path in self.recorded:
            return self.recorded[path]
        standing.check_ladder(path, Status.RECOVERING)
        if standing.fault(path) is not None:
            return self._obey(path)
        if on is On.RUN_PRE and not self.begins:
            return None
        facts = StepFacts("", None, result)
        decision = self.stepper.constraints.ask(on, facts)
        if decision is not None:
            fault = self.stepper.constraints.make_fault(on, decision, path, facts)
            self.stepper.fail(path, fault, Status.RECOVERING)
        return None

    def _obey(self, path: StepPath) -> Entry:
        fault = self.stepper.standing.fault(path)
        assert fault is not None
        ruling = Ruling.decode(fault.ruling)
        if ruling.do is Do.PARK:
            raise Leave(Parks(ruling.why, fault, (), reopens=True))
        if ruling.do is Do.REMOVE:
            raise Leave(Removes(ruling.why))
        failed = fault.state is FaultState.FINAL
        entry = Entry(
            path,
            "",
            EntryKind.RULE,
            self.stepper.owner.run.flow,
            Outcome.FAILED if failed else Outcome.OK,
            self.stepper.tools.clock.now(),
            fault_id=fault.id if failed else None,
        )
        made = self.stepper.record(entry)
        self.stepper.standing.passed(path)
        return made
