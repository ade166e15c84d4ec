"""Executing one step for its run's owner: an activity forward, or a compensator backward.

Both read alike: started, performed, recorded; or failed, described, left to the dispatcher. They differ in what their
record holds, and in the state that a fault leaves the run in.

Who may run at the same time: the branches of one run, each on a thread of its own. What they write is put in order by
the owner, what they know of each other is in ``flows.standing``. A branch that fails beside others records its fault at
once: if the process dies while the others are at work, its failure was counted. The run is let go by nobody here: a
step that cannot go on raises ``Leave``, and the runner lets go when all have come to rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.registry import UNKNOWN, Compensator
from aft.compensation.stack import Frame, FrameState
from aft.errors import CodecError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures, writing
from aft.flows.activity import Activity, compensator_policy, compensator_question
from aft.flows.asks import Landed
from aft.flows.attempt import Attempt, Performer, Raised
from aft.flows.context import Current
from aft.flows.failures import Place
from aft.flows.lateness import keep_late
from aft.flows.leaving import GivesBack, Leave, Parks
from aft.flows.mailbox import Mailbox
from aft.flows.policy import Policy
from aft.flows.probe import Question
from aft.flows.standing import Standing
from aft.flows.tools import Tools
from aft.ids import StepPath
from aft.runs import journal
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.owner import MOST_SHARED_DEATHS, Owner
from aft.runs.states import Status
from aft.telemetry import ActivityRecorded, AttemptStarted, FrameCompensated

#: Encodes a value and returns what writes it in the owner's transaction.
Record = Callable[[Any], Callable[[Connection, int], None]]


@dataclass(frozen=True, slots=True)
class Step:
    """A function to be executed for a run; ``status`` is what a fault makes of the run, None: no change.

    ``probe`` tells whether it was already; ``result_probe`` finds the result that a compensator asks for.
    """

    kind: FaultKind
    path: StepPath
    name: str
    policy: Policy
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    status: Status | None
    probe: Question | None = None
    doubtful: bool = False
    result_probe: Question | None = None
    generation: int | None = None


class Stepper:
    """Executes the steps of one run; the run's live faults tell how often each has failed. Thread-safe."""

    def __init__(self, tools: Tools, owner: Owner, performer: Performer, wake: str | None = None) -> None:
        self.tools = tools
        self.owner = owner
        self.performer = performer
        self.mailbox = Mailbox(owner)
        self.standing = Standing(owner, self.mailbox, wake)
        #: How many calls each parallel step has, by its path.
        self.widths: dict[str, int] = {}
        #: The failure that the run is being undone for, once that is known.
        self.cause: Fault | None = None

    def key(self, path: str, generation: int | None = None) -> str:
        """The idempotency key of a step: the same for every attempt, and for nothing else."""
        current = self.owner.run.key_generation
        return f"{self.owner.run_id}/{current if generation is None else generation}/{path}"

    def check_may_go_on(self) -> None:
        """Leave at a step's boundary if this process is stopping, or needed for a run that must be alone."""
        was_solitary = self.owner.run.deaths >= MOST_SHARED_DEATHS
        for asked, why in (
            (self.tools.draining.is_set(), "this process is stopping"),
            (self.tools.making_room.is_set(), "this process is needed for a run that must be executed alone"),
            (was_solitary and not self.owner.solitary, "it got on, and need not be executed alone any more"),
        ):
            if asked:
                raise Leave(GivesBack(why, doubt=self.standing.in_doubt))
        self.mailbox.look()

    # Forward ----------------------------------------------------------------------------------------------------

    def execute(
        self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str, landed: Landed | None = None
    ) -> Entry:
        """Execute an activity and return its recorded outcome, or leave with a fault.

        ``landed`` hears of the outcome when it is committed, before that of any other step is.
        """
        self.check_may_go_on()
        self.standing.check_ladder(path, Status.RECOVERING)
        doubtful = self.standing.is_doubtful(path)
        self._arm(activity, path, scope, args)
        recorded: list[Entry] = []
        started = self.tools.clock.ticks()

        def record(value: Any) -> Callable[[Connection, int], None]:
            entry = self._entry(activity, path, scope, args, activity.result.encode(value, "result"))

            def write(connection: Connection, seq: int) -> None:
                recorded[:] = [replace(entry, seq=seq)]
                self._record(connection, seq, activity, entry)

            return write

        positional, named = activity.arguments.call_arguments(activity.arguments.decode(args))
        step = Step(
            FaultKind.ACTIVITY,
            path,
            activity.name,
            activity.policy,
            activity.fn,
            positional,
            named,
            Status.RECOVERING,
            probe=activity.question(args, self.key(path)),
            doubtful=doubtful,
        )
        late = partial(keep_late, self.tools, self.owner, activity, path, scope, self.key(path), args)
        self._perform(step, record, late, None if landed is None else lambda: landed(recorded[0]))
        self.tools.telemetry.emit(
            ActivityRecorded(
                run=self.owner.run_id,
                path=path,
                activity=activity.name,
                outcome=Outcome.OK.value,
                frame=activity.compensator.name if activity.compensator else None,
                elapsed=timedelta(seconds=self.tools.clock.ticks() - started),
            )
        )
        return recorded[0]

    def record_failure(
        self,
        activity: Activity[Any, Any],
        path: StepPath,
        scope: str,
        args: str,
        fault: Fault,
        landed: Landed | None = None,
    ) -> Entry:
        """Journal that a step failed for good; from now on a replay raises it at its call site."""
        entry = Entry(
            path,
            scope,
            EntryKind.ACTIVITY,
            activity.name,
            Outcome.FAILED,
            self.tools.clock.now(),
            fault.attempt,
            args=args,
            fault_id=fault.id,
            key_generation=self.owner.run.key_generation,
        )
        return self.record(entry, landed=landed)

    def record(
        self,
        entry: Entry,
        then: Callable[[Connection, int], None] | None = None,
        landed: Landed | None = None,
        **changes: Any,
    ) -> Entry:
        """Journal an outcome, and do ``then`` in the same transaction; returns it with its place in the order."""
        recorded: list[Entry] = []

        def write(connection: Connection, seq: int) -> None:
            recorded[:] = [replace(entry, seq=seq)]
            self._append(connection, seq, entry)
            if then is not None:
                then(connection, seq)

        self.owner.write(write, None if landed is None else lambda: landed(recorded[0]), **changes)
        self.owner.forget_wait(entry.path)
        return recorded[0]

    def record_undone(self, path: StepPath, scope: str, name: str) -> None:
        """Journal that a savepoint's frames were unwound."""
        self.record(Entry(path, scope, EntryKind.SAVEPOINT, name, Outcome.UNDONE, self.tools.clock.now()))

    def _arm(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str) -> None:
        """Push the frame of an activity whose undo is owed once it was started, with a commit of its own."""
        undo = activity.compensator
        if undo is None or not activity.arms or path in self.standing.armed:
            return
        self.owner.write(
            lambda connection, seq: stack.push(
                connection,
                self.owner.run_id,
                seq,
                path,
                scope,
                activity.name,
                undo.name,
                at=self.tools.clock.now(),
                state=FrameState.ARMED,
                key_generation=self.owner.run.key_generation,
                args=args,
            )
        )
        self.standing.armed.add(path)

    def _entry(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str, value: str) -> Entry:
        return Entry(
            path=path,
            scope=scope,
            kind=EntryKind.ACTIVITY,
            name=activity.name,
            outcome=Outcome.OK,
            recorded_at=self.tools.clock.now(),
            attempts=self.standing.failures(path) + 1,
            args=args,
            value=value,
            key_generation=self.owner.run.key_generation,
        )

    def _record(self, connection: Connection, seq: int, activity: Activity[Any, Any], entry: Entry) -> None:
        self._append(connection, seq, entry)
        undo = activity.compensator
        if undo is None or not activity.owes(entry.args or "{}", entry.value or "null"):
            return
        if entry.path in self.standing.armed:
            stack.complete(connection, self.owner.run_id, entry.path, seq)
            return
        stack.push(
            connection,
            self.owner.run_id,
            seq,
            entry.path,
            entry.scope,
            activity.name,
            undo.name,
            at=entry.recorded_at,
            key_generation=entry.key_generation,
        )

    def _append(self, connection: Connection, seq: int, entry: Entry) -> None:
        entry = replace(entry, beside=self.widths.get(entry.scope))
        journal.append(connection, self.owner.run_id, self.owner.epoch, seq, entry)
        state = FaultState.RESOLVED if entry.outcome is Outcome.OK else FaultState.FINAL
        self.standing.settle(connection, entry.path, state)

    # Backward ---------------------------------------------------------------------------------------------------

    def undo(
        self,
        frame: Frame,
        activity: Activity[Any, Any],
        compensator: Compensator,
        cause: Fault | None,
        status: Status | None,
    ) -> None:
        """Run a frame's compensator and take the frame off, or leave with a fault; ``status`` is the run's then."""
        self.check_may_go_on()
        path = StepPath(f"{frame.path}/undo")
        self.standing.check_ladder(path, status)
        offered = activity.arguments.decode(frame.args or "{}")
        offered["result"] = UNKNOWN if frame.value is None else activity.result.decode(frame.value)
        offered["fault"] = cause
        offered["key"] = self.key(path, frame.key_generation)

        def settle(connection: Connection, seq: int) -> None:
            stack.settle(connection, self.owner.run_id, frame.seq, FrameState.UNDONE)
            self.standing.settle(connection, path, FaultState.RESOLVED)
            self.standing.armed.discard(frame.path)

        wanted = compensator.arguments(offered)
        policy = compensator_policy(activity, compensator)
        step = Step(
            FaultKind.COMPENSATOR,
            path,
            compensator.name,
            policy,
            compensator.fn,
            (),
            wanted,
            status,
            probe=compensator_question(compensator, policy, wanted, self.key(path, frame.key_generation)),
            generation=frame.key_generation,
            doubtful=self.standing.is_doubtful(path),
            result_probe=self._question_about(frame, activity) if "result" in wanted else None,
        )
        # One that was given up and returns after all has undone it; the retry does so again under the same key.
        with self.standing.branch():
            self._perform(step, lambda value: settle, lambda value: None)
        self.tools.telemetry.emit(
            FrameCompensated(
                run=self.owner.run_id, path=frame.path, activity=frame.activity, compensator=frame.compensator
            )
        )

    def _question_about(self, frame: Frame, activity: Activity[Any, Any]) -> Question | None:
        """What the probe of a started activity is asked, so that its compensator may learn the result."""
        if frame.state is not FrameState.ARMED:
            return None
        return activity.question(frame.args or "{}", self.key(frame.path, frame.key_generation))

    # Both -------------------------------------------------------------------------------------------------------

    def _perform(
        self, step: Step, record: Record, late: Callable[[Any], None], recorded: Callable[[], None] | None = None
    ) -> None:
        failed, immediate = self.standing.failures(step.path), self.tools.immediate_of(step.policy)
        current = Current(
            run_id=self.owner.run_id,
            key=self.key(step.path, step.generation),
            attempt=failed * (immediate + 1) + 1,
            epoch=self.owner.epoch,
            activity=step.name,
        )
        self.tools.telemetry.emit(
            AttemptStarted(run=self.owner.run_id, path=step.path, activity=step.name, attempt=current.attempt)
        )
        attempt = Attempt(
            owner=self.owner,
            what=f"{step.kind.value} {step.name!r}",
            current=current,
            policy=step.policy,
            immediate=immediate,
            fn=step.fn,
            args=step.args,
            kwargs=step.kwargs,
            record=record,
            late=late,
            recorded=recorded,
            probe=step.probe,
            doubtful=step.doubtful,
            result_probe=step.result_probe,
        )
        try:
            with self.tools.attempts.watched(self.owner.run_id, step.path, step.name, step.policy.expected):
                self.performer.perform(attempt)
        except Raised as raised:
            self._fail(step, raised.error)
        except CodecError as error:
            if step.policy.transactional:
                self._fail(step, error)
            self._park(step, error)
        self.standing.passed(step.path)

    def _fail(self, step: Step, error: BaseException) -> NoReturn:
        fault = failures.describe(
            error, self._place(step), step.policy, self.tools.ladder_of(step.policy), self.tools.clock.now()
        )
        failed, alone = self.standing.failed(step.path, fault, step.status)
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
        raise Leave(Parks(reason, fault, self.standing.replaced(step.path)))

    def _place(self, step: Step) -> Place:
        return Place(
            self.owner.run_id, self.owner.epoch, step.path, step.kind, step.name, self.standing.failures(step.path)
        )
