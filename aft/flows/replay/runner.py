"""Executes a run that this process owns, until it ends, waits, is released or parked.

No other process executes this run, unless this one has lost it and does not know yet; then its next guarded write is
refused (``Fenced``) and it stops, having written nothing. A crash anywhere leaves what was committed: the journal up to
the last outcome, the stack down from the frame being undone. The lease expires, the run is rescued, and the next owner
replays and goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from sqlalchemy import Connection

from aft.errors import StoreError, is_interrupt, text_of
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.course.rewind import find_steps_to_redo, find_steps_to_redo_after_bug
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.replay.execution import Execution
from aft.flows.replay.load_session import load_records, load_session
from aft.flows.session import release
from aft.flows.session.blocks import (
    CONTROL_FLOW,
    Block,
    Blocked,
    ContinueAsNew,
    InboxChanged,
    OrdersArrived,
    ParkNeeded,
    ReleaseNeeded,
    RetryPending,
    RunOver,
    RunRemoved,
    StepFailed,
    StepNotBegun,
    SuspensionNeeded,
    WaitPending,
    WriteFailed,
)
from aft.flows.session.dependencies import Dependencies
from aft.flows.session.run_records import RunRecords
from aft.flows.steps.children import Children, refusal_of
from aft.flows.steps.run_session import RunSession
from aft.flows.steps.unwind import any_skipped, unwind, unwind_all
from aft.runs.ownership.owner import Fenced, Owner
from aft.runs.ownership.owner_writes import OwnerWrite, Recording
from aft.runs.records import faults, journal
from aft.runs.records.journal import Entry
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.runs.wakes import child_runs
from aft.telemetry import RunReleased, ServiceFailed, logger

#: Why a run was not cancelled that parked before its unknown outcomes were resolved.
NOT_SEEN = (
    "its worker was lost, and the run is parked before it could be seen what came of the step that it executed; "
    "retry after the fix, or cancel it once more: then what that step did, if it did anything, stays"
)
#: Blocks that prevent an ordered undo in this process: another owner, or a person, continues the run.
KEEPS = (ReleaseNeeded, OrdersArrived, WriteFailed, ParkNeeded, RunRemoved, SuspensionNeeded)
#: Blocks that stop a run before it reaches the steps that a lost worker may have begun.
IS_BEFORE = (WaitPending, StepFailed, RetryPending)


class Runner:
    """Executes runs with a process's dependencies. Thread-safe: each run has its own session."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    def run(
        self, row: RunRow, *, fresh: bool = False, wake: str | None = None, recorded: RunRecords | None = None
    ) -> None:
        """Execute an owned run; ``fresh`` if it was just created, so that there is nothing to read.

        ``wake`` is the fault or order that woke it; ``recorded`` are its records, read since it was claimed.
        """
        owner = Owner(self._deps.store, self._deps.lease, row)
        if row.unreadable is not None:
            self._park_unreadable(owner, row.unreadable)
            return
        session = RunSession(self._deps, owner, wake)
        try:
            while not self._pass(session, fresh, recorded):
                # An inbox item changes what the run does; steps that an earlier owner may have begun stay in doubt.
                fresh, recorded, before = False, None, session.step_states
                session = RunSession(self._deps, owner, wake)
                session.step_states.unknown.take_over(before.unknown)
        finally:
            owner.finish()

    def _pass(self, session: RunSession, fresh: bool, recorded: RunRecords | None) -> bool:
        """Execute the run in one pass; False: it has to be read again and needs another pass."""
        owner, unknown = session.owner, session.step_states.unknown
        try:
            try:
                entries = [] if fresh else load_session(session, recorded or load_records(session))
                unknown.may_grow = True
                self._carry_out(session, entries)
            except Blocked as leave:
                leave.blocks = [self._take_back(session, block) for block in leave.blocks]
                if any(isinstance(block, RunRemoved) for block in leave.blocks):
                    self._remove(session)
                if self._turns_back(session, leave):
                    return False
                release.release_run(self._deps, owner, leave.blocks, unknown.make_handover())
            except ContinueAsNew as renewal:
                if not session.step_states.undo_orders:
                    release.begin_generation(self._deps, owner, renewal.encoded)
                unknown.clear()
                return False
        except RunOver:
            return True
        except InboxChanged:
            return False
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._lost(session, error)
        finally:
            session.course.clear()
        return True

    def _take_back(self, session: RunSession, block: Block) -> Block:
        """Make a run that parks for a programming error redo what its code did since; no branch is at work now."""
        if not isinstance(block, ParkNeeded) or block.mistake is None:
            return block
        owner = session.owner

        def load() -> list[Entry]:
            return owner.read(lambda connection: journal.load(connection, owner.run_id))

        return replace(block, redoes=tuple(find_steps_to_redo_after_bug(load, session.course, block.mistake)))

    def _turns_back(self, session: RunSession, leave: Blocked) -> bool:
        """Whether every unknown outcome is resolved as far as it can be, so that the ordered undo begins now."""
        owner, step_states = session.owner, session.step_states
        if not step_states.undo_orders:
            return False
        parks = [block for block in leave.blocks if isinstance(block, ParkNeeded)]
        if parks and step_states.unknown.any:
            answers = [*parks[0].answers, *(refusal_of(item, NOT_SEEN) for item in step_states.undo_orders)]
            answers += [(item, None) for item in step_states.tried_again]
            leave.blocks = [replace(parks[0], answers=tuple(answers)), *parks[1:]]
        elif parks:
            owner.read_to = step_states.undo_orders[0].seq - 1  # the run is woken for the order
        # Late effects are undone first, and a child that is being stopped ends first: until then outcomes stay unknown.
        waits_before = step_states.unknown.before_journal_end and any(isinstance(b, IS_BEFORE) for b in leave.blocks)
        if waits_before or any(isinstance(block, KEEPS) for block in leave.blocks):
            return False
        if step_states.cancels_as_is and any(isinstance(block, WaitPending) for block in leave.blocks):
            return False  # a child of the savepoint is being undone
        release.record_failures(self._deps, owner, leave.blocks)
        step_states.unknown.keep_compensators_only()
        owner.has_undone = step_states.cancels_as_is
        return True

    def _remove(self, session: RunSession) -> NoReturn:
        """End a run whose last step an exlet has removed; its effects stay."""
        Children(session).stop("", undo=False)
        release.end(self._deps, session.owner, Status.CANCELLED, in_doubt=session.step_states.unknown.any)
        raise RunOver

    def _lost(self, session: RunSession, error: BaseException) -> None:
        """Park the run for a permanent problem: a write that is refused for good, or a defect of aft.

        Otherwise lease and sweeper act. A run that cannot even be parked is rescued as an orphan, which is counted: in
        the end it is parked for that. Emits: ServiceFailed, RunReleased.
        """
        deps, owner, row = self._deps, session.owner, session.owner.run
        passes = isinstance(error, Fenced) or (isinstance(error, StoreError) and error.transient)
        if not passes and owner.is_leased():
            place = FaultSite(row.id, row.epoch, None, FaultKind.FLOW, row.flow)
            state = FaultState.PARKED
            fault = failures.make_fault(error, place, Policy(), deps.ladder, deps.clock.now(), state=state)
            reason = f"aft could not write: {error}"
            if not isinstance(error, StoreError):
                logger.error("run failed inside aft: run=%s", row.id, exc_info=error)
                deps.telemetry.emit(ServiceFailed(service="runner", why=fault.message or fault.type))
                reason = (
                    f"a defect of aft: {fault.short_type}: {fault.message}; its traceback is in `aft faults show "
                    f"{fault.id}`: please report it; after the fix, retry goes on"
                )
            try:
                _park_lost(session, fault, reason)
                return
            except (Fenced, StoreError, InboxChanged) as another:
                error = another
        deps.telemetry.emit(RunReleased(run=row.id, flow=row.flow, why=str(error) or repr(error)))

    def _park_unreadable(self, owner: Owner, what: str) -> None:
        """Park a run whose row cannot be decoded; nothing of it is executed."""
        reason = f"its row in the database cannot be read: {what}; correct that, then retry"
        place, now = FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow), self._deps.clock.now()
        error, state = ValueError(reason), FaultState.PARKED
        fault = failures.make_fault(error, place, Policy(), self._deps.ladder, now, state=state)
        try:
            release.park_unreadable(self._deps, owner, fault, reason)
        except (Fenced, StoreError) as refused:
            self._deps.telemetry.emit(RunReleased(run=owner.run_id, flow=owner.run.flow, why=str(refused)))

    def _carry_out(self, session: RunSession, entries: list[Entry]) -> None:
        row = session.owner.run
        if row.ended_as is not None:
            self._undo_late_effects(session)
        elif row.status is Status.COMPENSATING:
            self._unwind(session)
        else:
            if session.step_states.owes_late_effects:
                unwind(session, None, Status.RECOVERING, late=True)
            self._play(session, entries)

    def _undo_late_effects(self, session: RunSession) -> None:
        """Undo late effects that arrived after the run's end; if a person skips one, the run ends as failed.

        So it does if one was skipped in a child after the run's own end: the child's end wakes the run once more.
        """
        owner = session.owner
        unwind(session, None, None, late=True)
        if owner.run.ended_as is Status.COMPENSATED:
            Children(session).mark_children_not_undone()
        if owner.run.ended_as is Status.COMPENSATED and any_skipped(owner):
            release.end(self._deps, owner, Status.FAILED)
        else:
            release.release_ended(self._deps, owner)

    # Forward ----------------------------------------------------------------------------------------------------

    def _play(self, session: RunSession, entries: list[Entry]) -> None:
        row = session.owner.run
        flow = self._deps.registry.flow(row.flow, row.version)
        execution = Execution(session, flow, entries)
        failure: BaseException | None = None
        try:
            result = flow.result.encode(execution.play(), "result")
            _check_turns_back(session)
            execution.check_end(result)
        except CONTROL_FLOW:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            failure = failures.explain_exit(error)
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            execution.exit.check()
            execution.exit.renewal.check_raised(failure)
            if not failures.must_park(failure):
                _check_turns_back(session)
            self._failed(session, execution, failure)
        else:
            release.end(self._deps, session.owner, Status.COMPLETED, result)

    def _stop_after_pivot(self, session: RunSession, error: BaseException) -> ParkNeeded:
        """Return the block that parks a run instead of undoing it; a retry executes the failed step again."""
        fault, owner = failures.fault_of(error), session.owner
        what = str(fault) if fault is not None else f"{type(error).__name__}: {text_of(error)}"
        reason = f"failed after its pivot, so nothing is undone: {what}; after the fix, retry tries again"
        entries = owner.read(lambda connection: journal.load(connection, owner.run_id))
        redone = tuple(find_steps_to_redo(entries, session.course, error))
        if fault is not None and fault.path in [step.entry.path for step in redone if step.same_key]:
            return ParkNeeded(reason, fault, reopens=True, redoes=redone)
        made = self._flow_fault(session, error)
        return ParkNeeded(reason, replace(made, state=FaultState.PARKED), redoes=redone)

    def _failed(self, session: RunSession, execution: Execution, error: BaseException) -> None:
        """Handle an exception that left the flow's code: park for programming errors, undo everything otherwise."""
        if failures.must_park(error):
            execution.exit.park(error)
        execution.check_spent(f"the flow now raises {type(error).__name__}")
        if session.owner.run.pivoted_at is not None:
            raise Blocked(self._stop_after_pivot(session, error))
        self._begin_unwinding(session, error)
        self._unwind(session)

    def _begin_unwinding(self, session: RunSession, error: BaseException) -> None:
        """Set the run to compensating; raises InboxChanged if an order is unread: most are refused from now on."""
        known = failures.fault_of(error)
        fault = known or self._flow_fault(session, error)

        def then(connection: Connection, seq: int) -> None:
            release.check_orders(owner, connection)

        owner, row_fields = session.owner, None if known else faults.fields(self._deps.namespace, fault)
        changes = {"status": Status.COMPENSATING, "cause": "fault", "fault_id": fault.id, "deadline_at": None}
        write = OwnerWrite(fault=row_fields, changes=changes)
        if owner.share(write, read_to=owner.read_to) is None:
            owner.write(Recording(write, then))
        owner.change(**changes)
        session.cause = fault

    def _flow_fault(self, session: RunSession, error: BaseException) -> Fault:
        owner = session.owner
        return failures.make_fault(
            error,
            FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
            Policy(),
            self._deps.ladder,
            self._deps.clock.now(),
            state=FaultState.FINAL,
            why="raised by the flow itself: everything is undone",
        )

    # Backward ---------------------------------------------------------------------------------------------------

    def _unwind(self, session: RunSession) -> None:
        owner = session.owner
        skipped = unwind_all(session, session.cause or session.find_cause())
        # Effects before a pivot remain, so a run that went past one was not fully undone.
        partly = skipped or owner.run.pivoted_at is not None or _is_unseen(owner)
        release.end(self._deps, owner, Status.FAILED if partly else Status.COMPENSATED)


def _park_lost(session: RunSession, fault: Fault, reason: str) -> None:
    """Park a run that cannot go on for a permanent problem.

    An order that this pass could not read, or has not come to, stays unread: it is carried out with the next one. It
    must not wake the run by itself, which would only park again, and again.
    """
    owner, unknown = session.owner, session.step_states.unknown
    if unknown.may_grow:
        unknown.note_all_unknown()  # the outcome of a step may not have been recorded
    owner.read_to = max(owner.read_to, session.inbox_length)
    same = owner.read(lambda connection: faults.find_same(connection, fault))
    release.release_run(session.deps, owner, [ParkNeeded(reason, fault, replaces=same)], unknown.make_handover())


def _is_unseen(owner: Owner) -> bool:
    """Whether a run was cancelled with unknown outcomes of a lost worker: its effects may remain."""
    cancelled = owner.run.cause == "cancel"
    return cancelled and owner.read(lambda connection: child_runs.was_in_doubt(connection, owner.run_id))


def _check_turns_back(session: RunSession) -> None:
    """Raise Blocked if the run is to be undone, but its code has ended first."""
    if session.step_states.undo_orders:
        raise Blocked(StepNotBegun())
