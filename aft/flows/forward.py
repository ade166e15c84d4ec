"""One activity, forward: may it begin, what came of it, is that as it should be, and what is owed now?

A crash before the outcome's commit leaves the step without one: the next owner executes it again, under the same key.
Where the rules object to what came of it, effect and owed undo are recorded, but no outcome: an exlet decides that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.registry import Compensator
from aft.compensation.stack import FrameState
from aft.errors import CodecError
from aft.fault import FaultKind
from aft.flows import constraints, writing
from aft.flows.activity import Activity
from aft.flows.asks import Landed
from aft.flows.attempt import Given
from aft.flows.lateness import keep_late
from aft.flows.leaving import Failed, Leave
from aft.flows.steps import Step, Stepper
from aft.ids import RunId, StepPath
from aft.rules.asking import RuleChoice
from aft.rules.case import StepFacts
from aft.rules.kinds import On
from aft.runs.deeds import Recording, Write
from aft.runs.journal import Entry, EntryKind, Outcome
from aft.runs.owner import Then
from aft.runs.states import Status
from aft.telemetry import ActivityRecorded

#: The generation of keys of what nobody has executed.
NOT_EXECUTED = -1


class Forward:
    """Executes the activities of one run. Thread-safe."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._tools = stepper.tools
        self._owner = stepper.owner
        self._standing = stepper.standing
        self._rules = stepper.constraints

    def execute(
        self,
        activity: Activity[Any, Any],
        path: StepPath,
        scope: str,
        args: str,
        landed: Landed | None = None,
        *,
        asked: str | None = None,
    ) -> Entry:
        """Execute an activity and return its recorded outcome, or leave with a fault.

        ``landed`` hears of the outcome when it is committed, before that of any other step is. ``asked`` are the
        arguments that the flow's code gave: without defaults, and before a rule has changed them.
        """
        self.stepper.check_may_go_on()
        self._standing.check_ladder(path, Status.RECOVERING)
        self._check_before(activity, path, args)
        recorded: list[Entry] = []
        violated: list[Failed] = []
        owed = False
        started = 0.0

        def given() -> Given:
            nonlocal started
            started = self._tools.clock.ticks()
            return activity.arguments.call_arguments(activity.arguments.decode(args))

        step = self._step(activity, path, args, self._standing.is_doubtful(path), given)
        if activity.arms:
            self.arm(activity, path, scope, args)
        started = self._tools.clock.ticks()

        def record(value: Any) -> Then:
            nonlocal owed
            encoded = self._encode(activity, path, scope, args, value)
            violated.clear()
            if (failed := self._check_after(activity, path, args, encoded, started)) is not None:
                violated[:] = [failed]
                owed = activity.owes(args, encoded)
                return partial(
                    self._hold, activity=activity, scope=scope, args=args, value=encoded, failed=failed, owed=owed
                )
            recorded[:] = [self._entry(activity, path, scope, args, encoded, asked)]
            return self._recording(activity, recorded[0])

        def land() -> None:
            self._standing.armed.discard(path)
            if violated:
                if owed:
                    # Now that its frame is there: what becomes of the step, the undo is owed.
                    self._standing.armed.add(path)
                self._standing.fell(violated[0])
                writing.tell_raised(self._tools, violated[0].fault)
                raise Leave(self._standing.wrote(violated[0]))
            recorded[:] = [self.stepper.numbered(recorded[0])]
            if landed is not None:
                landed(recorded[0])

        late = partial(keep_late, self._tools, self._owner, activity, path, scope, self.stepper.generation(path), args)
        self.stepper.perform(step, record, late, land)
        self._tell_recorded(activity, path, self._tools.clock.ticks() - started)
        return recorded[0]

    def _step(
        self, activity: Activity[Any, Any], path: StepPath, args: str, doubtful: bool, given: Callable[[], Given]
    ) -> Step:
        return Step(
            FaultKind.ACTIVITY,
            path,
            activity.name,
            activity.policy,
            activity.fn,
            given,
            *given(),
            Status.RECOVERING,
            probe=activity.question(args, self.stepper.key(path)),
            doubtful=doubtful,
            stored=args,
            watch=self._watch(activity, path, args),
        )

    def _tell_recorded(self, activity: Activity[Any, Any], path: StepPath, seconds: float) -> None:
        if not self._tools.telemetry.hears:
            return
        self._tools.telemetry.emit(
            ActivityRecorded(
                run=self._owner.run_id,
                path=path,
                activity=activity.name,
                outcome=Outcome.OK.value,
                frame=activity.compensator.name if activity.compensator else None,
                elapsed=timedelta(seconds=seconds),
            )
        )

    # Constraints --------------------------------------------------------------------------------------------------

    def _check_before(self, activity: Activity[Any, Any], path: StepPath, args: str) -> None:
        """Leave if the rules have something against beginning this step; each is asked once, not before each try."""
        standing, before = self._standing, self._standing.fault(path)
        in_doubt = path in standing.doubts
        is_lost = in_doubt and before is None and not standing.doubts.was_tried(path)
        asked = standing.was_begun(path) and not is_lost and not constraints.asks_again(before)
        if standing.turns_back or asked:
            return
        # What an earlier owner may have begun may have had its effect: it is too late to say that it must not begin.
        on = On.ABORT if in_doubt else On.ACTIVITY_PRE
        if not self._rules.any(on, activity.name):
            return
        facts = StepFacts(activity.name, args, None, standing.failures(path))
        if (decision := self._rules.ask(on, facts)) is not None:
            ladder = self._tools.ladder_of(activity.policy)
            fault = self._rules.make_fault(on, decision, path, facts, before, ladder)
            self.stepper.fail(path, fault, Status.RECOVERING)

    def _watch(self, activity: Activity[Any, Any], path: StepPath, args: str) -> Callable[[], RuleChoice | None] | None:
        """What the rules are asked while it lasts; one that works in our transaction cannot be given up."""
        if activity.policy.transactional or not self._rules.any(On.VIOLATED, activity.name):
            return None
        clock, began = self._tools.clock, self._tools.clock.ticks()

        def ask() -> RuleChoice | None:
            failed, elapsed = self._standing.failures(path), clock.ticks() - began
            return self._rules.ask(On.VIOLATED, StepFacts(activity.name, args, None, failed, elapsed=elapsed))

        return ask

    def _check_after(
        self, activity: Activity[Any, Any], path: StepPath, args: str, value: str, started: float
    ) -> Failed | None:
        """What the rules have against a step that has had its effect."""
        if not self._rules.any(On.ACTIVITY_POST, activity.name):
            return None
        elapsed = self._tools.clock.ticks() - started
        facts = StepFacts(activity.name, args, value, self._standing.failures(path), elapsed=elapsed)
        decision = self._rules.ask(On.ACTIVITY_POST, facts)
        if decision is None:
            return None
        before, ladder = self._standing.fault(path), self._tools.ladder_of(activity.policy)
        fault = self._rules.make_fault(On.ACTIVITY_POST, decision, path, facts, before, ladder)
        return self._standing.block(path, fault, Status.RECOVERING)

    def _hold(
        self,
        connection: Connection,
        seq: int,
        *,
        activity: Activity[Any, Any],
        scope: str,
        args: str,
        value: str,
        failed: Failed,
        owed: bool,
    ) -> None:
        """Record that a step had its effect, but not its outcome: an exlet decides that. Its undo is owed already."""
        path, undo = failed.fault.path or StepPath(""), activity.compensator
        writing.write_fault(self._tools, self._owner, connection, failed)
        if path in self._standing.armed and owed:
            stack.learn(connection, self._owner.run_id, path, self.stepper.generation(path), value)
        elif path in self._standing.armed:
            stack.disarm(connection, self._owner.run_id, path, self.stepper.generation(path))
        elif undo is not None and owed:
            frame = self._armed(activity, undo, path, scope, args, value)
            stack.push(connection, self._owner.run_id, seq, frame)

    def record_result(
        self,
        activity: Activity[Any, Any],
        path: StepPath,
        scope: str,
        args: str,
        value: str,
        landed: Landed | None,
        *,
        executed: bool,
        asked: str | None = None,
    ) -> Entry:
        """Journal a result that was not executed for just now; it must be one that the activity could return.

        Its undo is owed if its frame is armed, and only then: a rule may have given the result, which tells nothing
        about the effect. ``executed``: it is an execution's outcome. What is not armed either is no execution's: an
        effect that arrives late is not it.
        """
        checked = activity.result.encode(activity.result.decode(value), "result")
        entry, armed = self._entry(activity, path, scope, args, checked, asked), path in self._standing.armed
        entry = entry if executed or armed else replace(entry, key_generation=NOT_EXECUTED)
        owe = partial(_complete, run_id=self._owner.run_id, entry=entry) if armed else None
        recorded: list[Entry] = []

        def land() -> None:
            self._standing.armed.discard(path)
            recorded.append(self.stepper.numbered(entry))
            if landed is not None:
                landed(recorded[0])

        self._owner.write(self.stepper.recording(entry, more=owe), land)
        self._standing.passed(path)
        self._tell_recorded(activity, path, 0.0)
        return recorded[0]

    # Recording ----------------------------------------------------------------------------------------------------

    def arm(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str) -> None:
        """Push the frame of an activity whose undo is owed whatever its outcome, with a commit of its own."""
        undo = activity.compensator
        if undo is None or path in self._standing.armed:
            return
        frame = self._armed(activity, undo, path, scope, args, None)
        self._owner.write(Recording(self._owner.run_id, Write(frame=frame)))
        self._standing.armed.add(path)

    def _encode(self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str, value: Any) -> str:
        """Encode a result. What cannot be stored was an effect's nevertheless: its undo is owed before this raises."""
        try:
            return activity.result.encode(value, "result")
        except CodecError:
            if not activity.policy.transactional:
                self._owner.write(_nothing)  # if the run is somebody else's by now, the effect is late
                self.arm(activity, path, scope, args)
            raise

    def _armed(
        self,
        activity: Activity[Any, Any],
        undo: Compensator,
        path: StepPath,
        scope: str,
        args: str,
        value: str | None,
    ) -> dict[str, Any]:
        return stack.fields(
            path,
            scope,
            activity.name,
            undo.name,
            at=self._tools.clock.now(),
            state=FrameState.ARMED,
            key_generation=self.stepper.generation(path),
            args=args,
            value=value,
        )

    def _entry(
        self, activity: Activity[Any, Any], path: StepPath, scope: str, args: str, value: str, asked: str | None
    ) -> Entry:
        return Entry(
            path=path,
            scope=scope,
            kind=EntryKind.ACTIVITY,
            name=activity.name,
            outcome=Outcome.OK,
            recorded_at=self._tools.clock.now(),
            attempts=self._standing.failures(path) + 1,
            args=args,
            value=value,
            key_generation=self.stepper.generation(path),
            asked=None if asked == args else asked,
        )

    def _recording(self, activity: Activity[Any, Any], entry: Entry) -> Recording:
        """What records an outcome, and with it the undo that is owed from then on; if none is, none stays armed."""
        undo, armed = activity.compensator, entry.path in self._standing.armed
        owed = activity.owes(entry.args or "{}", entry.value or "null")
        if undo is None or (not owed and not armed):
            return self.stepper.recording(entry)
        if armed:
            settle = partial(_complete if owed else _disarm, run_id=self._owner.run_id, entry=entry)
            return self.stepper.recording(entry, more=settle)
        frame = stack.fields(
            entry.path,
            entry.scope,
            activity.name,
            undo.name,
            at=entry.recorded_at,
            key_generation=entry.key_generation,
        )
        return self.stepper.recording(entry, frame)


def _nothing(connection: Connection, seq: int) -> None:
    """Write nothing: only the owner is checked."""


def _disarm(connection: Connection, seq: int, *, run_id: RunId, entry: Entry) -> None:
    stack.disarm(connection, run_id, entry.path, entry.key_generation)


def _complete(connection: Connection, seq: int, *, run_id: RunId, entry: Entry) -> None:
    stack.complete(connection, run_id, entry.path, entry.key_generation, seq)
