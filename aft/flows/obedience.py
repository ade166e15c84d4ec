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
from aft.flows.children import Children
from aft.flows.leaving import Leave, Suspends
from aft.flows.steps import Stepper
from aft.flows.tools import Tools
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
        """Do what was asked; leaves if the run shall stop."""
        owner = self._stepper.owner
        parked = [fault for fault in live if fault.state is FaultState.PARKED]
        changes = self._changes(letters)

        def then(connection: Connection, seq: int) -> None:
            for letter in letters:
                _settle_frame(connection, owner, letter)
            faults.settle(connection, [fault.id for fault in parked], FaultState.RESOLVED)
            inbox.mark_read(connection, owner.run_id, owner.epoch, letters)

        written = {name: value for name, value in changes.items() if value != Status.CANCELLED}
        owner.write(then, **NO_PROGRESS, **written)
        owner.change(**changes)
        for fault in parked:
            self._stepper.standing.forget(fault)
        if changes.get("status") is Status.CANCELLED:
            Children(self._stepper).stop("", undo=False)
        if letters[-1].verb is Verb.SUSPEND and owner.run.status is not Status.COMPENSATING:
            raise Leave(Suspends(f"suspended by {letters[-1].actor}: {letters[-1].payload.get('note') or 'no note'}"))

    def _changes(self, letters: list[Letter]) -> dict[str, Any]:
        """What becomes of the run's row: it is undone from now on, or ends as it is."""
        run = self._stepper.owner.run
        cancels = [letter for letter in letters if letter.verb is Verb.CANCEL]
        if cancels and run.ended_as is None and run.cause is None:
            if not cancels[-1].payload.get("compensate", True):
                return {"status": Status.CANCELLED}
            return {"status": Status.COMPENSATING, "cause": "cancel"}
        if any(letter.verb is Verb.COMPENSATE for letter in letters) and run.ended_as is Status.COMPLETED:
            return {"status": Status.COMPENSATING, "cause": "order", "ended_as": None, "ended_at": None}
        return {}


def _settle_frame(connection: Connection, owner: Owner, letter: Letter) -> None:
    states: dict[Verb, FrameState] = {Verb.SKIP: FrameState.SKIPPED, Verb.DONE: FrameState.DONE}
    if letter.verb in states:
        path = str(letter.payload["path"]).removesuffix("/undo")
        note: Any = letter.payload.get("note")
        stack.settle_step(connection, owner.run_id, path, states[letter.verb], note)
