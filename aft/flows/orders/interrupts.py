"""Interrupts a run where it is: at its deadline, for an order to undo a savepoint, or for a cancelled task.

An interrupt reaches every branch that is blocked or about to begin a step, in the savepoint or in the whole run: its
step fails, and the flow's code gets an exception there, once in each branch. What the flow catches and what is undone
follows from there as for any failure. A ladder ends with it, a wait is dropped, a child is stopped and undone before
the flow's code gets the exception. A step at work is completed; if it fails, that is final, too.

A step is abandoned if the task that awaits it was cancelled, as in "the first supplier wins". It fails like an
interrupted one, but alone, and no code gets the failure: it is not begun or tried any more, and its child is undone.

Deadline or order are cleared in the transaction that journals the first of these failures, so that no later step fails
for them again. From then on the journal itself shows whom the interrupt reaches: every step that has no outcome when
that first failure is returned to the flow. A replay returns it at the same place, finds the same steps there, and goes
on with them; so a crash between two of the failures loses none of them.

An activity that an earlier owner may have executed unseen is not interrupted: if it failed here, its effect would
remain and never be undone. It is executed under the same key, or its probe finds its result; its branch is interrupted
after it.

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
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.session import release
from aft.flows.session.blocks import Block, ParkNeeded, RetryPending, StepFailed, WaitPending, WakeAt
from aft.flows.session.savepoint_orders import DONE_WITH, EVERYWHERE, NOWHERE, choose_order, find_fulfilled, is_under
from aft.flows.steps.request import OnRecorded, StepRequest
from aft.flows.steps.run_session import RunSession
from aft.ids import FaultId, StepPath
from aft.runs.records import faults, inbox
from aft.runs.records.inbox import InboxItem
from aft.runs.records.journal import Entry, EntryKind, Outcome


class Interrupts:
    """The interrupts of one pass over a flow's code. For the flow's own thread."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._owner = session.owner
        #: Whether a step was marked that an interrupt reaches.
        self._marked = False
        #: Whether an order has interrupted a step, and the flow's code has not got that failure yet.
        self._is_delivering = False
        #: The faults of interrupts that reach the whole run; and those that interrupt a task's next step, by branch.
        self._whole: set[FaultId | None] = set()
        self._owed: dict[str, FaultId] = {}
        #: The deadline, if it had not passed when last checked.
        self._ahead: datetime | None = None

    # Queries ------------------------------------------------------------------------------------------------------

    @property
    def deadline_ahead(self) -> datetime | None:
        """The deadline, if it had not passed when steps were last checked."""
        return self._ahead

    def wake_times(self, pause: timedelta | None) -> Iterable[WakeAt]:
        """Yield when the run must be taken up again: at its deadline, or after ``pause``, to begin more steps."""
        limits = [] if self._ahead is None else [self._ahead]
        if pause is not None:
            limits.append(self._session.run_inbox.now + pause)
        if limits:
            yield WakeAt(min(limits), begins_more=pause is not None)

    def is_pending(self) -> bool:
        """Whether anything interrupts the run now; ``reaches`` decides about one step.

        A run that only resolves unknown outcomes, to be undone then, is not interrupted any more.
        """
        if self._session.step_states.undo_orders:
            return False
        return self._is_past() or self._marked or bool(self._owner.pending_orders)

    def reaches(self, step: StepRequest) -> bool:
        """Whether a step fails now because of an interrupt; call it only after ``is_pending``."""
        if step.entry is not None or step.in_generator_close or not _is_interruptible(step):
            return False
        if step.kind is EntryKind.ACTIVITY and self._session.step_states.is_unseen(step.path):
            return False
        marked = step.task_cancelled or step.interrupted is not None
        return marked or self._has_passed or choose_order(self._owner, step.path) is not None

    def may_fail(self, step: StepRequest) -> bool:
        """Whether this step may be interrupted now: one order at a time.

        What the flow does after an order may end the branch that the next order reaches, and that interrupt would be
        lost.
        """
        return not self._is_delivering or step.task_cancelled or step.interrupted is not None or self._has_passed

    def end_cancelled(self, steps: Iterable[StepRequest]) -> None:
        """Mark steps whose tasks were cancelled, so that they end; one at work is completed first."""
        for step in steps:
            if step.needed and step.is_dropped and not step.task_cancelled:
                step.task_cancelled = self._marked = True

    def note_task(self, step: StepRequest, task: str, in_generator_close: bool) -> None:
        """Note a new step's task; the step is interrupted if the deadline passed while that task was at work."""
        step.task, step.in_generator_close = task, in_generator_close
        if self._owed and (fault := self._owed.pop(step.task, None)) is not None:
            step.interrupted, self._marked = fault, True

    def note_ended(self, step: StepRequest) -> None:
        """Note that a step has ended; if the deadline passed while it was at work, its task's next step is interrupted.

        If the step failed, the task gets that failure instead.
        """
        if (
            step.interrupted is not None
            and step.interrupted in self._whole
            and not (step.has_failed or step.is_dropped)
        ):
            self._owed[step.task] = step.interrupted

    def _is_past(self) -> bool:
        deadline = self._owner.run.deadline_at
        self._ahead = None if deadline is None or deadline <= self._session.run_inbox.now else deadline
        return self._has_passed

    @property
    def _has_passed(self) -> bool:
        return self._ahead is None and self._owner.run.deadline_at is not None

    # Acting -------------------------------------------------------------------------------------------------------

    def fail(self, step: StepRequest, on_recorded: OnRecorded | None, *, begun: str | None = None) -> Entry:
        """Journal that a step failed because of an interrupt, and stop its child, if any.

        ``begun`` are the steps of its call that have been begun and have no outcome, if others have not been begun.
        """
        if step.interrupted is not None:
            entry = self._record(step, step.interrupted, on_recorded, begun=begun)
        elif step.task_cancelled:
            entry = self._record(step, self._describe_cancelled(step), on_recorded)
        elif self._has_passed:
            entry = self._fail_for_deadline(step, on_recorded, begun)
        else:
            entry = self._fail_for_order(step, on_recorded, begun)
        if step.stop is not None:
            step.stop()
        return entry

    def mark_beside(self, entry: Entry, beside: Iterable[StepRequest]) -> None:
        """Mark the steps beside an interrupted one, now that the flow is about to get its failure."""
        if not entry.interrupt:
            return
        self._is_delivering = False
        if entry.interrupt == EVERYWHERE:
            self._whole.add(entry.fault_id)
        for step in beside:
            reached = entry.interrupt == EVERYWHERE or is_under(step.path, entry.interrupt)
            if step.entry is None and not step.in_generator_close and reached:
                step.interrupted = entry.fault_id
                self._marked = True

    def _fail_for_deadline(self, step: StepRequest, on_recorded: OnRecorded | None, begun: str | None) -> Entry:
        owner = self._owner
        why = DeadlineExceeded(f"run {owner.run_id} had to end by {owner.run.deadline_at:%Y-%m-%d %H:%M:%S} UTC")
        fault = self._describe(why, f"the deadline passed at {step.kind.value} {step.name!r} (step {step.path})")
        if step.is_dropped:  # its task was cancelled
            return self._record(step, fault, on_recorded)
        entry = self._record(step, fault, on_recorded, begun=begun, reach=EVERYWHERE, deadline_at=None)
        owner.change(deadline_at=None)
        self._ahead = None
        return entry

    def _fail_for_order(self, step: StepRequest, on_recorded: OnRecorded | None, begun: str | None) -> Entry:
        owner, found = self._owner, choose_order(self._owner, step.path)
        assert found is not None
        item, reach = found
        why = UndoneByHand(f"{item.actor} has it undone to savepoint {item.payload['name']!r}")
        fault = self._describe(why, f"asked for at {step.kind.value} {step.name!r} (step {step.path})")
        if step.is_dropped:  # its task was cancelled
            return self._record(step, fault, on_recorded)
        done_with = find_fulfilled(owner, item, reach, step.path)
        note = f"{DONE_WITH} {item.actor}'s order to undo {item.payload['name']!r}"
        answers = [(item, None), *((other, note) for other in done_with)]
        self._is_delivering = True
        entry = self._record(step, fault, on_recorded, begun=begun, reach=reach, answers=answers)
        owner.pending_orders = [other for other in owner.pending_orders if other is not item and other not in done_with]
        return entry

    def _describe_cancelled(self, step: StepRequest) -> Fault:
        why = asyncio.CancelledError("the task that awaited it was cancelled")
        return self._describe(
            why, f"the task that awaited {step.kind.value} {step.name!r} (step {step.path}) was cancelled"
        )

    def _record(
        self,
        step: StepRequest,
        why: Fault | str,
        on_recorded: OnRecorded | None,
        *,
        begun: str | None = None,
        reach: str = NOWHERE,
        answers: Sequence[tuple[InboxItem, str | None]] = (),
        **changes: Any,
    ) -> Entry:
        owner, deps = self._owner, self._session.deps
        entry = Entry(
            step.path,
            step.path.rpartition(".")[0],
            step.kind,
            step.name,
            Outcome.FAILED,
            deps.clock.now(),
            value=begun,
            fault_id=why.id if isinstance(why, Fault) else why,  # type: ignore[arg-type]
            key_generation=self._session.generation(step.path),
            interrupt=reach,
        )
        raised = [block for block in step.blocks if isinstance(block, StepFailed) and not block.written]

        def then(connection: Connection, seq: int) -> None:
            for block in raised:
                final = replace(block, fault=replace(block.fault, state=FaultState.FINAL))
                release.write_fault(deps, owner, connection, final)
            if isinstance(why, Fault):
                faults.add(connection, deps.namespace, why)
            for item, note in answers:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [item], note)

        recorded = self._session.record(entry, then, on_recorded, **changes)
        self._session.step_states.note_recorded(step.path)
        for block in raised:
            release.emit_raised(deps, block.fault)
        return recorded

    def _describe(self, error: BaseException, why: str) -> Fault:
        owner, deps = self._owner, self._session.deps
        return failures.make_fault(
            error,
            FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
            Policy(),
            deps.ladder,
            deps.clock.now(),
            state=FaultState.FINAL,
            why=why,
        )


def _is_interruptible(step: StepRequest) -> bool:
    """Whether a step is not at work, and has no block that concerns the whole run."""
    if not step.blocks:
        return not step.running
    return all(_is_of(block, step.path) for block in step.blocks)


def _is_of(block: Block, path: StepPath) -> bool:
    """Whether a block concerns only this step; so does an earlier parking that no person has lifted."""
    if isinstance(block, ParkNeeded) and not block.stays:
        return False
    return isinstance(block, WaitPending | RetryPending) or (
        isinstance(block, StepFailed | ParkNeeded) and block.fault.path == path
    )
