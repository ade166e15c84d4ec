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
from aft.flows.children import Children
from aft.flows.execution import Execution
from aft.flows.failures import Place
from aft.flows.leaving import CONTROL_FLOW, Anew, Leave, NewMail, Over, Parks, Removes
from aft.flows.loading import Recorded
from aft.flows.obedience import Obedience
from aft.flows.policy import Policy
from aft.flows.rewind import find_forgotten
from aft.flows.steps import Stepper
from aft.flows.tools import Tools
from aft.flows.unwind import any_skipped, unwind, unwind_all
from aft.runs import faults, journal
from aft.runs.deeds import Write
from aft.runs.inbox import HINTS, MAIL
from aft.runs.journal import Entry
from aft.runs.owner import Fenced, Owner
from aft.runs.rows import RunRow
from aft.runs.states import Status
from aft.telemetry import RunReleased, ServiceFailed, logger


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
        performer = Performer(self._tools.loop, self._tools.clock, self._tools.vigil, self._tools.abandoned)
        stepper = Stepper(self._tools, owner, performer, wake)
        while not self._pass(stepper, fresh, recorded):
            # Something has come for the run that changes its way; what an earlier owner may have begun stays in doubt.
            fresh, recorded, before = False, None, stepper.standing
            stepper = Stepper(self._tools, owner, performer, wake)
            stepper.standing.take_over(before)

    def _pass(self, stepper: Stepper, fresh: bool, recorded: Recorded | None) -> bool:
        """Go through the run once; False: it has to be read again, because something has come for it."""
        owner = stepper.owner
        try:
            try:
                self._carry_out(stepper, [] if fresh else self._recall(stepper, recorded or self._load(owner)))
            except Leave as leave:
                if any(isinstance(block, Removes) for block in leave.blocks):
                    self._remove(stepper)
                writing.let_go(self._tools, owner, leave.blocks, in_doubt=stepper.standing.in_doubt)
            except Anew as anew:
                writing.begin_anew(self._tools, owner, anew.encoded)
                stepper.standing.forget_doubts()
                return False
        except Over:
            return True
        except NewMail:
            return False
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._lost(owner, error)
        return True

    def _remove(self, stepper: Stepper) -> NoReturn:
        """End a run whose last step an exlet has taken away; what it did stays as it is."""
        Children(stepper).stop("", undo=False)
        writing.end(self._tools, stepper.owner, Status.CANCELLED)
        raise Over

    def _lost(self, owner: Owner, error: BaseException) -> None:
        """Park the run for what will not pass: a write that is refused for good, or a defect of aft.

        For the rest lease and sweeper act. One that cannot even be parked is rescued as an orphan, which is counted:
        in the end it is parked for that.
        """
        tools, row = self._tools, owner.run
        passes = isinstance(error, Fenced) or (isinstance(error, StoreError) and error.transient)
        if not passes and owner.holds():
            place = Place(row.id, row.epoch, None, FaultKind.FLOW, row.flow)
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
                writing.let_go(tools, owner, [Parks(reason, fault)], in_doubt=True)
                return
            except (Fenced, StoreError, NewMail) as another:
                error = another
        tools.telemetry.emit(RunReleased(run=row.id, flow=row.flow, why=str(error) or repr(error)))

    def _load(self, owner: Owner) -> Recorded:
        """Read what is recorded, as the row is by now; the database being away is waited for."""
        row = replace(owner.run, seq=owner.seq, inbox_seq=owner.inbox_seq)
        return owner.patiently(lambda: loading.load(self._tools.store, [row])[row.id])

    def _recall(self, stepper: Stepper, recorded: Recorded) -> list[Entry]:
        """Take over what earlier owners left, and do what was asked meanwhile; returns the outcomes."""
        owner, entries, live, letters = stepper.owner, recorded.entries, recorded.live, recorded.letters
        seen = owner.inbox_seq
        stepper.standing.remember(live, recorded.armed, recorded.undone)
        stepper.standing.owes_late = recorded.late
        stepper.mailbox.fill(letters)
        # What has come since the run was let go last is awaited no more, though its owner died before saying so.
        if owner.run.waits:
            done = {entry.path for entry in entries}
            owner.change(waits=tuple(wait for wait in owner.run.waits if wait.path not in done))
        owner.read_to = max([seen, *(letter.seq for letter in letters)])
        orders = [letter for letter in letters if letter.verb not in (*MAIL, *HINTS)]
        if orders:
            Obedience(self._tools, stepper).obey(orders, live)
        return entries

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
            execution.check_end(result)
        except CONTROL_FLOW:
            raise
        except SystemExit as error:
            failure = AssertionError(f"the flow's own code called sys.exit({error.code!r})")
        except BaseException as error:
            if is_interrupt(error):
                raise
            failure = error
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            execution.check_leaving()
            execution.check_anew()
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
            Place(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow),
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
        partly = skipped or owner.run.pivoted_at is not None
        writing.end(self._tools, owner, Status.FAILED if partly else Status.COMPENSATED)
