"""Executes one activity forward: checks rules before and after, records the outcome and pushes the frame that is owed.

A crash before the outcome's commit leaves the step without one: the next owner executes it again, under the same key.
If the rules object to the result, the effect and the owed undo are recorded, but no outcome: an exlet decides that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeGuard

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.errors import CodecError
from aft.fault import Fault, FaultKind
from aft.flows.declare.activity import Activity
from aft.flows.session import release
from aft.flows.session.blocks import Blocked, StepFailed
from aft.flows.session.keep_late_effect import keep_late
from aft.flows.steps import attempt, constraints
from aft.flows.steps.request import OnRecorded
from aft.flows.steps.run_session import RunSession
from aft.flows.steps.step import Given, Step
from aft.ids import RunId, StepPath
from aft.rules.cases.case import StepFacts
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import RuleChoice
from aft.runs.ownership.held_writes import HeldWrite
from aft.runs.ownership.owner_writes import OwnerWrite, Recording, Then
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.telemetry import ActivityRecorded

#: The key generation of a result that no execution produced.
NOT_EXECUTED = -1


class ActivityStep(Step):
    """An activity in a flow, executed once.

    ``stored`` are its arguments, with defaults and as rules have changed them; ``given`` are those that the flow's code
    gives. ``on_recorded`` is called when the outcome is committed, before that of any other step is.
    """

    kind = FaultKind.ACTIVITY
    stored: str

    def __init__(
        self,
        session: RunSession,
        activity: Activity[Any, Any],
        path: StepPath,
        scope: str,
        args: str,
        given: str | None,
        on_recorded: OnRecorded | None,
    ) -> None:
        super().__init__(session, path, activity.name, activity.policy, activity.fn)
        self.activity = activity
        self.scope = scope
        self.stored = args
        self._given = given
        self._on_recorded = on_recorded
        self._entry: Entry | None = None
        #: The rules' objection to the result, and whether the undo of the effect is owed nevertheless.
        self._objection: StepFailed | None = None
        self._owed = False
        self.elapsed = 0.0

    def execute(self) -> Entry:
        """Execute the activity and return its recorded outcome, or raise Blocked with a fault."""
        self.session.release_or_read_inbox()
        self._states.check_ladder(self.path, self.status)
        self._check_before()
        self.may_have_had_effect = self._states.may_have_had_effect(self.path)
        self.begin(self.session.generation(self.path))
        self.probe = self.activity.make_probe_call(self.stored, self.key)
        self.watch = self._watch()
        if self.activity.arms:
            self.arm()
        self._started = self._deps.clock.ticks()
        with self.reporting():
            attempt.perform(self)
        assert self._entry is not None
        if not self.is_held:
            self._emit_recorded()
        return self._entry

    def arguments(self) -> Given:
        self._started = self._deps.clock.ticks()
        codec = self.activity.arguments
        return codec.call_arguments(codec.decode(self.stored))

    def record(self, value: Any) -> Recording | Then:
        """Return the write of the outcome, or of the effect alone if the rules object to the result."""
        encoded = self._encode(value)
        self.elapsed = self._deps.clock.ticks() - self._started
        self._objection = self._check_after(encoded)
        if self._objection is not None:
            self._owed = self.activity.owes(self.stored, encoded)
            return partial(self._record_effect, failed=self._objection, value=encoded)
        self._entry = self._outcome(encoded)
        return self._recording(self._entry)

    def recorded(self) -> None:
        self._states.armed.discard(self.path)
        if self._objection is not None:
            if self._owed:
                # Its frame is committed: whatever is decided about the step, the undo is owed.
                self._states.armed.add(self.path)
            self._states.note_failed(self._objection)
            release.emit_raised(self._deps, self._objection.fault)
            raise Blocked(self._states.note_written(self._objection))
        assert self._entry is not None
        self.session.numbered(self._entry)
        if self._on_recorded is not None:
            self._on_recorded(self._entry)

    def may_hold(self, recording: Recording | Then) -> TypeGuard[Recording]:
        if not isinstance(recording, Recording) or not recording.may_share:
            return False
        # Not after a retry: the rows of faults that are closed may be locked, and others' outcomes would wait.
        return self.session.may_hold and not recording.write.closed_faults

    def hold(self, recording: Recording, refused: Callable[[], None]) -> None:
        self.is_held = True
        held = HeldWrite(recording.write, self._emit_recorded, refused)
        with self.owner.lock:  # nobody writes it before it has its number
            self.owner.hold(held)
            self.recorded()
        self._deps.held_writes.watch(self.owner, held)

    def keep_late(self, value: Any, *, refused: bool = False) -> None:
        deps, generation = self._deps, self.generation
        keep_late(
            deps, self.owner, self.activity, self.path, self.scope, generation, self.stored, value, refused=refused
        )

    def _emit_recorded(self) -> None:
        if self._deps.telemetry.has_subscribers:
            self._deps.telemetry.emit(_describe(self))

    # Constraints --------------------------------------------------------------------------------------------------

    def _check_before(self) -> None:
        """Raise Blocked if the rules object to this step before it begins; asked once for a step, not for each try."""
        step_states, path = self._states, self.path
        before, in_doubt = step_states.fault(path), path in step_states.unknown
        is_lost = in_doubt and before is None and not step_states.unknown.was_tried(path)
        was_asked = step_states.was_begun(path) and not is_lost and not constraints.asks_again(before)
        if step_states.undo_orders or was_asked:
            return
        # An earlier owner may have begun it, with its effect: too late for a rule that it must not begin.
        on = RuleType.ABORT if in_doubt else RuleType.ACTIVITY_PRE
        if not self.session.constraints.any(on, self.name):
            return
        facts = self._facts()
        if (choice := self.session.constraints.find_objection(on, facts)) is not None:
            ladder = self._deps.ladder_of(self.policy)
            fault = self.session.constraints.make_fault(on, choice, path, facts, before, ladder)
            self.session.fail(path, fault, self.status)

    def _watch(self) -> Callable[[], RuleChoice | None] | None:
        """Return the function that asks the rules during an attempt; None if no rules apply, or it is transactional.

        An attempt in the owner's transaction cannot be given up.
        """
        if self.policy.transactional or not self.session.constraints.any(RuleType.VIOLATED, self.name):
            return None
        clock, began = self._deps.clock, self._deps.clock.ticks()
        return lambda: self.session.constraints.find_objection(
            RuleType.VIOLATED, self._facts(elapsed=clock.ticks() - began)
        )

    def _check_after(self, value: str) -> StepFailed | None:
        """Return the rules' objection to a step that has had its effect, or None."""
        if not self.session.constraints.any(RuleType.ACTIVITY_POST, self.name):
            return None
        facts = self._facts(value, elapsed=self.elapsed)
        choice = self.session.constraints.find_objection(RuleType.ACTIVITY_POST, facts)
        if choice is None:
            return None
        before, ladder = self._states.fault(self.path), self._deps.ladder_of(self.policy)
        fault = self.session.constraints.make_fault(RuleType.ACTIVITY_POST, choice, self.path, facts, before, ladder)
        return self._states.block(self.path, fault, self.status)

    def _facts(self, value: str | None = None, *, elapsed: float | None = None) -> StepFacts:
        return StepFacts(self.name, self.stored, value, self._states.failures(self.path), elapsed=elapsed)

    def _record_effect(self, connection: Connection, seq: int, *, failed: StepFailed, value: str) -> None:
        """Record a step's effect and its owed undo, but no outcome: an exlet decides that."""
        run_id, generation = self.owner.run_id, self.session.generation(self.path)
        release.write_fault(self._deps, self.owner, connection, failed)
        if self.path in self._states.armed and self._owed:
            stack.store_result(connection, run_id, self.path, generation, value)
        elif self.path in self._states.armed:
            stack.disarm(connection, run_id, self.path, generation)
        elif self.activity.compensator is not None and self._owed:
            stack.push(connection, run_id, seq, self._armed_frame(self.activity.compensator.name, value))

    # Recording ----------------------------------------------------------------------------------------------------

    def record_result(self, value: str, *, executed: bool) -> Entry:
        """Journal a result without executing the activity; it must be one that the activity could return.

        Its undo is owed only if its frame is armed: a rule may have given the result, which proves nothing about the
        effect. ``executed``: it is an execution's outcome. A result that is neither executed nor armed is recorded as
        not executed, so that a late effect of the step is not taken for it.
        """
        checked = self.activity.result.encode(self.activity.result.decode(value), "result")
        entry, armed = self._outcome(checked), self.path in self._states.armed
        self._entry = entry if executed or armed else replace(entry, key_generation=NOT_EXECUTED)
        complete = partial(_complete, run_id=self.owner.run_id, entry=self._entry) if armed else None
        self.owner.write(self.session.recording(self._entry, more=complete), self.recorded)
        self._states.note_recorded(self.path)
        self._emit_recorded()
        return self._entry

    def record_failure(self, fault: Fault, outcome: Outcome) -> Entry:
        """Journal that the step has ended with this fault."""
        entry = replace(self._outcome(None), outcome=outcome, attempts=fault.attempt, fault_id=fault.id)
        recorded = self.session.record(entry, on_recorded=self._on_recorded)
        self._states.note_recorded(self.path)
        return recorded

    def arm(self) -> None:
        """Push the frame of an activity whose undo is owed whatever its outcome, in its own commit."""
        undo = self.activity.compensator
        if undo is None or self.path in self._states.armed:
            return
        frame = self._armed_frame(undo.name, None)
        self.owner.write(Recording(OwnerWrite(frame=frame)))
        self._states.armed.add(self.path)

    def _encode(self, value: Any) -> str:
        """Encode a result; if it cannot be stored, arm the undo of its effect first, then raise CodecError."""
        try:
            return self.activity.result.encode(value, "result")
        except CodecError:
            if not self.policy.transactional:
                self.owner.write(_nothing)  # if the run has another owner by now, the effect is late
                self.arm()
            raise

    def _armed_frame(self, compensator: str, value: str | None) -> dict[str, Any]:
        return stack.fields(
            self.path,
            self.scope,
            self.name,
            compensator,
            at=self._deps.clock.now(),
            state=FrameState.ARMED,
            key_generation=self.session.generation(self.path),
            args=self.stored,
            value=value,
        )

    def _outcome(self, value: str | None) -> Entry:
        return Entry(
            path=self.path,
            scope=self.scope,
            kind=EntryKind.ACTIVITY,
            name=self.name,
            outcome=Outcome.OK,
            recorded_at=self._deps.clock.now(),
            attempts=self._states.failures(self.path) + 1,
            args=self.stored,
            value=value,
            key_generation=self.session.generation(self.path),
            asked=None if self._given == self.stored else self._given,
        )

    def _recording(self, entry: Entry) -> Recording:
        """Return the write that records an outcome with its frame; if no undo is owed, an armed frame is disarmed."""
        undo, armed = self.activity.compensator, self.path in self._states.armed
        owed = self.activity.owes(entry.args or "{}", entry.value or "null")
        if undo is None or (not owed and not armed):
            return self.session.recording(entry)
        if armed:
            end = partial(_complete if owed else _disarm, run_id=self.owner.run_id, entry=entry)
            return self.session.recording(entry, more=end)
        at, generation = entry.recorded_at, entry.key_generation
        frame = stack.fields(entry.path, entry.scope, self.name, undo.name, at=at, key_generation=generation)
        return self.session.recording(entry, frame)


def _describe(step: ActivityStep) -> ActivityRecorded:
    undo = step.activity.compensator
    return ActivityRecorded(
        run=step.owner.run_id,
        path=step.path,
        activity=step.name,
        outcome=Outcome.OK.value,
        frame=undo.name if undo else None,
        elapsed=timedelta(seconds=step.elapsed),
    )


def _nothing(connection: Connection, seq: int) -> None:
    """Write nothing: only ownership is checked."""


def _disarm(connection: Connection, seq: int, *, run_id: RunId, entry: Entry) -> None:
    stack.disarm(connection, run_id, entry.path, entry.key_generation)


def _complete(connection: Connection, seq: int, *, run_id: RunId, entry: Entry) -> None:
    stack.complete(connection, run_id, entry.path, entry.key_generation, seq)
