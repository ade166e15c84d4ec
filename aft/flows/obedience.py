"""Doing what people asked of a run, when its owner reads it: in the transaction that marks their letters read.

The last word counts where two contradict each other. A crash before the commit leaves the letters unread, for the next
owner; after it, what was asked lies in the run's own row.

A run that was parked before it could read what it was asked is woken for that. If that does not let it go on, like to
suspend it, it stays parked, and nothing is executed: a run that is parked cannot be suspended, nor resumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.fault import Fault, FaultState
from aft.flows import writing
from aft.flows.children import Children
from aft.flows.leaving import Leave, NewMail, Over, Parks, Suspends
from aft.flows.reaching import LEFT_SAVEPOINT, find_ambiguity, find_reached
from aft.flows.steps import Stepper
from aft.flows.tools import Tools
from aft.rules import kept
from aft.runs import faults, inbox
from aft.runs.inbox import Letter, Verb
from aft.runs.owner import NO_PROGRESS, Owner
from aft.runs.states import Status

#: What becomes of a frame that a person settles.
_BY_HAND: dict[Verb, FrameState] = {Verb.SKIP: FrameState.SKIPPED, Verb.DONE: FrameState.DONE}
#: Why a run that is undone from now on was not suspended, nor undone to a savepoint.
UNDONE = "the run is being undone as a whole"
#: Why a run that is parked was not suspended.
PARKED = "the run is parked, and does nothing until a person lets it go on"


class Obedience:
    """Obeys for one owner."""

    def __init__(self, tools: Tools, stepper: Stepper) -> None:
        self._tools = tools
        self._stepper = stepper

    def obey(self, letters: list[Letter], live: list[Fault]) -> None:
        """Do what was asked; leaves if the run shall stop, raises Over if it has ended by that.

        Raises NewMail, once that is done, if the run has to be read again because of it.
        """
        owner = self._stepper.owner
        if self._is_abandoned(letters):
            # Children first: they are told once, however often this is repeated.
            Children(self._stepper).stop("", undo=False)
            done = [letter for letter in letters if not _is_for_going(letter)]
            writing.end(self._tools, owner, Status.CANCELLED, letters=done, asked=True)
            raise Over
        refused = [(letter, why) for letter in letters if (why := self._why_not(letter)) is not None]
        letters = [letter for letter in letters if all(letter is not other for other, _ in refused)]
        changes = self._changes(letters)
        if changes:
            refused += [(letter, UNDONE) for letter in letters if _is_for_going(letter)]
            letters = [letter for letter in letters if not _is_for_going(letter)]
        parked = [fault for fault in live if fault.state is FaultState.PARKED]
        again = {fault.id: ruling for fault in parked if (ruling := kept.begin_again(fault)) is not None}
        if parked and not changes and not self._let_go_on(letters):
            raise Leave(*_stay_parked(parked, letters, refused))
        suspends, undoes = self._suspends(letters), self._undoes_to(letters)
        owner.unheeded = undoes if suspends is None else None
        # One that suspends is read when the run is let go for it: something may come in between. One that undoes to a
        # savepoint is read when a step was told: after the resume, if the run is suspended before.
        later = [*(suspends.letters if suspends is not None else ()), undoes]
        heeded = [letter for letter in letters if letter not in later]

        def then(connection: Connection, seq: int) -> None:
            if changes:
                writing.check_orders(owner, connection)  # the last word counts, and from now on it would be refused
            for letter in heeded:
                _settle_frame(connection, owner, letter)
            faults.settle(connection, [fault.id for fault in parked if fault.id not in again], FaultState.RESOLVED)
            for fault_id, ruling in again.items():
                faults.reopen(connection, fault_id, ruling)
            inbox.mark_read(connection, owner.run_id, owner.epoch, heeded)
            if undoes is not None:
                inbox.put_off(connection, owner.run_id, undoes.seq)
            for letter, why in refused:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [letter], f"refused: {why}")

        owner.write(then, **NO_PROGRESS, **changes)
        owner.change(**changes)
        for fault in parked:
            self._stepper.standing.forget(fault, again.get(fault.id))
        if suspends is not None:
            raise Leave(suspends)
        if any(letter.verb in _BY_HAND for letter in heeded):
            raise NewMail  # what was read of the stack is not true any more: keys of steps follow from it

    def _is_abandoned(self, letters: list[Letter]) -> bool:
        run, cancels = self._stepper.owner.run, [letter for letter in letters if letter.verb is Verb.CANCEL]
        going = run.ended_as is None and run.cause is None
        return bool(cancels) and going and not cancels[-1].payload.get("compensate", True)

    def _suspends(self, letters: list[Letter]) -> Suspends | None:
        stops = [letter for letter in letters if letter.verb in (Verb.SUSPEND, Verb.RESUME)]
        if not stops or (last := stops[-1]).verb is not Verb.SUSPEND:
            return None
        asked = tuple(letter for letter in letters if letter.verb is Verb.SUSPEND)
        why = f"suspended by {last.actor}: {last.payload.get('note') or 'no note'}"
        return Suspends(why, asked)

    def _undoes_to(self, letters: list[Letter]) -> Letter | None:
        asked = [letter for letter in letters if letter.verb is Verb.COMPENSATE and "to" in letter.payload]
        return asked[-1] if asked and self._stepper.owner.run.ended_as is None else None

    def _let_go_on(self, letters: list[Letter]) -> bool:
        """Whether a parked run, which is not undone as a whole, goes on with what was asked."""
        undoes = self._undoes_to(letters)
        by_hand = any(letter.verb in (Verb.RETRY, *_BY_HAND) for letter in letters)
        return by_hand or (undoes is not None and bool(find_reached(self._stepper.owner, undoes)))

    def _why_not(self, letter: Letter) -> str | None:
        """Why an order cannot be carried out any more; None: it can."""
        run = self._stepper.owner.run
        # A path of an earlier generation may mean another savepoint by now.
        if "to" in letter.payload and letter.payload.get("generation", run.key_generation) != run.key_generation:
            return LEFT_SAVEPOINT
        if "to" in letter.payload and (ambiguity := find_ambiguity(self._stepper.owner, letter)) is not None:
            return ambiguity
        if letter.verb is Verb.CANCEL and letter.payload.get("compensate", True) and run.pivoted_at is not None:
            return "the run has gone past its pivot and only goes forward"
        if _is_for_going(letter) and run.ended_as is not None:
            return f"the run has ended, it is {run.ended_as.value}"
        return UNDONE if _is_for_going(letter) and run.cause is not None else None

    def _changes(self, letters: list[Letter]) -> dict[str, Any]:
        """What becomes of the run's row: it is undone from now on."""
        run = self._stepper.owner.run
        cancelled = any(letter.verb is Verb.CANCEL for letter in letters)
        if cancelled and run.ended_as is None and run.cause is None:
            return {"status": Status.COMPENSATING, "cause": "cancel", "deadline_at": None}
        if any(letter.verb is Verb.COMPENSATE for letter in letters) and run.ended_as is Status.COMPLETED:
            return {"status": Status.COMPENSATING, "cause": "order", "ended_as": None, "ended_at": None}
        return {}


def _is_for_going(letter: Letter) -> bool:
    """Whether an order is for a run that goes on: one that ends, or is undone as a whole, cannot do it any more."""
    return letter.verb is Verb.SUSPEND or "to" in letter.payload


def _stay_parked(parked: list[Fault], letters: list[Letter], refused: list[tuple[Letter, str]]) -> list[Parks]:
    """What keeps a parked run parked: all that it is parked for. What was asked is read with it, and answered."""
    told = [*refused, *((letter, why) for letter in letters if (why := _why_parked_cannot(letter)) is not None)]
    answered = {letter.seq for letter, _ in told}
    answers: list[tuple[Letter, str | None]] = [(letter, f"refused: {why}") for letter, why in told]
    answers += [(letter, None) for letter in letters if letter.seq not in answered]
    blocks = [Parks(_reason(fault), fault, stays=True) for fault in parked]
    return [replace(blocks[0], answers=tuple(answers)), *blocks[1:]]


def _why_parked_cannot(letter: Letter) -> str | None:
    if letter.verb is Verb.SUSPEND:
        return PARKED
    return LEFT_SAVEPOINT if "to" in letter.payload else None


def _reason(fault: Fault) -> str:
    """Why a run was parked for a fault: as its owner said, or as was decided."""
    if fault.decided_at is None or fault.verdict is None:
        return fault.verdict or str(fault)
    return fault.spell_parked(fault.verdict)


def _settle_frame(connection: Connection, owner: Owner, letter: Letter) -> None:
    if letter.verb in _BY_HAND:
        path = str(letter.payload["path"]).removesuffix("/undo")
        note: Any = letter.payload.get("note")
        # Only a run that is undone as a whole reaches frames of earlier generations.
        whole = owner.run.cause is not None or owner.run.ended_as is not None
        generation = None if whole else owner.run.key_generation
        stack.settle_step(connection, owner.run_id, path, generation, _BY_HAND[letter.verb], note)
