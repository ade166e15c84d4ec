"""What becomes of a fault, by the rules: which type of exception it is, what they choose, and what that means.

Where nobody has taught anything about a fault, aft's own verdict holds and nothing is gathered. Needs none of the
user's code, but for the sources that this process has declared. Reads only; never inside a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from aft import durations
from aft.dispatcher.classify import classify
from aft.dispatcher.route import Carry, GiveUp, ParkRun, RetryLater, Route, Rule, Settled, route
from aft.fault import Fault, FaultKind, FaultState
from aft.recovery.knowledge import Expectation
from aft.recovery.levels import Ladder, read_ladder
from aft.rules import asking, case, history, kept, primitives, sources
from aft.rules.asking import ANY, RuleChoice
from aft.rules.book import Book, Rules
from aft.rules.case import Case, StepFacts
from aft.rules.conditions import names
from aft.rules.exlets import Exlet
from aft.rules.facts import kinds
from aft.rules.kinds import On
from aft.runs.rows import RunRow
from aft.runs.rulings import Do, Ruling
from aft.store import Store


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a fault; ``decision`` None: nobody was asked, aft's own verdict holds."""

    route: Route
    decision: RuleChoice | None = None


def types_of(fault: Fault) -> Sequence[On]:
    """The types of exception whose rules are asked about a fault, the more special first."""
    if fault.kind is FaultKind.ABORT:
        return (On.ABORT,)
    if fault.exception is None:
        return (On.FAULT,)
    if fault.kind is FaultKind.CONSTRAINT:
        return (On(fault.exception),)
    return (On(fault.exception), On.FAULT)


def activity_of(fault: Fault) -> str:
    """The activity that a fault's rules are about; none where nobody knows which one it was."""
    return "" if fault.kind is FaultKind.ABORT else fault.name


class Judge:
    """Judges faults. Thread-safe."""

    def __init__(self, namespace: str, store: Store, book: Book) -> None:
        self._namespace = namespace
        self._store = store
        self._book = book

    def is_taught(self, fault: Fault, flow: str) -> bool:
        """Whether rules have a say in it: then its run must be looked at."""
        if fault.kind is FaultKind.CONSTRAINT:
            return True
        if fault.ruling is not None:
            return False  # an exlet was carried out for it and has left the decision to us
        rules = self._book.current()
        if fault.exception == On.TIMEOUT and On.TIMEOUT in rules.taught:
            return True  # they may be about what is beside it
        return any(rules.is_taught(on, flow, activity_of(fault)) for on in types_of(fault))

    def judge(self, fault: Fault, run: RunRow | None = None) -> Judgement:
        """Decide about a fault; without its run nobody is asked."""
        rules = self._book.current()
        verdict = classify(fault)
        default: Route = route(fault, verdict)
        if fault.kind is FaultKind.CONSTRAINT:
            default = ParkRun(f"{fault.message}; but there is no such exlet any more: decide by hand, then retry")
        if run is None:
            return Judgement(default)
        found = self.case_of(fault, run, verdict, default)
        decision = self._decision(rules, fault, run, found)
        if decision is None:
            return Judgement(default)
        # A worker may have seen rules that have come just now.
        exlet = rules.exlets.get(decision.exlet) or self._book.look_again().exlets.get(decision.exlet)
        chosen = None if exlet is None else choose(fault, exlet, decision, found, default)
        if chosen is None:
            why = f"exlet {decision.exlet!r} cannot answer it; aft's own verdict holds"
            return Judgement(default, replace(decision, warnings=[*decision.warnings, why]))
        return Judgement(chosen, decision)

    def judge_beside(self, fault: Fault, run: RunRow, late: str) -> Judgement | None:
        """What rules that name its activity make of a fault because ``late``, beside it, is out of time; or None."""
        rules = self._book.current()
        trees = [tree for tree in rules.find(On.TIMEOUT, run.flow, fault.name) if tree.tree.activity != ANY]
        verdict = classify(fault)
        default = route(fault, verdict)
        found = self.case_of(fault, run, verdict, default)
        found.facts["timeout.activity"] = late
        decision = asking.ask(trees, On.TIMEOUT, found)
        exlet = None if decision is None else rules.exlets.get(decision.exlet)
        if decision is None or exlet is None:
            return None
        chosen = choose(fault, exlet, decision, found, default)
        return None if chosen is None else Judgement(chosen, decision)

    def _decision(self, rules: Rules, fault: Fault, run: RunRow, found: Case) -> RuleChoice | None:
        """What the rules choose for a fault; of a constraint they were asked where it was found violated."""
        if fault.kind is FaultKind.CONSTRAINT:
            try:
                return RuleChoice.decode(fault.decision or "")
            except ValueError:
                return None
        for on in types_of(fault):
            decision = asking.ask(rules.find(on, run.flow, activity_of(fault)), on, found)
            if decision is not None:
                return decision
        return None

    def case_of(self, fault: Fault, run: RunRow, verdict: Expectation, default: Route) -> Case:
        """The facts about a fault, as they were when it was raised."""
        had, failed = kept.read(fault), kept.failures(fault)
        step = StepFacts(activity_of(fault), had.args, had.result, failed, _level(default), had.elapsed)
        exhausted = verdict.recoverable and not isinstance(default, RetryLater)
        facts: dict[str, Any] = {
            **case.of_run(run, fault.raised_at),
            **case.of_step(step),
            **case.of_fault(fault, recoverable=verdict.recoverable, exhausted=exhausted),
            "timeout.activity": fault.name if fault.exception == On.TIMEOUT else "",
        }

        def gather_history(wanted: frozenset[str]) -> dict[str, Any]:
            given = (self._namespace, fault.name, fault.type, fault.raised_at, wanted)
            with self._store.read() as connection:
                return history.of_signature(connection, *given)

        return Case(facts, {"history": gather_history, "source": sources.ask_named})


def choose(fault: Fault, exlet: Exlet, decision: RuleChoice, found: Case, default: Route) -> Route | None:
    """What an exlet means for a fault; None: it cannot answer one of this kind."""
    if isinstance(default, _SAME.get(exlet.name, ())):
        # Which knows more: what the exception asked for, whether it must be alone.
        return _park(fault, fault.message) if fault.kind is FaultKind.CONSTRAINT else default
    chosen = plain_route(fault, exlet.steps[0], decision.why) if exlet.is_plain else None
    if fault.kind is FaultKind.COMPENSATOR:
        # An undo that cannot be done must not be forgotten: it is tried again, or a person looks.
        return chosen if chosen is None or isinstance(chosen, RetryLater) else ParkRun(decision.why)
    if fault.path is None and isinstance(chosen, Rule | GiveUp):
        return None  # nobody knows which step it was
    if isinstance(chosen, ParkRun):
        return _park(fault, chosen.why)
    if chosen is not None:
        return chosen
    known = kinds({name: one.type for name, one in sources.declared.items()})
    computed = [source for one in exlet.steps for source in primitives.expressions(one).values()]
    named = {name for source in computed for name in names(source, known)}
    return Carry(exlet, dict(found.learn(named)), decision.why)


def _park(fault: Fault, why: str) -> ParkRun | Rule:
    """Let a person look; where a worker was lost in a step its owner parks the run, so that the step's undo is owed."""
    if fault.exception == On.ABORT:
        return Rule(Ruling(Do.PARK, why=why), FaultState.FINAL, why)
    return ParkRun(why)


#: What is built in, where aft itself would do the same.
_SAME: dict[str, type] = {"ladder": RetryLater, "unwind": GiveUp, "park": ParkRun}


def plain_route(fault: Fault, primitive: primitives.Primitive, why: str) -> Settled | None:
    """What becomes of a fault by one primitive that decides; None: a plan must do it, which knows the run."""
    match primitive:
        case primitives.Retry():
            return retry_route(fault, primitive, why)
        case primitives.Unwind(to=None):
            return GiveUp(why)
        case primitives.Park(reason=reason):
            return ParkRun(reason)
        case primitives.Complete(computed=None, result=result):
            return Rule(Ruling(Do.COMPLETE, result=(result,)), FaultState.FINAL, why)
        case primitives.Fail(proceed=proceed, message=message):
            return Rule(Ruling(Do.PROCEED if proceed else Do.FAIL, why=message), FaultState.FINAL, why)
        case primitives.Continue():
            return Rule(Ruling(Do.GO), FaultState.WAITING, why)
    return None


def retry_route(fault: Fault, primitive: primitives.Retry, why: str) -> RetryLater | GiveUp | ParkRun:
    """When a fault is tried again: where its ladder, or another, says, and never more often than that allows.

    A wait without a ladder is for as often as its rule holds.
    """
    if primitive.level is None and primitive.ladder is None:
        if primitive.after is not None:
            return RetryLater(durations.parse(primitive.after), why, declared=False)
        if fault.kind is FaultKind.ABORT:
            return RetryLater(timedelta(0), why)
    try:
        ladder = Ladder.parse(primitive.ladder) if primitive.ladder else read_ladder(fault.ladder)
    except (ValueError, RecursionError):
        return _exhausted(fault, why)
    spent = fault.attempt > ladder.total_tries
    if primitive.level is not None and primitive.level <= len(ladder.levels) and not spent:
        level = ladder.levels[primitive.level - 1]
        return _longer(RetryLater(level.wait, why, primitive.level, fault.attempt), primitive)
    rung = ladder.rung(max(1, fault.attempt))
    if rung is None or primitive.level is not None:
        return _exhausted(fault, why)
    return _longer(RetryLater(rung.wait, why, rung.level, rung.attempt_in_level), primitive)


def _longer(chosen: RetryLater, primitive: primitives.Retry) -> RetryLater:
    least = durations.parse(primitive.after) if primitive.after is not None else timedelta(0)
    if chosen.wait is not None and chosen.wait < least:
        return replace(chosen, wait=least, declared=False)
    return chosen


def _exhausted(fault: Fault, why: str) -> GiveUp | ParkRun:
    told = f"{why}; no level is left after {fault.attempt} failures"
    return ParkRun(told) if fault.kind is FaultKind.COMPENSATOR else GiveUp(told)


def _level(default: Route) -> int:
    """The level that a fault would be on by aft's own verdict."""
    return default.level or 0 if isinstance(default, RetryLater) else 0
