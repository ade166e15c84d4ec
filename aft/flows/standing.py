"""How do the steps of a run stand? Which have failed, and how often; which were started; what did a try wait for?

What earlier owners left is read once, when the run is taken; from then on it is kept up with what this owner does. It
says nothing that the database does not: a crash loses none of it.

Who may run at the same time: the branches of one run, each on a thread of its own; all that changes is under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection

from aft.fault import Fault, FaultKind, FaultState
from aft.flows.leaving import Failed, InLadder, Leave
from aft.flows.mailbox import Mailbox
from aft.ids import StepPath
from aft.rules import kept
from aft.runs import inbox
from aft.runs.inbox import Letter
from aft.runs.owner import Owner, Then
from aft.runs.rulings import Do, Ruling
from aft.runs.states import Status


class Standing:
    """The steps of one run, for one pass over its code. Thread-safe."""

    def __init__(self, owner: Owner, mailbox: Mailbox, wake: str | None) -> None:
        self._owner = owner
        self._mailbox = mailbox
        #: The fault or order that called this owner.
        self._wake = wake
        self._lock = threading.Lock()
        self._at_work = 0
        self._faults: dict[StepPath, Fault] = {}
        #: Aborts that this owner came to make good: settled with its next outcome.
        self._aborts: list[str] = []
        self.armed: set[str] = set()
        #: Whether effects arrived late that have to be undone before the run goes on.
        self.owes_late = False
        #: How often the effect of each step was undone.
        self.undone: dict[str, int] = {}
        #: Signals that a failed step has waited for: read with what comes of its next try.
        self._spent: dict[StepPath, Letter] = {}
        #: What was raised in this pass: whether it has its row already.
        self._raised: dict[StepPath, Failed] = {}
        #: Whether an earlier owner may have begun the first new steps, and nobody saw what came of it.
        self.unseen = False
        #: Those of them that are begun side by side: each stays in doubt until it has its own outcome.
        self._suspects: set[StepPath] = set()
        #: Steps that have failed before, and that a person lets begin anew.
        self._tried: set[StepPath] = set()

    def remember(self, live: list[Fault], armed: set[str], undone: dict[str, int]) -> None:
        """Take over what earlier owners left: faults that are not settled, armed frames, and what they undid."""
        self._faults = {fault.path: fault for fault in live if fault.path is not None}
        self._aborts = [fault.id for fault in live if fault.kind is FaultKind.ABORT]
        self.armed, self.undone = armed, undone
        self.unseen = self.unseen or bool(self._aborts)

    # Branches -----------------------------------------------------------------------------------------------------

    def begin_branch(self) -> None:
        """Say that one more branch is at work: one that fails meanwhile is not the last to let go."""
        with self._lock:
            self._at_work += 1

    def end_branch(self) -> None:
        """Say that one has come to rest."""
        with self._lock:
            self._at_work -= 1

    # Asking -------------------------------------------------------------------------------------------------------

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier owner has begun the next step, or may have, and only this owner knows of it."""
        return (self.has_doubts or bool(self._tried)) and not self._aborts

    @property
    def has_doubts(self) -> bool:
        """Whether an earlier owner may have begun a step of which nothing has been seen yet."""
        return self.unseen or bool(self._suspects)

    @property
    def any_live(self) -> bool:
        """Whether a step has failed that is not recorded yet: it was begun before."""
        live = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED)
        return bool(self._tried) or any(fault.state in live for fault in self._faults.values())

    def forget_doubts(self) -> None:
        """Say that a new generation begins: no earlier owner can have begun a step of it."""
        with self._lock:
            self.unseen = False
            self._suspects.clear()
            self._tried.clear()

    def take_over(self, before: Standing) -> None:
        """Begin another pass: what was in doubt in the one before still is."""
        self.unseen, self._tried = before.has_doubts, before._tried

    def is_doubtful(self, path: StepPath) -> bool:
        """Tell whether a step may have had its effect already, though no outcome of it is recorded."""
        return self.unseen or path in self._suspects or self.was_begun(path)

    def is_unseen(self, path: StepPath) -> bool:
        """Tell whether a step may have had its effect, and nothing is recorded of it: neither fault nor frame."""
        return self.is_doubtful(path) and not self.was_begun(path)

    def suspect(self, paths: Iterable[StepPath]) -> None:
        """Say that these are the steps which an earlier owner may have begun, as they are begun side by side."""
        with self._lock:
            self._suspects.update(paths)

    def was_begun(self, path: StepPath) -> bool:
        """Tell whether an earlier owner has begun a step, and left it without an outcome."""
        return path in self.armed or path in self._faults or path in self._tried

    def fault(self, path: StepPath) -> Fault | None:
        """What stands against a step."""
        return self._faults.get(path)

    def decided_fault(self, path: StepPath) -> Fault | None:
        """The fault that ended a step for good, or that an exlet has ruled about, and the journal does not know yet."""
        fault = self._faults.get(path)
        ruled = fault is not None and fault.state is FaultState.WAITING and fault.ruling is not None
        return fault if ruled or (fault is not None and fault.state is FaultState.FINAL) else None

    def has_failed_for_good(self, path: StepPath) -> bool:
        """Tell whether it was decided that a step has failed, and the journal does not know yet."""
        fault = self._faults.get(path)
        final = fault is not None and fault.state is FaultState.FINAL
        return final and Ruling.decode(fault.ruling if fault else None).do in (None, Do.FAIL)

    def failures(self, path: StepPath) -> int:
        """How often a step has failed, since it was begun or begun anew."""
        fault = self._faults.get(path)
        if fault is None or Ruling.decode(fault.ruling).do is Do.RESTART:
            return 0
        return kept.failures(fault)

    def replaced(self, path: StepPath) -> tuple[str, ...]:
        """The faults whose place a new one of a step takes: the aborts, and that of the step itself."""
        before = self._faults.get(path)
        return (*self._aborts, *([before.id] if before is not None else []))

    def check_ladder(self, path: StepPath, status: Status | None) -> None:
        """Leave if a step has failed and nobody has decided about that, or its next try is not due yet."""
        fault = self._faults.get(path)
        if fault is None:
            return
        if fault.state is FaultState.OPEN:
            raise Leave(self._raised.get(path) or Failed(fault, status, written=True))
        waits = fault.state is FaultState.WAITING and not self._is_due(fault, path)
        if waits or fault.state is FaultState.HANDLED:
            raise Leave(InLadder(fault, status))

    def _is_due(self, fault: Fault, path: StepPath) -> bool:
        if fault.signal is not None and (letter := self._mailbox.take(fault.signal)) is not None:
            self._spent[path] = letter
            self._owner.forget_wait(path)
            return True
        # Called by its own message: then whatever the clock says.
        called = fault.id == self._wake and fault.signal is None
        due = called or (fault.due_at is not None and fault.due_at <= self._mailbox.now)
        if due and fault.signal is not None:
            self._owner.forget_wait(path)
        return due

    # Keeping up ---------------------------------------------------------------------------------------------------

    def forget(self, fault: Fault, ruling: str | None = None) -> None:
        """Let a step begin anew, as a person asked; ``ruling``: with what rules have made of it."""
        if fault.path is not None and ruling is not None:
            self._faults[fault.path] = replace(
                fault, state=FaultState.WAITING, ruling=ruling, due_at=self._mailbox.now, signal=None
            )
        elif fault.path is not None:
            self._faults.pop(fault.path, None)
            self._tried.add(fault.path)
        elif fault.id in self._aborts:
            self._aborts.remove(fault.id)  # settled: if this owner leaves before it has seen more, it has to say so

    def passed(self, path: StepPath) -> None:
        """A step has its outcome: what stood against it is settled."""
        with self._lock:
            self._faults.pop(path, None)
            self._saw(path)

    def failed(self, path: StepPath, fault: Fault, status: Status | None) -> tuple[Failed, bool]:
        """A step has failed: returns what blocks it, and whether it was the only one at work."""
        with self._lock:
            block = self.block(path, fault, status)
            self._fell(path, block)
            return block, self._at_work <= 1

    def block(self, path: StepPath, fault: Fault, status: Status | None) -> Failed:
        """What would block a step that failed: the fault takes the place of what stood against it until now."""
        letter = self._spent.get(path)
        return Failed(fault, status, self.replaced(path), letters=() if letter is None else (letter,))

    def fell(self, block: Failed) -> None:
        """Say that a step has failed, now that this is recorded."""
        with self._lock:
            self._fell(block.fault.path or StepPath(""), block)

    def _fell(self, path: StepPath, block: Failed) -> None:
        self._spent.pop(path, None)
        self._faults[path] = block.fault
        self._saw(path)
        self._raised[path] = block

    def saw(self, path: StepPath) -> None:
        """Say that it is seen what came of a step, though it has no outcome."""
        with self._lock:
            self._saw(path)

    def _saw(self, path: StepPath) -> None:
        self._suspects.discard(path)
        self._tried.discard(path)
        self._aborts = []
        # Beside others nobody can tell which of the next steps an earlier owner had begun.
        self.unseen = self.unseen and self._at_work > 1

    def wrote(self, block: Failed) -> Failed:
        """Say that a fault has its row, before the run is let go."""
        written = replace(block, written=True)
        self._raised[block.fault.path or StepPath("")] = written
        return written

    def settled(self, path: StepPath, state: FaultState) -> tuple[tuple[str, FaultState], ...]:
        """What stood against a step, and what becomes of it with its outcome."""
        fault = self._faults.get(path)
        aborts = [(abort, FaultState.RESOLVED) for abort in self._aborts]
        return tuple(aborts if fault is None else [(fault.id, state), *aborts])

    def with_letters(self, path: StepPath, more: Then | None) -> Then | None:
        """What belongs to a step's outcome: the signal that its last try had waited for is read with it."""
        letter = self._spent.get(path)
        if letter is None:
            return more
        owner = self._owner

        def read(connection: Connection, seq: int) -> None:
            inbox.mark_read(connection, owner.run_id, owner.epoch, [letter])
            if more is not None:
                more(connection, seq)

        return read
