"""Executes one step: calls its function, records the outcome or raises the fault.

An activity goes forward (``steps.activity_step``), a compensator backward (``steps.unwind``). Both take the same way:
begun, tried (``steps.attempt``), recorded; or failed, described as a fault, left to the dispatcher. They differ in what
is recorded, and in the status that a fault gives the run.

Who may run at the same time: the thread that executes the step; and, for a function that was given up, the thread that
it runs on, which calls nothing but ``keep_late``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, TypeGuard

from aft.errors import CodecError, ResourceUnavailable, is_a
from aft.fault import FaultKind, FaultState
from aft.flows.declare.context import Current
from aft.flows.declare.policy import Policy
from aft.flows.declare.probe import ProbeCall
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.session.blocks import Blocked, ParkNeeded, ReleaseNeeded
from aft.flows.steps.run_session import RunSession
from aft.ids import StepPath
from aft.rules.cases import step_snapshot
from aft.rules.cases.case import StepFacts
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import RuleChoice
from aft.runs.ownership.owner_writes import Recording, Then
from aft.runs.states import Status
from aft.telemetry import AttemptStarted

#: Characters of a step's arguments that its faults keep for rules.
MOST_STORED = 20_000
#: Positional and named arguments.
Given = tuple[tuple[Any, ...], dict[str, Any]]


class Raised(Exception):
    """Raised when the user's function raised ``error``."""

    def __init__(self, error: BaseException, on: RuleType | None = None) -> None:
        super().__init__(type(error).__name__)
        self.error = error
        #: Its rule type, if that does not follow from the exception itself.
        self.on = on


class RuleObjected(Exception):
    """Raised when the rules object to an attempt that is under way; it is given up."""

    def __init__(self, decision: RuleChoice) -> None:
        super().__init__(decision.why)
        self.decision = decision


class Step(ABC):
    """One step of one run, executed once: ``begin`` it, then try it in ``reporting``."""

    kind: ClassVar[FaultKind]
    #: The run's status after a fault; None: unchanged.
    status: Status | None = Status.RECOVERING
    #: Finds out whether an earlier try had its effect. Called before the first try only if it
    #: ``may_have_had_effect``, before each immediate retry always.
    probe: ProbeCall | None = None
    may_have_had_effect: bool = False
    #: Finds the keyword ``result`` of a compensator whose activity was not seen to end.
    result_probe: ProbeCall | None = None
    #: Asks the rules while an attempt is under way; None: there are none.
    watch: Callable[[], RuleChoice | None] | None = None
    #: Whether its record was held back.
    is_held: bool = False
    #: Its arguments, as they are stored; rules may look at them.
    stored: str | None = None

    def __init__(self, session: RunSession, path: StepPath, name: str, policy: Policy, fn: Callable[..., Any]) -> None:
        self.session = session
        self.owner = session.owner
        self.path = path
        self.name = name
        self.policy = policy
        self.fn = fn
        self._states = session.step_states
        self._deps = session.deps

    def begin(self, generation: int) -> None:
        """Decode the arguments for the first try, which has the keys of this generation. Raises CodecError."""
        #: The generation of its keys, also for what arrives late: the step may have been undone and restarted by then.
        self.generation = generation
        self.key = self.session.key(self.path, generation)
        self.failed = self._states.failures(self.path)
        self.immediate = self._deps.immediate_of(self.policy)
        self.args, self.kwargs = self.arguments()

    def begin_again(self) -> None:
        """Decode the arguments again for the next try: the function may have changed those that it got."""
        self.args, self.kwargs = self.arguments()

    def current(self, again: int) -> Current:
        """Return the value of ``aft.current()`` in an attempt: the first, or the immediate retry with this number."""
        number = self.failed * (self.immediate + 1) + 1 + again
        return Current(self.owner.run_id, self.key, number, self.owner.epoch, self.name)

    @property
    def what(self) -> str:
        return f"{self.kind.value} {self.name!r}"

    # What the kinds of steps differ in ------------------------------------------------------------------------------

    @abstractmethod
    def arguments(self) -> Given:
        """Decode the arguments of one try."""

    @abstractmethod
    def record(self, value: Any) -> Recording | Then:
        """Encode the value of the function; return what writes it in the owner's transaction. Raises CodecError."""

    @abstractmethod
    def recorded(self) -> None:
        """Called after the record's commit, or when it is held back; before any other write of the run."""

    def may_hold(self, recording: Recording | Then) -> TypeGuard[Recording]:
        """Return whether the record may be held back, to share the commit of the run's end."""
        return False

    def hold(self, recording: Recording, refused: Callable[[], None]) -> None:
        """Hold the record back; ``refused`` is called if it could not be written, or had no answer."""
        raise NotImplementedError

    @abstractmethod
    def keep_late(self, value: Any, *, refused: bool = False) -> None:
        """Keep a value that came too late or may not be recorded, so that its effect is undone.

        The function was given up, the run has another owner by now, or the database is unreachable for too long.
        ``refused``: the record was refused, or had no answer.
        """

    # What becomes of it ---------------------------------------------------------------------------------------------

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Try this step inside the block: a failure becomes a fault, and Blocked is raised with it."""
        if self._deps.telemetry.has_subscribers:
            number = self.current(0).attempt
            self._deps.telemetry.emit(
                AttemptStarted(run=self.owner.run_id, path=self.path, activity=self.name, attempt=number)
            )
        began = self._deps.clock.ticks()
        try:
            with self._deps.slow_activities.watched(self.owner.run_id, self.path, self.name, self.policy.expected):
                yield
        except Raised as raised:
            self._fail(raised.error, raised.on, self._deps.clock.ticks() - began)
        except RuleObjected as objected:
            self._violate(objected.decision)
        except CodecError as error:
            if self.policy.transactional:
                self._fail(error)
            self._park(error)
        except Blocked as leave:
            if any(isinstance(block, ReleaseNeeded) and block.outcome_unknown for block in leave.blocks):
                self._states.note_unknown(self.path)
            raise
        self._states.note_recorded(self.path)

    def _fail(self, error: BaseException, on: RuleType | None = None, elapsed: float | None = None) -> NoReturn:
        ladder, before = self._deps.ladder_of(self.policy), self._states.fault(self.path)
        fault = failures.make_fault(error, self._site(), self.policy, ladder, self._deps.clock.now())
        rule_type = on or (RuleType.UNAVAILABLE if is_a(error, ResourceUnavailable) else None)
        # What is large is not copied with every try: rules see no arguments then.
        stored = self.stored if len(self.stored or "") <= MOST_STORED else None
        facts = StepFacts(self.name, stored, elapsed=elapsed)
        snapshot = step_snapshot.encode(facts, before, abreast=self.session.concurrency_of(self.path))
        fault = replace(fault, rule_type=None if rule_type is None else rule_type.value, step_snapshot=snapshot)
        self.session.fail(self.path, fault, self.status)

    def _violate(self, decision: RuleChoice) -> NoReturn:
        """Raise Blocked with the fault of an attempt that the rules objected to."""
        facts, before = StepFacts(self.name, self.stored, None, self.failed), self._states.fault(self.path)
        ladder = self._deps.ladder_of(self.policy)
        fault = self.session.constraints.make_fault(RuleType.VIOLATED, decision, self.path, facts, before, ladder)
        self.session.fail(self.path, fault, self.status)

    def _park(self, error: CodecError) -> NoReturn:
        """Park after an effect whose result cannot be stored: undoing it may need that result."""
        now = self._deps.clock.now()
        fault = failures.make_fault(error, self._site(), self.policy, self._deps.ladder, now, state=FaultState.PARKED)
        reason = (
            f"{self.what} (step {self.path}) returned what cannot be stored: {error}; "
            "after the fix, retry executes it again under the same key"
        )
        replaced, spent = self._states.replaced(self.path), self._states.take_consumed_signal(self.path)
        self._states.note_known(self.path)
        raise Blocked(ParkNeeded(reason, fault, replaced, answers=spent))

    def _site(self) -> FaultSite:
        failed = self._states.failures(self.path)
        return FaultSite(self.owner.run_id, self.owner.epoch, self.path, self.kind, self.name, failed)
