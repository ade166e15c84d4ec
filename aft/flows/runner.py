"""Executing a run that this process owns, until it ends, waits, is handed over or parked.

Who may run at the same time: nobody for this run, unless this process has lost it and does not know yet; then its next
guarded write is refused (``Fenced``) and it stops, having written nothing. A crash anywhere leaves what was committed:
the journal up to the last outcome, the stack down from the frame being undone. The lease runs out, the run is rescued,
the next owner replays and goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from sqlalchemy import Connection

from aft.errors import StoreError, is_interrupt, text_of
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures, loading, writing
from aft.flows.attempt import Performer
from aft.flows.begun import Begun
from aft.flows.children import Children, answer, child_of
from aft.flows.doubts import UNDO
from aft.flows.execution import Execution
from aft.flows.failures import FaultSite
from aft.flows.leaving import (
    CONTROL_FLOW,
    Anew,
    Awaits,
    Block,
    Failed,
    GivesBack,
    HasMail,
    InLadder,
    Leave,
    NewMail,
    NotBegun,
    Over,
    Parks,
    Removes,
    Suspends,
    WriteFailed,
    is_of_step,
)
from aft.flows.loading import Recorded
from aft.flows.obedience import Obedience
from aft.flows.policy import Policy
from aft.flows.rewind import find_forgotten, find_taken_back
from aft.flows.steps import Stepper
from aft.flows.tools import Tools
from aft.flows.unwind import any_skipped, unwind, unwind_all
from aft.flows.whole import PATHS
from aft.ids import RunId
from aft.runs import families, faults, journal
from aft.runs.deeds import Write
from aft.runs.inbox import HINTS, MAIL
from aft.runs.journal import Entry
from aft.runs.owner import Fenced, Owner
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.runs.waits import WaitKind
from aft.telemetry import RunReleased, ServiceFailed, logger

#: Why a run was not cancelled that was parked before it was seen what its lost worker did.
NOT_SEEN = (
    "its worker was lost, and the run is parked before it could be seen what came of the step that it executed; "
    "retry after the fix, or cancel it once more: then what that step did, if it did anything, stays"
)
#: What keeps a run from being undone here, though that was asked for: somebody else goes on with it.
KEEPS = (GivesBack, HasMail, WriteFailed, Parks, Removes, Suspends)
#: What keeps a run before the steps that a lost worker may have begun.
IS_BEFORE = (Awaits, Failed, InLadder)


class Runner:
    """Executes runs with a process's tools. Thread-safe: what belongs to one run is made for it."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def run(
        self, row: RunRow, *, fresh: bool = False, wake: str | None = None, recorded: Recorded | None = None
    ) -> None:
        """Execute an owned run; ``fresh`` if it was just made, so that there is nothing to read.

        ``wake`` is the fault or order that called us; ``recorded`` is what was read since it was claimed.
        """
        owner = Owner(self._tools.store, self._tools.lease, row)
        if row.unreadable is not None:
            self._park_unreadable(owner, row.unreadable)
            return
        performer = Performer(self._tools.loop, self._tools.clock, self._tools.vigil, self._tools.abandoned)
        stepper = Stepper(self._tools, owner, performer, wake)
        while not self._pass(stepper, fresh, recorded):
            # Something has come for the run that changes its way; what an earlier owner may have begun stays in doubt.
            fresh, recorded, before = False, None, stepper.standing
            stepper = Stepper(self._tools, owner, performer, wake)
            stepper.standing.doubts.take_over(before.doubts)

    def _pass(self, stepper: Stepper, fresh: bool, recorded: Recorded | None) -> bool:
        """Go through the run once; False: it has to be read again, because something has come for it."""
        owner, doubts = stepper.owner, stepper.standing.doubts
        try:
            try:
                self._carry_out(stepper, [] if fresh else self._recall(stepper, recorded or self._load(owner)))
            except Leave as leave:
                leave.blocks = [self._take_back(stepper, block) for block in leave.blocks]
                if any(isinstance(block, Removes) for block in leave.blocks):
                    self._remove(stepper)
                if self._turns_back(stepper, leave):
                    return False
                writing.let_go(self._tools, owner, leave.blocks, doubts.leave())
            except Anew as anew:
                if not stepper.standing.turns_back:
                    writing.begin_anew(self._tools, owner, anew.encoded)
                doubts.forget()
                return False
        except Over:
            return True
        except NewMail:
            return False
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._lost(stepper, error)
        finally:
            stepper.course.forget()
        return True

    def _take_back(self, stepper: Stepper, block: Block) -> Block:
        """Let a run that parks for a mistake in its code forget what the code did since; nothing is at work now."""
        if not isinstance(block, Parks) or block.mistake is None:
            return block
        owner = stepper.owner

        def load() -> list[Entry]:
            return owner.read(lambda connection: journal.load(connection, owner.run_id))

        return replace(block, forgets=tuple(find_taken_back(load, stepper.course, block.mistake)))

    def _turns_back(self, stepper: Stepper, leave: Leave) -> bool:
        """Tell whether all that was in doubt has been seen, as far as it can be, and the run is undone now."""
        owner, standing = stepper.owner, stepper.standing
        if not standing.turns_back:
            return False
        parks = [block for block in leave.blocks if isinstance(block, Parks)]
        if parks and standing.doubts.any:
            answers = [*parks[0].answers, *(answer(letter, NOT_SEEN) for letter in standing.turns_back)]
            answers += [(letter, None) for letter in standing.tried_again]
            leave.blocks = [replace(parks[0], answers=tuple(answers)), *parks[1:]]
        elif parks:
            owner.read_to = standing.turns_back[0].seq - 1  # the run is woken for the order
        # What came late is undone first, and a child that was told to stop ends first: until then nothing is seen.
        waits_before = standing.doubts.before_frontier and any(isinstance(b, IS_BEFORE) for b in leave.blocks)
        if waits_before or any(isinstance(block, KEEPS) for block in leave.blocks):
            return False
        if standing.abandons and any(isinstance(block, Awaits) for block in leave.blocks):
            return False  # a child of the savepoint is being undone
        writing.keep_failures(self._tools, owner, leave.blocks)
        standing.doubts.turn_back()
        owner.has_undone = standing.abandons
        return True

    def _remove(self, stepper: Stepper) -> NoReturn:
        """End a run whose last step an exlet has taken away; what it did stays as it is."""
        Children(stepper).stop("", undo=False)
        writing.end(self._tools, stepper.owner, Status.CANCELLED, in_doubt=stepper.standing.doubts.any)
        raise Over

    def _lost(self, stepper: Stepper, error: BaseException) -> None:
        """Park the run for what will not pass: a write that is refused for good, or a defect of aft.

        For the rest lease and sweeper act. One that cannot even be parked is rescued as an orphan, which is counted:
        in the end it is parked for that.
        """
        tools, owner, row = self._tools, stepper.owner, stepper.owner.run
        passes = isinstance(error, Fenced) or (isinstance(error, StoreError) and error.transient)
        if not passes and owner.holds():
            place = FaultSite(row.id, row.epoch, None, FaultKind.FLOW, row.flow)
            state = FaultState.PARKED
            fault = failures.describe(error, place, Policy(), tools.ladder, tools.clock.now(), state=state)
            reason = f"aft could not write: {error}"
            if not isinstance(error, StoreError):
                logger.error("run failed inside aft: run=%s", row.id, exc_info=error)
                tools.telemetry.emit(ServiceFailed(service="runner", why=fault.message or fault.type))
                reason = (
                    f"a defect of aft: {fault.short_type}: {fault.message}; its traceback is in `aft faults show "
                    f"{fault.id}`: please report it; after the fix, retry goes on"
                )
            try:
                # It may have been kept from recording what a step had come to.
                stepper.standing.doubts.lose_sight()
                writing.let_go(tools, owner, [Parks(reason, fault)], stepper.standing.doubts.leave())
                return
            except (Fenced, StoreError, NewMail) as another:
                error = another
        tools.telemetry.emit(RunReleased(run=row.id, flow=row.flow, why=str(error) or repr(error)))

    def _park_unreadable(self, owner: Owner, what: str) -> None:
        """Stop a run whose row somebody has spoilt; nothing of it is executed."""
        reason = f"its row in the database cannot be read: {what}; correct that, then retry"
        place, now = FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow), self._tools.clock.now()
        error, state = ValueError(reason), FaultState.PARKED
        fault = failures.describe(error, place, Policy(), self._tools.ladder, now, state=state)
        try:
            writing.park_unreadable(self._tools, owner, fault, reason)
        except (Fenced, StoreError) as refused:
            self._tools.telemetry.emit(RunReleased(run=owner.run_id, flow=owner.run.flow, why=str(refused)))

    def _load(self, owner: Owner) -> Recorded:
        """Read what is recorded, as the row is by now; the database being away is waited for."""
        row = replace(owner.run, seq=owner.seq, inbox_seq=owner.inbox_seq)
        return owner.patiently(lambda: loading.load(self._tools.store, [row])[row.id])

    def _recall(self, stepper: Stepper, recorded: Recorded) -> list[Entry]:
        """Take over what earlier owners left, and do what was asked meanwhile; returns the outcomes."""
        owner, entries, live, letters = stepper.owner, recorded.entries, recorded.live, recorded.letters
        seen = owner.inbox_seq
        stepper.standing.remember(live, recorded.armed, recorded.undone, (entry.path for entry in entries))
        stepper.standing.owes_late = recorded.late
        stepper.mailbox.fill(letters)
        # What has come since the run was let go last is awaited no more, though its owner died before saying so.
        if owner.run.waits:
            done = {entry.path for entry in entries}
            owner.change(waits=tuple(wait for wait in owner.run.waits if wait.path not in done))
        stepper.standing.begun = Begun(_find_begun(recorded), self._find_children(stepper, entries))
        owner.read_to = max([seen, *(letter.seq for letter in letters)])
        orders = [letter for letter in letters if letter.verb not in (*MAIL, *HINTS)]
        if orders:
            Obedience(self._tools, stepper).obey(orders, live, entries)
        return entries

    def _find_children(self, stepper: Stepper, entries: list[Entry]) -> set[str]:
        """Find the steps that have begun a child, and have no outcome; a lost owner may not have said that it waits.

        A child of a step that a retry went back before is not among them: the next one there has another id.
        """
        owner = stepper.owner
        waits = [wait for wait in owner.run.waits if wait.kind is WaitKind.CHILD and not wait.path.endswith(UNDO)]
        found = {RunId(wait.name): wait.path for wait in waits}
        if stepper.standing.doubts.before_frontier:
            generation = owner.run.key_generation
            found |= owner.read(lambda connection: families.find_begun(connection, owner.run_id, generation))
        begun = {str(path) for child, path in found.items() if child == child_of(stepper, path)}
        return begun.difference(entry.path for entry in entries) if begun else begun

    def _carry_out(self, stepper: Stepper, entries: list[Entry]) -> None:
        row = stepper.owner.run
        if row.ended_as is not None:
            self._settle_late(stepper)
        elif row.status is Status.COMPENSATING:
            self._unwind(stepper)
        else:
            if stepper.standing.owes_late:
                unwind(stepper, None, Status.RECOVERING, late=True)
            self._play(stepper, entries)

    def _settle_late(self, stepper: Stepper) -> None:
        """Undo what arrived after the end; one that a person let go makes it a run that was not fully undone.

        So does a child in which one was let go after the run's own end: its end wakes the run once more.
        """
        owner = stepper.owner
        unwind(stepper, None, None, late=True)
        if owner.run.ended_as is Status.COMPENSATED:
            Children(stepper).note_standing()
        if owner.run.ended_as is Status.COMPENSATED and any_skipped(owner):
            writing.end(self._tools, owner, Status.FAILED)
        else:
            writing.release(self._tools, owner)

    # Forward ----------------------------------------------------------------------------------------------------

    def _play(self, stepper: Stepper, entries: list[Entry]) -> None:
        row = stepper.owner.run
        flow = self._tools.registry.flow(row.flow, row.version)
        execution = Execution(stepper, flow, entries)
        failure: BaseException | None = None
        try:
            result = flow.result.encode(execution.play(), "result")
            _check_turns_back(stepper)
            execution.check_end(result)
        except CONTROL_FLOW:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            failure = failures.explain_exit(error)
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            execution.check_leaving()
            execution.check_anew(failure)
            if not failures.must_park(failure):
                _check_turns_back(stepper)
            self._failed(stepper, execution, failure)
        else:
            writing.end(self._tools, stepper.owner, Status.COMPLETED, result)

    def _stop_after_pivot(self, stepper: Stepper, error: BaseException) -> Parks:
        """Park instead of undoing; a retry goes back to the step that failed, and executes it again."""
        fault, owner = failures.fault_of(error), stepper.owner
        what = str(fault) if fault is not None else f"{type(error).__name__}: {text_of(error)}"
        reason = f"failed after its pivot, so nothing is undone: {what}; after the fix, retry tries again"
        entries = owner.read(lambda connection: journal.load(connection, owner.run_id))
        forgets = tuple(find_forgotten(entries, stepper.course, error))
        if fault is not None and fault.path in [step.entry.path for step in forgets if step.same_key]:
            return Parks(reason, fault, reopens=True, forgets=forgets)
        made = self._flow_fault(stepper, error)
        return Parks(reason, replace(made, state=FaultState.PARKED), forgets=forgets)

    def _failed(self, stepper: Stepper, execution: Execution, error: BaseException) -> None:
        """An exception left the flow's code: park for its mistakes, undo everything for the rest."""
        if failures.must_park(error):
            execution.park(error)
        execution.check_spent(f"the flow now raises {type(error).__name__}")
        if stepper.owner.run.pivoted_at is not None:
            raise Leave(self._stop_after_pivot(stepper, error))
        self._begin_unwinding(stepper, error)
        self._unwind(stepper)

    def _begin_unwinding(self, stepper: Stepper, error: BaseException) -> None:
        """Turn back; raises NewMail if something was asked that was not read: from now on much of that is refused."""
        known = failures.fault_of(error)
        fault = known or self._flow_fault(stepper, error)

        def then(connection: Connection, seq: int) -> None:
            writing.check_orders(owner, connection)
            if known is None:
                faults.add(connection, self._tools.namespace, fault)

        owner, told = stepper.owner, None if known else faults.fields(self._tools.namespace, fault)
        changes = {"status": Status.COMPENSATING, "cause": "fault", "fault_id": fault.id, "deadline_at": None}
        if owner.share(Write(fault=told, turning=fault.id), read_to=owner.read_to) is None:
            owner.write(then, None, **changes)
        owner.change(**changes)
        stepper.cause = fault

    def _flow_fault(self, stepper: Stepper, error: BaseException) -> Fault:
        owner = stepper.owner
        return failures.describe(
            error,
            FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
            Policy(),
            self._tools.ladder,
            self._tools.clock.now(),
            state=FaultState.FINAL,
            verdict="raised by the flow itself: everything is undone",
        )

    # Backward ---------------------------------------------------------------------------------------------------

    def _unwind(self, stepper: Stepper) -> None:
        owner = stepper.owner
        skipped = unwind_all(stepper, stepper.cause or stepper.find_fault(owner.run.fault_id or ""))
        # What was done before a pivot stands, so a run that went past one was not fully undone.
        partly = skipped or owner.run.pivoted_at is not None or _is_unseen(owner)
        writing.end(self._tools, owner, Status.FAILED if partly else Status.COMPENSATED)


def _find_begun(recorded: Recorded) -> dict[str, str]:
    """Find the steps that have begun, and have no outcome, with the names of their activities."""
    others = {*(entry.path for entry in recorded.entries), *PATHS.values()}
    faults = [fault for fault in recorded.live if fault.kind in (FaultKind.ACTIVITY, FaultKind.CONSTRAINT)]
    failed = {str(fault.path): fault.name for fault in faults if is_of_step(fault)}
    return {path: name for path, name in (failed | recorded.armed).items() if path not in others}


def _is_unseen(owner: Owner) -> bool:
    """Tell whether a run was cancelled before anybody saw what a lost worker did: that may stand."""
    cancelled = owner.run.cause == "cancel"
    return cancelled and owner.read(lambda connection: families.was_in_doubt(connection, owner.run_id))


def _check_turns_back(stepper: Stepper) -> None:
    """Leave if the run shall be undone, where its code has come to its end before it was."""
    if stepper.standing.turns_back:
        raise Leave(NotBegun())
