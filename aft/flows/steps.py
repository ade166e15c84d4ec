"""Executing one step for its run's owner: an activity forward, or a compensator backward.

Both read alike: started, performed, recorded; or failed, described, left to the dispatcher. They differ in what their
record holds, and in the state that a fault leaves the run in.

Who may run at the same time: the branches of one run, each on a thread of its own. What they write is put in order by
the owner, what they know of each other is in ``flows.standing``. A branch that fails beside others records its fault at
once: if the process dies while the others are at work, its failure was counted. The run is let go by nobody here: a
step that cannot go on raises ``Leave``, and the runner lets go when all have come to rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from aft.errors import CodecError, ReplayDiverged, ResourceUnavailable, is_a
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures, writing
from aft.flows.asks import Landed
from aft.flows.attempt import Attempt, Given, Objected, Performer, Raised
from aft.flows.constraints import Constraints
from aft.flows.context import Current
from aft.flows.course import Course
from aft.flows.failures import FaultSite
from aft.flows.leaving import GivesBack, Leave, Parks
from aft.flows.mailbox import RunInbox
from aft.flows.policy import Policy
from aft.flows.probe import ProbeCall
from aft.flows.standing import Standing
from aft.flows.timed_call import Late
from aft.flows.tools import Tools
from aft.ids import StepPath
from aft.rules import kept
from aft.rules.asking import RuleChoice
from aft.rules.case import StepFacts
from aft.rules.kinds import On
from aft.runs import faults, journal
from aft.runs.deeds import Recording, Write
from aft.runs.journal import RESTARTED, Entry, EntryKind, Outcome
from aft.runs.owner import MOST_SHARED_DEATHS, Owner, Then
from aft.runs.states import Status
from aft.store.spelling import Fields
from aft.telemetry import AttemptStarted

#: Characters of a step's arguments that its faults keep for rules.
MOST_STORED = 20_000
#: Encodes a value and returns what writes it in the owner's transaction.
Record = Callable[[Any], Then]


@dataclass(slots=True)
class Step:
    """A function to be executed for a run; ``status`` is what a fault makes of the run, None: no change.

    ``probe`` tells whether it was already; ``result_probe`` finds the result that a compensator asks for.
    """

    kind: FaultKind
    path: StepPath
    name: str
    policy: Policy
    fn: Callable[..., Any]
    #: Makes its arguments anew each time.
    given: Callable[[], Given]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    status: Status | None
    probe: ProbeCall | None = None
    doubtful: bool = False
    result_probe: ProbeCall | None = None
    generation: int | None = None
    #: Its arguments, as they are stored; rules may look at them.
    stored: str | None = None
    #: What the rules are asked while it lasts; None: there are none.
    watch: Callable[[], RuleChoice | None] | None = None


class Stepper:
    """Executes the steps of one run; the run's live faults tell how often each has failed. Thread-safe."""

    def __init__(self, tools: Tools, owner: Owner, performer: Performer, wake: str | None = None) -> None:
        self.tools = tools
        self.owner = owner
        self.performer = performer
        self.mailbox = RunInbox(owner, tools.clock)
        self.standing = Standing(owner, self.mailbox, wake)
        self.constraints = Constraints(tools, owner)
        #: The way that the flow's code has taken in this pass.
        self.course = Course()
        #: Paths of the tasks of an async flow.
        self.branches: set[str] = set()
        #: How many calls each parallel step has, by its path.
        self.widths: dict[str, int] = {}
        #: How many of them are executed at a time, where the code says so.
        self.limits: dict[str, int] = {}
        #: The savepoints that this pass has undone, by their paths, and the failure that each was undone for.
        self.undone: dict[str, Fault | None] = {}
        #: The failure that the run is being undone for, once that is known.
        self.cause: Fault | None = None

    def key(self, path: str, generation: int | None = None) -> str:
        """The idempotency key of a step: the same for every attempt, and for nothing else."""
        return f"{self.owner.run_id}/{self.generation(path) if generation is None else generation}/{path}"

    def generation(self, path: str) -> int:
        """The generation of a step's keys: the run's, and one of its own if it was undone and is begun anew."""
        return self.owner.run.key_generation + self.standing.undone.get(path, 0) * RESTARTED

    def abreast(self, path: StepPath) -> int:
        """How many steps of a step's call are executed at a time; 0: it is called alone, or all are at once."""
        return self.limits.get(path.rpartition(".")[0], 0)

    def find_fault(self, fault_id: str) -> Fault | None:
        """Read one fault, if there is one of this name."""
        (rows,) = self.owner.ask([(faults.NAMED, json.dumps([fault_id]))])
        return next((faults.read(dict(zip(faults.NAMES, values, strict=True))) for values in rows), None)

    def find_failure(self, entry: Entry) -> Exception:
        """Make the exception of a recorded failure, as the flow's code sees it."""
        fault = self.find_fault(entry.fault_id or "")
        if fault is None:
            raise ReplayDiverged(
                f"step {entry.path} failed with fault {entry.fault_id}, which somebody has deleted from the database; "
                "bring it back from a backup and retry, or cancel the run"
            )
        return failures.rebuild(fault)

    def check_may_go_on(self) -> None:
        """Leave at a step's boundary if this process is stopping, or needed for a run that must be alone.

        One that is executed alone itself makes no room: two of them would evict each other for ever.
        """
        why = None
        if self.tools.draining.is_set():
            why = "this process is stopping"
        elif self.tools.making_room.is_set() and not self.owner.solitary:
            why = "this process is needed for a run that must be executed alone"
        elif self.tools.abandoned.is_full:
            why = "this process begins nothing: too many attempts that it gave up have not returned"
        elif self.owner.run.deaths >= MOST_SHARED_DEATHS and not self.owner.solitary:
            why = "it got on, and need not be executed alone any more"
        if why is not None:
            raise Leave(GivesBack(why))
        self.mailbox.look()

    # Recording ----------------------------------------------------------------------------------------------------

    def record(
        self,
        entry: Entry,
        then: Then | None = None,
        landed: Landed | None = None,
        **changes: Any,
    ) -> Entry:
        """Journal an outcome, and do ``then`` in the same transaction; returns it with its place in the order."""
        recorded: list[Entry] = []

        def land() -> None:
            recorded.append(self.numbered(entry))
            if landed is not None:
                landed(recorded[0])

        self.owner.write(self.recording(entry, more=then), land, **changes)
        self.owner.forget_wait(entry.path)
        return recorded[0]

    def numbered(self, entry: Entry) -> Entry:
        """Give an outcome that was written last its place in the order; only while no other can be written."""
        entry.seq = self.owner.seq
        return entry

    def record_undone(self, path: StepPath, scope: str, name: str) -> None:
        """Journal that a savepoint's frames were unwound."""
        at, generation = self.tools.clock.now(), self.owner.run.key_generation
        self.record(Entry(path, scope, EntryKind.SAVEPOINT, name, Outcome.UNDONE, at, key_generation=generation))

    def recording(self, entry: Entry, frame: Fields | None = None, more: Then | None = None) -> Recording:
        """What journals an outcome and settles what stood against its step, with a frame that is owed from then on."""
        state = FaultState.RESOLVED if entry.outcome is Outcome.OK else FaultState.FINAL
        fields = journal.fields(entry, self.owner.epoch, self.widths.get(entry.scope))
        write = Write(entry=fields, frame=frame, settled=self.standing.settled(entry.path, state))
        return Recording(self.owner.run_id, write, self.standing.with_letters(entry.path, more))

    # Performing -----------------------------------------------------------------------------------------------------

    def perform(self, step: Step, record: Record, late: Late, recorded: Callable[[], None] | None = None) -> None:
        """Perform a step and record what came of it, or leave with a fault."""
        began = self.tools.clock.ticks()
        failed = self.standing.failures(step.path)
        attempt = self._attempt(step, failed, record, late, recorded)
        if self.tools.telemetry.hears:
            self.tools.telemetry.emit(
                AttemptStarted(
                    run=self.owner.run_id, path=step.path, activity=step.name, attempt=attempt.current.attempt
                )
            )
        try:
            if step.policy.expected is None:
                self.performer.perform(attempt)
            else:
                with self.tools.attempts.watched(self.owner.run_id, step.path, step.name, step.policy.expected):
                    self.performer.perform(attempt)
        except Raised as raised:
            self._fail(step, raised.error, raised.on, self.tools.clock.ticks() - began)
        except Objected as objected:
            facts, before = StepFacts(step.name, step.stored, None, failed), self.standing.fault(step.path)
            fault = self.constraints.make_fault(
                On.VIOLATED, objected.decision, step.path, facts, before, self.tools.ladder_of(step.policy)
            )
            self.fail(step.path, fault, step.status)
        except CodecError as error:
            if step.policy.transactional:
                self._fail(step, error)
            self._park(step, error)
        except Leave as leave:
            if any(isinstance(block, GivesBack) and block.doubt for block in leave.blocks):
                self.standing.lost_sight(step.path)
            raise
        self.standing.passed(step.path)

    def _attempt(
        self,
        step: Step,
        failed: int,
        record: Record,
        late: Late,
        recorded: Callable[[], None] | None,
    ) -> Attempt:
        immediate = self.tools.immediate_of(step.policy)
        current = Current(
            run_id=self.owner.run_id,
            key=self.key(step.path, step.generation),
            attempt=failed * (immediate + 1) + 1,
            epoch=self.owner.epoch,
            activity=step.name,
        )
        return Attempt(
            owner=self.owner,
            path=step.path,
            what=f"{step.kind.value} {step.name!r}",
            current=current,
            policy=step.policy,
            immediate=immediate,
            fn=step.fn,
            args=step.args,
            kwargs=step.kwargs,
            record=record,
            late=late,
            given=step.given,
            check_may_go_on=self.check_may_go_on,
            recorded=recorded,
            probe=step.probe,
            doubtful=step.doubtful,
            result_probe=step.result_probe,
            watch=step.watch,
        )

    def _fail(self, step: Step, error: BaseException, on: On | None = None, elapsed: float | None = None) -> NoReturn:
        ladder, before = self.tools.ladder_of(step.policy), self.standing.fault(step.path)
        fault = failures.describe(error, self._place(step), step.policy, ladder, self.tools.clock.now())
        exception = on or (On.UNAVAILABLE if is_a(error, ResourceUnavailable) else None)
        # What is large is not copied with every try: rules see no arguments then.
        stored = step.stored if len(step.stored or "") <= MOST_STORED else None
        facts = StepFacts(step.name, stored, elapsed=elapsed)
        of_type = None if exception is None else exception.value
        fault = replace(fault, exception=of_type, step=kept.keep(facts, before, abreast=self.abreast(step.path)))
        self.fail(step.path, fault, step.status)

    def fail(self, path: StepPath, fault: Fault, status: Status | None) -> NoReturn:
        """Leave with a fault; beside others it has its row at once, so that it counts even if this process dies."""
        failed, alone = self.standing.failed(path, fault, status)
        if not alone:
            self.owner.write(lambda connection, seq: writing.write_fault(self.tools, self.owner, connection, failed))
            writing.tell_raised(self.tools, fault)
            failed = self.standing.wrote(failed)
        raise Leave(failed)

    def _park(self, step: Step, error: CodecError) -> NoReturn:
        """Stop where an effect has happened whose result cannot be kept: undoing it may need that result."""
        fault = failures.describe(
            error,
            self._place(step),
            step.policy,
            self.tools.ladder,
            self.tools.clock.now(),
            state=FaultState.PARKED,
        )
        reason = (
            f"{step.kind.value} {step.name!r} (step {step.path}) returned what cannot be stored: {error}; "
            "after the fix, retry executes it again under the same key"
        )
        parks = Parks(reason, fault, self.standing.replaced(step.path), answers=self.standing.spend(step.path))
        self.standing.saw(step.path)
        raise Leave(parks)

    def _place(self, step: Step) -> FaultSite:
        return FaultSite(
            self.owner.run_id, self.owner.epoch, step.path, step.kind, step.name, self.standing.failures(step.path)
        )
