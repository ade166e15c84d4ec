"""What interrupts a run where it is: its deadline, an order to undo everything since a savepoint, a cancelled task.

An interrupt reaches every branch that is blocked or about to begin a step, in the savepoint or in the whole run: its
step fails for that, and the flow hears of it there, as an exception, once in each branch. What the flow catches and
what is undone follows from there as for any failure. A ladder ends with it, a wait is dropped, a child is stopped and
undone before the flow hears of it. What is being executed comes to its end; if it fails, that is its end, too.

A step is abandoned if the task that awaits it was cancelled, as in "the first supplier wins". It fails for that like an
interrupted one, alone, and nobody hears of it: it is not begun any more, nor tried again, and its child is undone.

Deadline or order are taken away in the transaction that journals the first of these failures, so that no later step is
told again. From then on the journal itself says whom the interrupt reaches: every step that has no outcome when that
first failure is handed to the flow. A replay hands it out at the same place, finds the same steps there, and goes on
with them; so a crash between two of the failures loses none of them.

An activity that an earlier owner may have executed, without its outcome having been seen, is not interrupted: were
it to fail here, its effect would stand, and nobody would undo it. It is executed under the same key, or its probe finds
what became of it; its branch is interrupted after it.

Who may run at the same time: the flow's own thread, which alone is here, and branches that execute steps. The clock is
the database's (``RunInbox.now``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from aft.errors import DeadlineExceeded, UndoneByHand
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures, writing
from aft.flows.asks import Ask, Landed
from aft.flows.failures import FaultSite
from aft.flows.leaving import Awaits, Block, Bounded, Failed, InLadder, Parks
from aft.flows.policy import Policy
from aft.flows.reaching import DONE_WITH, EVERYWHERE, NOWHERE, choose_order, find_done_with, is_under
from aft.flows.steps import Stepper
from aft.ids import FaultId, StepPath
from aft.runs import faults, inbox
from aft.runs.inbox import Letter
from aft.runs.journal import Entry, EntryKind, Outcome


class Interrupts:
    """The interrupts of one pass over a flow's code. For the flow's own thread."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._owner = stepper.owner
        #: Whether a step was marked that an interrupt reaches.
        self._marked = False
        #: Whether a step was told of an order, and the flow's code has not heard of that yet.
        self._is_telling = False
        #: The faults of interrupts that reach the whole run; and which of them tasks hear of at their next step.
        self._whole: set[FaultId | None] = set()
        self._owed: dict[str, FaultId] = {}
        #: The deadline that had not passed when this was asked last.
        self._ahead: datetime | None = None

    # Asking -------------------------------------------------------------------------------------------------------

    @property
    def bound(self) -> datetime | None:
        """The deadline, if it had not passed when steps were last checked."""
        return self._ahead

    def bounds(self, pause: timedelta | None) -> Iterable[Bounded]:
        """When the run must be back: at the deadline that is ahead, or after ``pause``, to begin more."""
        limits = [] if self._ahead is None else [self._ahead]
        if pause is not None:
            limits.append(self._stepper.mailbox.now + pause)
        if limits:
            yield Bounded(min(limits), begins_more=pause is not None)

    def any(self) -> bool:
        """Tell whether anything interrupts the run now; whether it reaches a step, ``reaches`` tells.

        A run that only finds out what its lost worker has done, to be undone then, hears of nothing more.
        """
        if self._stepper.standing.turns_back:
            return False
        return self._is_past() or self._marked or bool(self._owner.unheeded)

    def reaches(self, ask: Ask) -> bool:
        """Tell whether a step fails now because it is interrupted; only after ``any``."""
        if ask.entry is not None or ask.closes or not _is_interruptible(ask):
            return False
        if ask.kind is EntryKind.ACTIVITY and self._stepper.standing.is_unseen(ask.path):
            return False
        marked = ask.abandoned or ask.interrupted is not None
        return marked or self._has_passed or choose_order(self._owner, ask.path) is not None

    def may_fail(self, ask: Ask) -> bool:
        """Tell whether a step may be told now: of one order after the other, each when the flow has heard of the last.

        What the flow does then may end the branch that the next one reaches, and nobody would hear of it.
        """
        return not self._is_telling or ask.abandoned or ask.interrupted is not None or self._has_passed

    def abandon(self, asks: Iterable[Ask]) -> None:
        """Let those of these steps end whose tasks were cancelled; one that is at work comes to its end first."""
        for ask in asks:
            if ask.needed and ask.is_dropped and not ask.abandoned:
                ask.abandoned = self._marked = True

    def meet(self, ask: Ask, task: str, closes: bool) -> None:
        """Take note of a new step and of its task: if that was at work when the run was interrupted, it hears of it."""
        ask.task, ask.closes = task, closes
        if self._owed and (fault := self._owed.pop(ask.task, None)) is not None:
            ask.interrupted, self._marked = fault, True

    def pass_on(self, ask: Ask) -> None:
        """Say that a step has come to its end: if the deadline had reached it at work, its task hears of that next.

        Its failure, if it failed, is what the task hears instead.
        """
        if ask.interrupted is not None and ask.interrupted in self._whole and not (ask.has_failed or ask.is_dropped):
            self._owed[ask.task] = ask.interrupted

    def _is_past(self) -> bool:
        deadline = self._owner.run.deadline_at
        self._ahead = None if deadline is None or deadline <= self._stepper.mailbox.now else deadline
        return self._has_passed

    @property
    def _has_passed(self) -> bool:
        return self._ahead is None and self._owner.run.deadline_at is not None

    # Acting -------------------------------------------------------------------------------------------------------

    def fail(self, ask: Ask, landed: Landed | None, *, begun: str | None = None) -> Entry:
        """Journal that a step failed because it is interrupted; what it has begun elsewhere is told to stop.

        ``begun`` are the steps of its call that have been begun and have no outcome, where others have not been.
        """
        if ask.interrupted is not None:
            entry = self._record(ask, ask.interrupted, landed, begun=begun)
        elif ask.abandoned:
            entry = self._record(ask, self._describe_abandoned(ask), landed)
        elif self._has_passed:
            entry = self._fail_for_deadline(ask, landed, begun)
        else:
            entry = self._fail_for_order(ask, landed, begun)
        if ask.stop is not None:
            ask.stop()
        return entry

    def spread(self, entry: Entry, beside: Iterable[Ask]) -> None:
        """Mark the steps beside an interrupted one, now that the flow is about to hear of that."""
        if not entry.interrupt:
            return
        self._is_telling = False
        if entry.interrupt == EVERYWHERE:
            self._whole.add(entry.fault_id)
        for ask in beside:
            reached = entry.interrupt == EVERYWHERE or is_under(ask.path, entry.interrupt)
            if ask.entry is None and not ask.closes and reached:
                ask.interrupted = entry.fault_id
                self._marked = True

    def _fail_for_deadline(self, ask: Ask, landed: Landed | None, begun: str | None) -> Entry:
        owner = self._owner
        why = DeadlineExceeded(f"run {owner.run_id} had to end by {owner.run.deadline_at:%Y-%m-%d %H:%M:%S} UTC")
        fault = self._describe(why, f"the deadline passed at {ask.kind.value} {ask.name!r} (step {ask.path})")
        if ask.is_dropped:  # nobody hears of it
            return self._record(ask, fault, landed)
        entry = self._record(ask, fault, landed, begun=begun, reach=EVERYWHERE, deadline_at=None)
        owner.change(deadline_at=None)
        self._ahead = None
        return entry

    def _fail_for_order(self, ask: Ask, landed: Landed | None, begun: str | None) -> Entry:
        owner, found = self._owner, choose_order(self._owner, ask.path)
        assert found is not None
        letter, reach = found
        why = UndoneByHand(f"{letter.actor} has it undone to savepoint {letter.payload['name']!r}")
        fault = self._describe(why, f"asked for at {ask.kind.value} {ask.name!r} (step {ask.path})")
        if ask.is_dropped:  # nobody hears of it
            return self._record(ask, fault, landed)
        done_with = find_done_with(owner, letter, reach, ask.path)
        note = f"{DONE_WITH} {letter.actor}'s order to undo {letter.payload['name']!r}"
        answers = [(letter, None), *((other, note) for other in done_with)]
        self._is_telling = True
        entry = self._record(ask, fault, landed, begun=begun, reach=reach, answers=answers)
        owner.unheeded = [other for other in owner.unheeded if other is not letter and other not in done_with]
        return entry

    def _describe_abandoned(self, ask: Ask) -> Fault:
        why = asyncio.CancelledError("the task that awaited it was cancelled")
        return self._describe(
            why, f"the task that awaited {ask.kind.value} {ask.name!r} (step {ask.path}) was cancelled"
        )

    def _record(
        self,
        ask: Ask,
        why: Fault | str,
        landed: Landed | None,
        *,
        begun: str | None = None,
        reach: str = NOWHERE,
        answers: Sequence[tuple[Letter, str | None]] = (),
        **changes: Any,
    ) -> Entry:
        owner, tools = self._owner, self._stepper.tools
        entry = Entry(
            ask.path,
            ask.path.rpartition(".")[0],
            ask.kind,
            ask.name,
            Outcome.FAILED,
            tools.clock.now(),
            value=begun,
            fault_id=why.id if isinstance(why, Fault) else why,  # type: ignore[arg-type]
            key_generation=self._stepper.generation(ask.path),
            interrupt=reach,
        )
        raised = [block for block in ask.blocks if isinstance(block, Failed) and not block.written]

        def then(connection: Connection, seq: int) -> None:
            for block in raised:
                final = replace(block, fault=replace(block.fault, state=FaultState.FINAL))
                writing.write_fault(tools, owner, connection, final)
            if isinstance(why, Fault):
                faults.add(connection, tools.namespace, why)
            for letter, note in answers:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [letter], note)

        recorded = self._stepper.record(entry, then, landed, **changes)
        self._stepper.standing.passed(ask.path)
        for block in raised:
            writing.tell_raised(tools, block.fault)
        return recorded

    def _describe(self, why: BaseException, verdict: str) -> Fault:
        owner, tools = self._owner, self._stepper.tools
        return failures.describe(
            why,
            FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
            Policy(),
            tools.ladder,
            tools.clock.now(),
            state=FaultState.FINAL,
            verdict=verdict,
        )


def _is_interruptible(ask: Ask) -> bool:
    """Whether nothing of a step is at work, and nothing stands against it that concerns the run as a whole."""
    if not ask.blocks:
        return not ask.flying
    return all(_is_of(block, ask.path) for block in ask.blocks)


def _is_of(block: Block, path: StepPath) -> bool:
    """Whether it blocks just a step: one that is parked since earlier is, as long as nobody lets it be tried again."""
    if isinstance(block, Parks) and not block.stays:
        return False
    return isinstance(block, Awaits | InLadder) or (isinstance(block, Failed | Parks) and block.fault.path == path)
