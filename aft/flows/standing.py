"""How do the steps of a run stand? Which have failed, and how often; which were started; what did a try wait for?

What earlier owners left is read once, when the run is taken; from then on it is kept up with what this owner does. It
says nothing that the database does not: a crash loses none of it.

Who may run at the same time: the branches of one run, each on a thread of its own; all that changes is under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection

from aft.fault import Fault, FaultKind, FaultState
from aft.flows.begun import Begun
from aft.flows.doubts import Doubts
from aft.flows.leaving import Failed, InLadder, Leave, stay_parked
from aft.flows.mailbox import RunInbox
from aft.ids import StepPath
from aft.rules import kept
from aft.rules.kinds import On
from aft.runs import inbox
from aft.runs.inbox import Letter
from aft.runs.owner import Owner, Then
from aft.runs.rulings import Do, Ruling
from aft.runs.states import Status


class Standing:
    """The steps of one run, for one pass over its code. Thread-safe."""

    def __init__(self, owner: Owner, mailbox: RunInbox, wake: str | None) -> None:
        self._owner = owner
        self._mailbox = mailbox
        #: The fault or order that called this owner.
        self._wake = wake
        self._lock = threading.RLock()
        self._at_work = 0
        self._faults: dict[StepPath, Fault] = {}
        #: What earlier owners may have begun, and nobody saw what came of it.
        self.doubts = Doubts()
        #: What they have begun and left without an outcome, as far as the rows tell.
        self.begun = Begun()
        #: The orders that have the run undone once it is seen what came of all that is in doubt.
        self.turns_back: tuple[Letter, ...] = ()
        #: The orders to try again that came with those.
        self.tried_again: tuple[Letter, ...] = ()
        #: Whether they have it end as it is, once the savepoint is undone that is being undone: nothing is to be seen.
        self.abandons = False
        self.armed: set[str] = set()
        #: Whether effects arrived late that have to be undone before the run goes on.
        self.owes_late = False
        #: The number of the write after which the owner looked last whether any has.
        self.looked_at = -1
        #: How often the effect of each step was undone.
        self.undone: dict[str, int] = {}
        #: Signals that a failed step has waited for: read with what comes of its next try.
        self._spent: dict[StepPath, Letter] = {}
        #: What was raised in this pass: whether it has its row already.
        self._raised: dict[StepPath, Failed] = {}

    def remember(
        self, live: list[Fault], armed: Iterable[str], undone: dict[str, int], recorded: Iterable[StepPath] = ()
    ) -> None:
        """Take over what earlier owners left: faults that are not settled, armed frames, and what they undid.

        ``recorded`` are the steps that have their outcome.
        """
        self._faults = {fault.path: fault for fault in live if fault.path is not None}
        self.armed, self.undone = {*armed}, undone
        # Those that are final say that nobody will see any more what came of it.
        aborts = [fault for fault in live if fault.kind is FaultKind.ABORT and fault.state is not FaultState.FINAL]
        if aborts:
            self.doubts.read(aborts, {*recorded})

    # Branches -----------------------------------------------------------------------------------------------------

    def begin_branch(self) -> None:
        """Say that one more branch is at work: one that fails meanwhile is not the last to let go."""
        with self._lock:
            self._at_work += 1

    def end_branch(self) -> None:
        """Say that one has come to rest."""
        with self._lock:
            self._at_work -= 1

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Say that more branches are about to begin: one that fails before they have is not alone."""
        self.begin_branch()
        try:
            yield
        finally:
            self.end_branch()

    # Asking -------------------------------------------------------------------------------------------------------

    @property
    def any_live(self) -> bool:
        """Whether a step has failed that is not recorded yet: it was begun before."""
        live = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.PARKED)
        return self.doubts.any_tried or any(fault.state in live for fault in self._faults.values())

    def reach_frontier(self, steps: Iterable[StepPath]) -> None:
        """Say that the code asks for steps that are new: an earlier owner that died may have begun these of them."""
        with self._lock:
            self.doubts.reach_frontier(steps)

    def may_be_at_work(self, path: StepPath) -> bool:
        """Tell whether a step may have been begun since it was last seen to fail, as far as its fault tells."""
        fault = self._faults.get(path)
        return fault is None or fault.state is FaultState.WAITING or not _tells(fault)

    def may_be_undone(self, path: StepPath) -> bool:
        """Tell whether a step may be being undone because a rule has it begin anew."""
        fault = self._faults.get(path)
        waits = path in self.armed and fault is not None and fault.state is FaultState.WAITING
        return waits and Ruling.decode(fault.ruling if fault else None).do in (Do.AGAIN, Do.RESTART)

    def is_doubtful(self, path: StepPath) -> bool:
        """Tell whether a step may have had its effect already, though no outcome of it is recorded."""
        return self.doubts.before_frontier or path in self.doubts or self.was_begun(path)

    def is_unseen(self, path: StepPath) -> bool:
        """Tell whether a step may have had an effect that nobody saw, and that no frame would undo."""
        return path in self.doubts and path not in self.armed and not self.abandons

    @property
    def any_unseen(self) -> bool:
        """Whether any step may have had such an effect."""
        return self.doubts.any_but(self.armed)

    def was_begun(self, path: StepPath) -> bool:
        """Tell whether an earlier owner has begun a step, and left it without an outcome."""
        return path in self.armed or path in self._faults or self.doubts.was_tried(path)

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
        """The faults whose place a new one of a step takes: its own, and the aborts if nothing else is in doubt."""
        before = self._faults.get(path)
        with self._lock:
            return (*self.doubts.settle_with(path), *([before.id] if before is not None else []))

    def check_ladder(self, path: StepPath, status: Status | None) -> None:
        """Leave if a step has failed and nobody has decided about that, or its next try is not due yet.

        Also if its run is parked for it: only a person who says so lets it be tried again.
        """
        fault = self._faults.get(path)
        if fault is None or (self.turns_back and not _tells(fault)):
            return  # a run that is to be undone waits for no rule before it sees what is in doubt
        if fault.state is FaultState.PARKED:
            raise Leave(stay_parked(fault))
        if fault.state is FaultState.OPEN:
            self._rule_out(path)
            raise Leave(self._raised.get(path) or Failed(fault, status, written=True))
        waits = fault.state is FaultState.WAITING and not self._is_due(fault, path)
        if waits or fault.state is FaultState.HANDLED:
            self._rule_out(path)
            raise Leave(InLadder(fault, status))

    def _rule_out(self, path: StepPath) -> None:
        """Say that nobody can have begun a step since it failed: its next try is not due."""
        with self._lock:
            if _tells(self._faults[path]):
                self.doubts.rule_out(path)

    def _is_due(self, fault: Fault, path: StepPath) -> bool:
        if fault.signal is not None and (letter := self._mailbox.take(fault.signal, path)) is not None:
            self._mark_taken(letter, path)
            self._spent[path] = letter
            self._owner.forget_wait(path)
            return True
        # Called by its own message: then whatever the clock says.
        called = fault.id == self._wake and fault.signal is None
        due = called or (fault.due_at is not None and fault.due_at <= self._mailbox.now)
        if due and fault.signal is not None:
            self._owner.forget_wait(path)
        return due

    def _mark_taken(self, letter: Letter, path: StepPath) -> None:
        """Say that a signal is this step's, before its try begins: should we be lost, the next owner gives it that."""
        owner = self._owner
        if letter.taken_by is None:
            owner.write(lambda connection, seq: inbox.mark_taken(connection, owner.run_id, letter, path))

    # Keeping up ---------------------------------------------------------------------------------------------------

    def forget(self, fault: Fault, ruling: str | None = None) -> None:
        """Let a step begin anew, as a person asked; ``ruling``: with what rules have made of it."""
        if fault.path is not None and ruling is not None:
            self._faults[fault.path] = replace(
                fault, state=FaultState.WAITING, ruling=ruling, due_at=self._mailbox.now, signal=None
            )
        elif fault.path is not None:
            self._faults.pop(fault.path, None)
            self.doubts.try_again(fault.path)
            if fault.path not in self.armed:
                self.begun.forget(fault.path)
        else:
            self.doubts.drop_abort(fault.id)

    def passed(self, path: StepPath) -> None:
        """A step has its outcome: what stood against it is settled."""
        with self._lock:
            self._faults.pop(path, None)
            self.doubts.see(path)

    def failed(self, path: StepPath, fault: Fault, status: Status | None) -> tuple[Failed, bool]:
        """A step has failed: returns what blocks it, and whether it was the only one at work."""
        with self._lock:
            block = self.block(path, fault, status)
            self._fell(path, block)
            return block, self._at_work <= 1

    def block(self, path: StepPath, fault: Fault, status: Status | None) -> Failed:
        """What would block a step that failed: the fault takes the place of what stood against it until now."""
        letter, before = self._spent.get(path), self._faults.get(path)
        unseen = () if before is None else (before.id,)
        replaces = self.replaced(path) if _tells(fault) else unseen
        return Failed(fault, status, replaces, letters=() if letter is None else (letter,))

    def spend(self, path: StepPath) -> tuple[tuple[Letter, str | None], ...]:
        """The signal that the last try of a step had waited for, which is read with what came of that."""
        letter = self._spent.pop(path, None)
        return () if letter is None else ((letter, None),)

    def fell(self, block: Failed) -> None:
        """Say that a step has failed, now that this is recorded."""
        with self._lock:
            self._fell(block.fault.path or StepPath(""), block)

    def _fell(self, path: StepPath, block: Failed) -> None:
        self._spent.pop(path, None)
        self._faults[path] = block.fault
        if _tells(block.fault):
            self.doubts.see(path)
        self._raised[path] = block

    def saw(self, path: StepPath) -> None:
        """Say that it is seen what came of a step, though it has no outcome."""
        with self._lock:
            self.doubts.see(path)

    def lost_sight(self, path: StepPath) -> None:
        """Say that a step was begun, and that nobody knows what came of it."""
        with self._lock:
            self.doubts.add(path)

    def wrote(self, block: Failed) -> Failed:
        """Say that a fault has its row, before the run is let go."""
        written = replace(block, written=True)
        self._raised[block.fault.path or StepPath("")] = written
        return written

    def settled(self, path: StepPath, state: FaultState) -> tuple[tuple[str, FaultState], ...]:
        """What stood against a step, and what becomes of it with its outcome."""
        fault = self._faults.get(path)
        with self._lock:
            aborts = [(abort, FaultState.RESOLVED) for abort in self.doubts.settle_with(path)]
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


def _tells(fault: Fault) -> bool:
    """Tell whether a fault says what came of its step; one that rules raise because a worker was lost does not."""
    return fault.exception != On.ABORT.value
