"""The state of each step of an owned run: its fault, its number of failures, armed frames and consumed signals.

The records of earlier owners are read once, when the run is claimed; from then on this owner's actions update them. It
is only a copy of what the database holds: a crash loses none of it.

The branches of one run use it at the same time, each on its own thread; all changes are under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Connection

from aft.fault import Fault, FaultKind, FaultState
from aft.flows.session.blocks import Blocked, RetryPending, StepFailed, stay_parked
from aft.flows.session.inbox import RunInbox
from aft.flows.session.journal_replay import BegunSteps
from aft.flows.session.unknown_outcomes import UnknownOutcomes
from aft.ids import StepPath
from aft.rules.cases import step_snapshot
from aft.rules.rule_types import RuleType
from aft.runs.ownership import claims
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import Then
from aft.runs.records import inbox
from aft.runs.records.inbox import InboxItem
from aft.runs.rulings import Ruling, RulingAction
from aft.runs.states import Status

#: States of faults whose steps have no outcome yet.
_LIVE = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.PARKED)
#: How far ahead of the database's clock the message of a fault may be.
EARLY = timedelta(seconds=claims.EARLY)


class BranchesAtWork:
    """Counts the branches of one run that are at work; each is counted inside a block. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.at_work = 0

    def begin(self) -> None:
        """Count one more: a branch that fails beside others writes its fault at once."""
        with self._lock:
            self.at_work += 1

    def end(self) -> None:
        """Count one less."""
        with self._lock:
            self.at_work -= 1

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()


class _RetrySignals:
    """Signals that let a failed step be tried again: each is marked read with the outcome of that try."""

    def __init__(self, owner: Owner, run_inbox: RunInbox) -> None:
        self._owner = owner
        self._run_inbox = run_inbox
        self._taken: dict[StepPath, InboxItem] = {}

    def take(self, name: str, path: StepPath) -> bool:
        """Take a signal for a step's next try; False: there is none.

        It is assigned to the step before the try begins: if this worker dies, the next owner assigns it again.
        """
        owner, item = self._owner, self._run_inbox.take(name, path)
        if item is None:
            return False
        if item.taken_by is None:
            owner.write(lambda connection, seq: inbox.mark_taken(connection, owner.run_id, item, path))
        self._taken[path] = item
        owner.remove_wait(path)
        return True

    def of(self, path: StepPath) -> tuple[InboxItem, ...]:
        """Return the signal that the last try of a step consumed, if any."""
        item = self._taken.get(path)
        return () if item is None else (item,)

    def drop(self, path: StepPath) -> tuple[InboxItem, ...]:
        """Return and drop the signal that the last try of a step consumed, if any."""
        item = self._taken.pop(path, None)
        return () if item is None else (item,)

    def mark_read_before(self, path: StepPath, more: Then | None) -> Then | None:
        """Return ``more``, preceded by marking the step's signal as read, if it has one."""
        item = self._taken.get(path)
        if item is None:
            return more
        owner = self._owner

        def read(connection: Connection, seq: int) -> None:
            inbox.mark_read(connection, owner.run_id, owner.epoch, [item])
            if more is not None:
                more(connection, seq)

        return read


class StepStates:
    """The step states of one run, for one pass over its code. Thread-safe."""

    def __init__(self, owner: Owner, run_inbox: RunInbox, wake: str | None) -> None:
        self._owner = owner
        self._run_inbox = run_inbox
        #: The fault or order that woke the run.
        self._wake = wake
        self._lock = threading.RLock()
        self.branches = BranchesAtWork()
        self._faults: dict[StepPath, Fault] = {}
        #: Steps that earlier owners may have begun, with unknown outcome.
        self.unknown = UnknownOutcomes()
        #: Steps that they have begun and left without an outcome, according to other rows.
        self.begun = BegunSteps()
        #: The orders to undo the run once the outcome of every step in doubt is known.
        self.undo_orders: tuple[InboxItem, ...] = ()
        #: The orders to retry that came with those.
        self.tried_again: tuple[InboxItem, ...] = ()
        #: Whether they end the run as it is, once the savepoint under way is undone: no outcome need be known then.
        self.cancels_as_is = False
        self.armed: set[str] = set()
        #: Whether late effects have to be undone before the run goes on.
        self.owes_late_effects = False
        #: The owner's ``seq`` when it last queried for late effects.
        self.late_checked_at = -1
        #: How often the effect of each step was undone.
        self.undone: dict[str, int] = {}
        self._signals = _RetrySignals(owner, run_inbox)
        #: Failures of this pass, each with whether its fault has a row already.
        self._raised: dict[StepPath, StepFailed] = {}

    def load(
        self, live: list[Fault], armed: Iterable[str], undone: dict[str, int], recorded: Iterable[StepPath] = ()
    ) -> None:
        """Load the records of earlier owners: open faults, armed frames, and how often frames were undone.

        ``recorded`` are the steps that have their outcome.
        """
        self._faults = {fault.path: fault for fault in live if fault.path is not None}
        self.armed, self.undone = {*armed}, undone
        # A final abort records that its outcome stays unknown.
        aborts = [fault for fault in live if fault.kind is FaultKind.ABORT and fault.state is not FaultState.FINAL]
        if aborts:
            self.unknown.read(aborts, {*recorded})

    # Asking -------------------------------------------------------------------------------------------------------

    @property
    def any_live(self) -> bool:
        """Whether a step without an outcome has failed: it was begun before."""
        return self.unknown.any_tried or any(fault.state in _LIVE for fault in self._faults.values())

    def note_journal_end(self, steps: Iterable[StepPath]) -> None:
        """Record that the code requests new steps: an earlier owner that died may have begun these of them."""
        with self._lock:
            self.unknown.note_journal_end(steps)

    def may_be_at_work(self, path: StepPath) -> bool:
        """Whether a step may have been begun since it was last seen to fail, judging by its fault."""
        fault = self._faults.get(path)
        return fault is None or fault.state is FaultState.WAITING or not shows_outcome(fault)

    def may_be_undone(self, path: StepPath) -> bool:
        """Whether a step's undo may be under way because a rule makes the step start again."""
        fault = self._faults.get(path)
        waits = path in self.armed and fault is not None and fault.state is FaultState.WAITING
        return waits and Ruling.decode(fault.ruling if fault else None).do in (RulingAction.AGAIN, RulingAction.RESTART)

    def may_have_had_effect(self, path: StepPath) -> bool:
        """Whether a step may have had its effect already, though it has no recorded outcome."""
        return self.unknown.before_journal_end or path in self.unknown or self.was_begun(path)

    def is_unseen(self, path: StepPath) -> bool:
        """Whether a step may have had an effect that was not seen, and that no frame would undo."""
        return path in self.unknown and path not in self.armed and not self.cancels_as_is

    @property
    def any_unseen(self) -> bool:
        """Whether any step may have had such an effect."""
        return self.unknown.any_but(self.armed)

    def was_begun(self, path: StepPath) -> bool:
        """Whether an earlier owner, or this one, has begun a step and left it without an outcome."""
        return path in self.armed or path in self._faults or self.unknown.was_tried(path)

    def fault(self, path: StepPath) -> Fault | None:
        """Return the fault of a step that has no outcome yet, or None."""
        return self._faults.get(path)

    def decided_fault(self, path: StepPath) -> Fault | None:
        """Return the step's fault if it is final or has a ruling, and the journal does not show that yet."""
        fault = self._faults.get(path)
        ruled = fault is not None and fault.state is FaultState.WAITING and fault.ruling is not None
        return fault if ruled or (fault is not None and fault.state is FaultState.FINAL) else None

    def has_failed_for_good(self, path: StepPath) -> bool:
        """Whether it was decided that a step has failed, and the journal does not show that yet."""
        fault = self._faults.get(path)
        final = fault is not None and fault.state is FaultState.FINAL
        return final and Ruling.decode(fault.ruling if fault else None).do in (None, RulingAction.FAIL)

    def failures(self, path: StepPath) -> int:
        """Return how often a step has failed since it was first begun, or restarted by a rule."""
        fault = self._faults.get(path)
        if fault is None or Ruling.decode(fault.ruling).do is RulingAction.RESTART:
            return 0
        return step_snapshot.failures(fault)

    def replaced(self, path: StepPath) -> tuple[str, ...]:
        """Return the faults that a new one of this step replaces: its own, and all aborts if no other is in doubt."""
        before = self._faults.get(path)
        with self._lock:
            return (*self.unknown.faults_closed_by(path), *([before.id] if before is not None else []))

    def check_ladder(self, path: StepPath, status: Status | None) -> None:
        """Raise Blocked if a step's fault is not decided yet, or its next try is not due.

        Also if its run is parked for it: only a person's order lets it be tried again.
        """
        fault = self._faults.get(path)
        if fault is None or (self.undo_orders and not shows_outcome(fault)):
            return  # a run that is to be undone waits for no rule before it sees what is in doubt
        if fault.state is FaultState.PARKED:
            raise Blocked(stay_parked(fault))
        if fault.state is FaultState.OPEN:
            self._rule_out(path)
            raise Blocked(self._raised.get(path) or StepFailed(fault, status, written=True))
        waits = fault.state is FaultState.WAITING and not self._is_due(fault, path)
        if waits or fault.state is FaultState.HANDLED:
            self._rule_out(path)
            raise Blocked(RetryPending(fault, status))

    def _rule_out(self, path: StepPath) -> None:
        """Remove a step from the unknown ones: it cannot have begun since it failed, as its next try is not due."""
        with self._lock:
            if shows_outcome(self._faults[path]):
                self.unknown.rule_out(path)

    def _is_due(self, fault: Fault, path: StepPath) -> bool:
        if fault.signal is not None and self._signals.take(fault.signal, path):
            return True
        # Its own message may be a little ahead of the clock. Not more: it may have been sent by others, and the run be
        # claimed for another wake that came with it.
        called = fault.id == self._wake and fault.signal is None
        by = self._run_inbox.now + EARLY if called else self._run_inbox.now
        due = (called and fault.due_at is None) or (fault.due_at is not None and fault.due_at <= by)
        if due and fault.signal is not None:
            self._owner.remove_wait(path)
        return due

    # Keeping up ---------------------------------------------------------------------------------------------------

    def restart_step(self, fault: Fault, ruling: str | None = None) -> None:
        """Let a step start again, as a person ordered; with ``ruling``, as the rules decided."""
        if fault.path is not None and ruling is not None:
            self._faults[fault.path] = replace(
                fault, state=FaultState.WAITING, ruling=ruling, due_at=self._run_inbox.now, signal=None
            )
        elif fault.path is not None:
            self._faults.pop(fault.path, None)
            self.unknown.allow_restart(fault.path)
            if fault.path not in self.armed:
                self.begun.remove(fault.path)
        else:
            self.unknown.drop_abort(fault.id)

    def note_recorded(self, path: StepPath) -> None:
        """Remove the fault of a step whose outcome is recorded: it is not in doubt any more."""
        with self._lock:
            self._faults.pop(path, None)
            self.unknown.note_outcome(path)

    def failed(self, path: StepPath, fault: Fault, status: Status | None) -> tuple[StepFailed, bool]:
        """Note that a step has failed; return what blocks it, and whether it was the only one at work."""
        with self._lock:
            block = self.block(path, fault, status)
            self._apply_failure(path, block)
            return block, self.branches.at_work <= 1

    def block(self, path: StepPath, fault: Fault, status: Status | None) -> StepFailed:
        """Return the block of a step that failed: its fault replaces the step's faults until now."""
        before = self._faults.get(path)
        unseen = () if before is None else (before.id,)
        replaces = self.replaced(path) if shows_outcome(fault) else unseen
        return StepFailed(fault, status, replaces, items=self._signals.of(path))

    def take_consumed_signal(self, path: StepPath) -> tuple[tuple[InboxItem, str | None], ...]:
        """Return and drop the signal that the last try of a step consumed; the caller marks it read."""
        return tuple((item, None) for item in self._signals.drop(path))

    def note_failed(self, block: StepFailed) -> None:
        """Note that a step has failed, now that its fault is recorded."""
        with self._lock:
            self._apply_failure(block.fault.path or StepPath(""), block)

    def _apply_failure(self, path: StepPath, block: StepFailed) -> None:
        self._signals.drop(path)
        self._faults[path] = block.fault
        if shows_outcome(block.fault):
            self.unknown.note_outcome(path)
        self._raised[path] = block

    def note_known(self, path: StepPath) -> None:
        """Note that the effect of a step is known, though it has no outcome."""
        with self._lock:
            self.unknown.note_outcome(path)

    def note_unknown(self, path: StepPath) -> None:
        """Note that a step was begun, and that its outcome is unknown."""
        with self._lock:
            self.unknown.add(path)

    def note_written(self, block: StepFailed) -> StepFailed:
        """Note that a fault has its row, before the run is released."""
        written = replace(block, written=True)
        self._raised[block.fault.path or StepPath("")] = written
        return written

    def closed_faults(self, path: StepPath, state: FaultState) -> tuple[tuple[str, FaultState], ...]:
        """Faults to close when this step's outcome is recorded, each with its final state."""
        fault = self._faults.get(path)
        with self._lock:
            aborts = [(abort, FaultState.RESOLVED) for abort in self.unknown.faults_closed_by(path)]
        return tuple(aborts if fault is None else [(fault.id, state), *aborts])

    def with_signal_read(self, path: StepPath, more: Then | None) -> Then | None:
        """Return ``more``, preceded by marking the signal as read that the step's last try consumed, if any."""
        return self._signals.mark_read_before(path, more)


def shows_outcome(fault: Fault) -> bool:
    """Whether a fault shows the outcome of a try; one that rules raise because a worker was lost does not."""
    return fault.rule_type != RuleType.ABORT.value
