"""Doing what people asked of a run, when its owner reads it: in the transaction that marks their letters read.

The last word counts where two contradict each other. A crash before the commit leaves the letters unread, for the next
owner; after it, what was asked lies in the run's own row.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.fault import Fault, FaultState
from aft.flows import writing
from aft.flows.children import Children
from aft.flows.leaving import Leave, Over, Suspends
from aft.flows.steps import Stepper
from aft.flows.tools import Tools
from aft.rules import kept
from aft.runs import faults, inbox
from aft.runs.inbox import Letter, Verb
from aft.runs.owner import NO_PROGRESS, Owner
from aft.runs.states import Status


class Obedience:
    """Obeys for one owner."""

    def __init__(self, tools: Tools, stepper: Stepper) -> None:
        self._tools = tools
        self._stepper = stepper

    def obey(self, letters: list[Letter], live: list[Fault]) -> None:
        """Do what was asked; leaves if the run shall stop, raises Over if it has ended by that."""
        owner = self._stepper.owner
        if self._is_abandoned(letters):
            # Children first: they are told once, however often this is repeated.
            Children(self._stepper).stop("", undo=False)
            writing.end(self._tools, owner, Status.CANCELLED, letters=letters, asked=True)
            raise Over
        parked = [fault for fault in live if fault.state is FaultState.PARKED]
        again = {fault.id: ruling for fault in parked if (ruling := kept.begin_again(fault)) is not None}
        changes = self._changes(letters)
        suspends = self._suspends(letters) if not changes else None
        owner.unheeded = None if changes else self._undoes_to(letters)
        # One that suspends is read when the run is let go for it: something may come in between. One that undoes to a
        # savepoint is read when a step was told.
        later = [*(suspends.letters if suspends is not None else ()), owner.unheeded]
        heeded = [letter for letter in letters if letter not in later]

        def then(connection: Connection, seq: int) -> None:
            for letter in heeded:
                _settle_frame(connection, owner, letter)
            faults.settle(connection, [fault.id for fault in parked if fault.id not in again], FaultState.RESOLVED)
            for fault_id, ruling in again.items():
                faults.reopen(connection, fault_id, ruling)
            inbox.mark_read(connection, owner.run_id, owner.epoch, heeded)

        owner.write(then, **NO_PROGRESS, **changes)
        owner.change(**changes)
        for fault in parked:
            self._stepper.standing.forget(fault, again.get(fault.id))
        if suspends is not None:
            raise Leave(suspends)

    def _is_abandoned(self, letters: list[Letter]) -> bool:
        run, cancels = self._stepper.owner.run, [letter for letter in letters if letter.verb is Verb.CANCEL]
        going = run.ended_as is None and run.cause is None
        return bool(cancels) and going and not cancels[-1].payload.get("compensate", True)

    def _suspends(self, letters: list[Letter]) -> Suspends | None:
        last, run = letters[-1], self._stepper.owner.run
        if last.verb is not Verb.SUSPEND or run.ended_as is not None or run.status is Status.COMPENSATING:
            return None
        asked = tuple(letter for letter in letters if letter.verb is Verb.SUSPEND)
        why = f"suspended by {last.actor}: {last.payload.get('note') or 'no note'}"
        return Suspends(why, asked, doubt=self._stepper.standing.in_doubt)

    def _undoes_to(self, letters: list[Letter]) -> Letter | None:
        asked = [letter for letter in letters if letter.verb is Verb.COMPENSATE and "to" in letter.payload]
        return asked[-1] if asked and self._stepper.owner.run.ended_as is None else None

    def _changes(self, letters: list[Letter]) -> dict[str, Any]:
        """What becomes of the run's row: it is undone from now on."""
        run = self._stepper.owner.run
        cancelled = any(letter.verb is Verb.CANCEL for letter in letters)
        if cancelled and run.ended_as is None and run.cause is None:
            return {"status": Status.COMPENSATING, "cause": "cancel", "deadline_at": None}
        if any(letter.verb is Verb.COMPENSATE for letter in letters) and run.ended_as is Status.COMPLETED:
            return {"status": Status.COMPENSATING, "cause": "order", "ended_as": None, "ended_at": None}
        return {}


def _settle_frame(connection: Connection, owner: Owner, letter: Letter) -> None:
    states: dict[Verb, FrameState] = {Verb.SKIP: FrameState.SKIPPED, Verb.DONE: FrameState.DONE}
    if letter.verb in states:
        path = str(letter.payload["path"]).removesuffix("/undo")
        note: Any = letter.payload.get("note")
        stack.settle_step(connection, owner.run_id, path, states[letter.verb], note)
