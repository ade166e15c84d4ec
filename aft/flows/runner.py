"""Executing a run that this process owns, until it ends, waits, is handed over or parked.

Who may run at the same time: nobody for this run, unless this process has lost it and does not know yet; then its next
guarded write is refused (``Fenced``) and it stops, having written nothing. A crash anywhere leaves what was committed:
the journal up to the last outcome, the stack down from the frame being undone. The lease runs out, the run is rescued,
the next owner replays and goes on.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import NoReturn

from sqlalchemy import Connection

from aft.errors import StoreError
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures, loading, writing
from aft.flows.attempt import Performer
from aft.flows.children import Children
from aft.flows.execution import Execution
from aft.flows.failures import Place
from aft.flows.leaving import Anew, Leave, NewMail, Over, Parks, Removes
from aft.flows.loading import Recorded
from aft.flows.obedience import Obedience
from aft.flows.policy import Policy
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
from aft.telemetry import RunReleased


class Runner:
    """Executes runs with a process's tools. Thread-safe: what belongs to one run is made for it."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def run(
        self, row: RunRow, *, fresh: bool = False, wake: str | None = None, recorded: Recorded | None = None
    ) -> list[threading.Thread]:
        """Execute an owned run; ``fresh`` if it was just made, so that there is nothing to read.

        ``wake`` is the fault or order that called us; ``recorded`` is what was read since it was claimed. Returns the
        threads of attempts that were given up and have not returned: they still hold resources.
        """
        owner = Owner(self._tools.store, self._tools.lease, row)
        performer = Performer(self._tools.loop, self._tools.clock, self._tools.vigil)
        stepper = Stepper(self._tools, owner, performer, wake)
        while not self._pass(stepper, fresh, recorded):
            # Something has come for the run that changes its way; what an earlier owner may have begun stays in doubt.
            fresh, recorded, unseen = False, None, stepper.standing.has_doubts
            stepper = Stepper(self._tools, owner, performer, wake)
            stepper.standing.unseen = unseen
        return performer.abandoned

    def _pass(self, stepper: Stepper, fresh: bool, recorded: Recorded | None) -> bool:
        """Go through the run once; False: it has to be read again, because something has come for it."""
        owner = stepper.owner
        try:
            try:
                self._carry_out(stepper, [] if fresh else self._recall(stepper, recorded or self._load(owner)))
            except Leave as leave:
                if any(isinstance(block, Removes) for block in leave.blocks):
                    self._remove(stepper)
                writing.let_go(self._tools, owner, leave.blocks)
            except Anew as anew:
                writing.begin_anew(self._tools, owner, anew.encoded)
                return False
        except Over:
            return True
        except NewMail:
            return False
        except Exception as error:
            self._lost(owner, error)
        return True

    def _remove(self, stepper: Stepper) -> NoReturn:
        """End a run whose last step an exlet has taken away; what it did stays as it is."""
        Children(stepper).stop("", undo=False)
        writing.end(self._tools, stepper.owner, Status.CANCELLED)
        raise Over

    def _lost(self, owner: Owner, error: Exception) -> None:
        """Something could not be written: if it never can be, a person must see it; else lease and sweeper act."""
        tools, row = self._tools, owner.run
        if not isinstance(error, Fenced | StoreError):
            raise error
        if isinstance(error, StoreError) and not error.transient and owner.holds():
            place = Place(row.id, row.epoch, None, FaultKind.FLOW, row.flow)
            state = FaultState.PARKED
            fault = failures.describe(error, place, Policy(), tools.ladder, tools.clock.now(), state=state)
            try:
                writing.let_go(tools, owner, [Parks(f"aft could not write: {error}", fault)])
                return
            except (Fenced, StoreError, NewMail) as another:
                error = another
        tools.telemetry.emit(RunReleased(run=row.id, flow=row.flow, why=str(error)))

    def _load(self, owner: Owner) -> Recorded:
        """Read what is recorded, as the row is by now; the database being away is waited for."""
        row = replace(owner.run, seq=owner.seq, inbox_seq=owner.inbox_seq)
        return owner.patiently(lambda: loading.load(self._tools.store, [row])[row.id])

    def _recall(self, stepper: Stepper, recorded: Recorded) -> list[Entry]:
        """Take over what earlier owners left, and do what was asked meanwhile; returns the outcomes."""
        owner, entries, live, letters = stepper.owner, recorded.entries, recorded.live, recorded.letters
        seen = owner.inbox_seq
        stepper.standing.remember(live, recorded.armed, recorded.undone)
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
            self._play(stepper, entries)

    def _settle_late(self, stepper: Stepper) -> None:
        """Undo what arrived after the end; one that a person let go makes it a run that was not fully undone."""
        owner = stepper.owner
        unwind(stepper, None, None, late=True)
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
        except (Exception, asyncio.CancelledError) as error:
            failure = error
        except SystemExit as error:
            failure = AssertionError(f"the flow's own code called sys.exit({error.code!r})")
        # Outside the handler: what a compensator raises must not carry this as its context.
        if failure is not None:
            execution.check_leaving()
            self._failed(stepper, execution, failure)
        else:
            writing.end(self._tools, stepper.owner, Status.COMPLETED, result)

    def _stop_after_pivot(self, stepper: Stepper, error: BaseException) -> Parks:
        """Park instead of undoing; the step that failed last is tried again by a retry."""
        fault = failures.fault_of(error)
        owner = stepper.owner
        last = owner.read(lambda connection: journal.last(connection, owner.run_id))
        what = str(fault) if fault is not None else repr(error)
        reason = f"failed after its pivot, so nothing is undone: {what}; after the fix, retry tries again"
        if fault is not None and fault.path is not None and last is not None and last.fault_id == fault.id:
            return Parks(reason, fault, stepper.standing.replaced(), reopens=True)
        made = self._flow_fault(stepper, error)
        return Parks(reason, replace(made, state=FaultState.PARKED), stepper.standing.replaced())

    def _failed(self, stepper: Stepper, execution: Execution, error: BaseException) -> None:
        """An exception left the flow's code: park for its mistakes, undo everything for the rest."""
        if failures.must_park(error):
            execution.park(error)
        execution.check_spent(f"the flow now raises {type(error).__name__}")
        if execution.pivoted:
            raise Leave(self._stop_after_pivot(stepper, error))
        self._begin_unwinding(stepper, error)
        self._unwind(stepper)

    def _begin_unwinding(self, stepper: Stepper, error: BaseException) -> None:
        known = failures.fault_of(error)
        fault = known or self._flow_fault(stepper, error)

        def then(connection: Connection, seq: int) -> None:
            if known is None:
                faults.add(connection, self._tools.namespace, fault)

        owner, told = stepper.owner, None if known else faults.fields(self._tools.namespace, fault)
        changes = {"status": Status.COMPENSATING, "cause": "fault", "fault_id": fault.id, "deadline_at": None}
        if owner.share(Write(fault=told, turning=fault.id)) is None:
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
        writing.end(self._tools, owner, Status.FAILED if skipped else Status.COMPENSATED)
