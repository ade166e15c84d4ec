"""Decides about a fault by the rules: its rule types, the exlet that they choose, and its route.

If no rule is taught about a fault, aft's own decision holds and no facts are gathered. Needs none of the user's code
except the sources that this process has declared. Reads only; never inside a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, assert_never

from aft import durations
from aft.dispatcher.classify import classify
from aft.dispatcher.decision import Decision
from aft.dispatcher.route import ApplyRuling, CarryOutExlet, GiveUp, ImmediateRoute, ParkRun, RetryLater, Route, route
from aft.errors import RuleRefused
from aft.fault import Fault, FaultKind, FaultState
from aft.recovery.known_exceptions import Classification
from aft.recovery.levels import Ladder, read_ladder
from aft.rules.cases import case, history, sources, step_snapshot
from aft.rules.cases.case import Case, StepFacts
from aft.rules.cases.facts import fact_types
from aft.rules.cel.conditions import names
from aft.rules.exlets import primitives
from aft.rules.exlets.exlet import Exlet
from aft.rules.rule_types import RuleType
from aft.rules.trees import choose as asking
from aft.rules.trees.choose import ANY, RuleChoice
from aft.rules.trees.rule_cache import RuleCache, RuleSet
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.run_rows import RunRow
from aft.store import Store
from aft.texts import format_value


def rule_types_of(fault: Fault) -> Sequence[RuleType]:
    """Return the rule types that a fault is of, the most specific first; none for one of a flow's own code.

    Raises RuleRefused if its row names a rule type that there is not.
    """
    if fault.kind is FaultKind.FLOW:
        return ()
    if fault.kind is FaultKind.ABORT:
        return (RuleType.ABORT,)
    if fault.rule_type is None:
        return (RuleType.FAULT,)
    try:
        own = RuleType(fault.rule_type)
    except ValueError:
        why = (
            f"fault {fault.id} is of rule type {format_value(fault.rule_type)}, which this version of aft does not know"
        )
        raise RuleRefused(f"{why}; no rule is asked about it") from None
    return (own,) if fault.kind is FaultKind.CONSTRAINT else (own, RuleType.FAULT)


def activity_of(fault: Fault) -> str:
    """Return the activity that a fault's rules are about; empty if its worker was lost and the activity is unknown."""
    return "" if fault.kind is FaultKind.ABORT else fault.name


class FaultRules:
    """Decides about faults by the rules. Thread-safe."""

    def __init__(self, namespace: str, store: Store, rule_cache: RuleCache) -> None:
        self._namespace = namespace
        self._store = store
        self._rule_cache = rule_cache

    def is_taught(self, fault: Fault, flow: str) -> bool:
        """Return whether rules may decide about this fault: then its run must be read."""
        if fault.kind is FaultKind.CONSTRAINT:
            return True
        if fault.ruling is not None:
            return False  # an exlet was carried out for it and has left the decision to us
        rules = self._rule_cache.current()
        if fault.rule_type == RuleType.TIMEOUT and RuleType.TIMEOUT in rules.taught:
            return True  # they may be about what is beside it
        return any(rules.is_taught(on, flow, activity_of(fault)) for on in rule_types_of(fault))

    def decide(self, fault: Fault, run: RunRow | None = None) -> Decision:
        """Decide about a fault; without its run no rules are asked."""
        rules = self._rule_cache.current()
        classification = classify(fault)
        default: Route = route(fault, classification)
        if fault.kind is FaultKind.CONSTRAINT:
            default = ParkRun(f"{fault.message}; but there is no such exlet any more: decide by hand, then retry")
        if run is None:
            return Decision(fault, default)
        found = self.case_of(fault, run, classification, default)
        choice = self._choice(rules, fault, run, found)
        if choice is None:
            return Decision(fault, default)
        # A worker may have seen rules that have come just now.
        exlet = rules.exlets.get(choice.exlet) or self._rule_cache.refresh().exlets.get(choice.exlet)
        chosen = None if exlet is None else route_of_exlet(fault, exlet, choice, found, default)
        if chosen is None:
            why = f"exlet {choice.exlet!r} cannot answer it; aft's own decision holds"
            return Decision(fault, default, replace(choice, warnings=[*choice.warnings, why]))
        return Decision(fault, chosen, choice)

    def decide_beside_timeout(self, fault: Fault, run: RunRow, late: str) -> Decision | None:
        """Return what rules that name a fault's activity decide because ``late``, beside it, timed out; or None."""
        rules = self._rule_cache.current()
        trees = [tree for tree in rules.find(RuleType.TIMEOUT, run.flow, fault.name) if tree.tree.activity != ANY]
        classification = classify(fault)
        default = route(fault, classification)
        found = self.case_of(fault, run, classification, default)
        found.facts["timeout.activity"] = late
        choice = asking.choose_rule(trees, RuleType.TIMEOUT, found)
        exlet = None if choice is None else rules.exlets.get(choice.exlet)
        if choice is None or exlet is None:
            return None
        chosen = route_of_exlet(fault, exlet, choice, found, default)
        return None if chosen is None else Decision(fault, chosen, choice)

    def _choice(self, rules: RuleSet, fault: Fault, run: RunRow, found: Case) -> RuleChoice | None:
        """Return what the rules choose for a fault; for a constraint, what they chose where it was found violated."""
        if fault.kind is FaultKind.CONSTRAINT:
            try:
                return RuleChoice.decode(fault.decision or "")
            except ValueError:
                return None
        for on in rule_types_of(fault):
            choice = asking.choose_rule(rules.find(on, run.flow, activity_of(fault)), on, found)
            if choice is not None:
                return choice
        return None

    def case_of(self, fault: Fault, run: RunRow, classification: Classification, default: Route) -> Case:
        """Return the facts about a fault, as they were when it was raised."""
        had, failed = step_snapshot.read_snapshot(fault), step_snapshot.failures(fault)
        step = StepFacts(activity_of(fault), had.args, had.result, failed, _level(default), had.elapsed)
        exhausted = classification.recoverable and not isinstance(default, RetryLater)
        facts: dict[str, Any] = {
            **case.of_run(run, fault.raised_at),
            **case.of_step(step),
            **case.of_fault(fault, recoverable=classification.recoverable, exhausted=exhausted),
            "timeout.activity": fault.name if fault.rule_type == RuleType.TIMEOUT else "",
        }

        def gather_history(wanted: frozenset[str]) -> dict[str, Any]:
            given = (self._namespace, fault.name, fault.type, fault.raised_at, wanted)
            with self._store.read() as connection:
                return history.of_signature(connection, *given)

        return Case(facts, {"history": gather_history, "source": sources.fetch_named})


def route_of_exlet(fault: Fault, exlet: Exlet, choice: RuleChoice, found: Case, default: Route) -> Route | None:
    """Return the route that an exlet means for a fault; None if it cannot answer one of this kind."""
    if isinstance(default, _SAME.get(exlet.name, ())):
        # The default knows more: what the exception asked for, whether the run must be alone.
        return _park(fault, fault.message) if fault.kind is FaultKind.CONSTRAINT else default
    chosen = route_of_primitive(fault, exlet.steps[0], choice.why) if exlet.only_decides else None
    if fault.kind is FaultKind.COMPENSATOR:
        # An undo that cannot be done must not be forgotten: it is tried again, or its run is parked.
        return chosen if chosen is None or isinstance(chosen, RetryLater) else ParkRun(choice.why)
    if fault.path is None and isinstance(chosen, ApplyRuling | GiveUp):
        return None  # nobody knows which step it was
    if isinstance(chosen, ParkRun):
        return _park(fault, chosen.why)
    if chosen is not None:
        return chosen
    known = fact_types({name: one.type for name, one in sources.declared.items()})
    computed = [source for one in exlet.steps for source in primitives.expressions(one).values()]
    named = {name for source in computed for name in names(source, known)}
    return CarryOutExlet(exlet, dict(found.gather(named)), choice.why)


def _park(fault: Fault, why: str) -> ParkRun | ApplyRuling:
    """Park the run; if its worker was lost in a step, through its owner, so that the step's undo is owed."""
    if fault.rule_type == RuleType.ABORT:
        return ApplyRuling(Ruling(RulingAction.PARK, why=why), FaultState.FINAL, why)
    return ParkRun(why)


#: Built-in exlets, and the route by which aft itself would do the same.
_SAME: dict[str, type] = {"ladder": RetryLater, "unwind": GiveUp, "park": ParkRun}


def route_of_primitive(fault: Fault, primitive: primitives.Primitive, why: str) -> ImmediateRoute | None:
    """Return the route of one primitive that decides; None if it needs a plan, which knows the run."""
    match primitive:
        case primitives.Retry():
            return retry_route(fault, primitive, why)
        case primitives.Unwind(to=None):
            return GiveUp(why)
        case primitives.Park(reason=reason):
            return ParkRun(reason)
        case primitives.Complete(computed=None, result=result):
            return ApplyRuling(Ruling(RulingAction.COMPLETE, result=(result,)), FaultState.FINAL, why)
        case primitives.Fail(proceed=proceed, message=message):
            return ApplyRuling(
                Ruling(RulingAction.PROCEED if proceed else RulingAction.FAIL, why=message), FaultState.FINAL, why
            )
        case primitives.Continue():
            return ApplyRuling(Ruling(RulingAction.GO), FaultState.WAITING, why)
        case primitives.Unwind() | primitives.Complete() | primitives.Restart() | primitives.Remove():
            return None
        case primitives.Suspend() | primitives.Notify() | primitives.Set():
            return None
        case _:
            assert_never(primitive)


def retry_route(fault: Fault, primitive: primitives.Retry, why: str) -> RetryLater | GiveUp | ParkRun:
    """Return the RetryLater of an exlet's retry: by the fault's ladder or the primitive's, within its number of tries.

    A wait without a ladder has no such limit: it is repeated while its rule applies.
    """
    if primitive.level is None and primitive.ladder is None:
        if primitive.after is not None:
            return RetryLater(durations.parse(primitive.after), why, declared=False)
        if fault.kind is FaultKind.ABORT:
            return RetryLater(timedelta(0), why)
    try:
        ladder = Ladder.parse(primitive.ladder) if primitive.ladder else read_ladder(fault.ladder)
    except (ValueError, RecursionError) as error:
        # A row that somebody edited by hand, of the fault or of the exlet: nothing is undone for that.
        return ParkRun(f"{why}; its ladder cannot be climbed: {error}; decide by hand, then retry")
    spent = fault.attempt > ladder.total_tries
    if primitive.level is not None and primitive.level <= len(ladder.levels) and not spent:
        level = ladder.levels[primitive.level - 1]
        return _longer(RetryLater(level.wait, why, primitive.level, fault.attempt), primitive)
    position = ladder.position_after(max(1, fault.attempt))
    if position is None or primitive.level is not None:
        return _exhausted(fault, why)
    return _longer(RetryLater(position.wait, why, position.level, position.attempt_in_level), primitive)


def _longer(chosen: RetryLater, primitive: primitives.Retry) -> RetryLater:
    least = durations.parse(primitive.after) if primitive.after is not None else timedelta(0)
    if chosen.wait is not None and chosen.wait < least:
        return replace(chosen, wait=least, declared=False)
    return chosen


def _exhausted(fault: Fault, why: str) -> GiveUp | ParkRun:
    why = f"{why}; no level is left after {fault.attempt} failures"
    return ParkRun(why) if fault.kind is FaultKind.COMPENSATOR else GiveUp(why)


def _level(default: Route) -> int:
    """Return the level that aft's own decision puts a fault on; 0 if none."""
    return default.level or 0 if isinstance(default, RetryLater) else 0
