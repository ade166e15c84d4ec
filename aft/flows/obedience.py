"""Doing what people asked of a run, when its owner reads it: in the transaction that marks their letters read.

The last word counts where two contradict each other. A crash before the commit leaves the letters unread, for the next
owner; after it, what was asked lies in the run's own row.

A run that was parked before it could read what it was asked is woken for that. If that does not let it go on, like to
suspend it, it stays parked, and nothing is executed: a run that is parked cannot be suspended, nor resumed.

An order to undo a savepoint lets a parked run go on, but not the steps that it is parked for: their faults stay as they
are until the journal has it that they were interrupted, also if the run is suspended first. One that the order does not
reach keeps the run parked. Nor does it let a compensator be tried again that the run is parked for: the order waits
until a person has settled that.

A run that is cancelled as it is, in the middle of undoing a savepoint, first comes to the end of that: its code is
played, and begins nothing else. Where a compensator fails, or no worker has the code, the run ends there, and the story
says of the order to undo the savepoint that it was not carried out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.fault import Fault, FaultKind, FaultState
from aft.flows import failures, writing
from aft.flows.children import Children, answer
from aft.flows.doubts import count_losses
from aft.flows.failures import FaultSite
from aft.flows.leaving import Leave, NewMail, Over, Parks, Suspends, is_of_step, stay_parked
from aft.flows.policy import Policy
from aft.flows.reaching import (
    LEFT_SAVEPOINT,
    find_ambiguity,
    find_reached,
    find_stopped,
    is_being_undone,
    is_interrupted,
)
from aft.flows.steps import Stepper
from aft.flows.tools import Tools
from aft.ids import StepPath
from aft.rules import kept
from aft.runs import faults, inbox, steering
from aft.runs.inbox import Letter, Verb
from aft.runs.journal import Entry
from aft.runs.owner import NO_PROGRESS, Owner
from aft.runs.states import Status

#: What becomes of a frame that a person settles.
_BY_HAND: dict[Verb, FrameState] = {Verb.SKIP: FrameState.SKIPPED, Verb.DONE: FrameState.DONE}
#: Why a run that is undone from now on was not suspended, nor undone to a savepoint.
UNDONE = "the run is being undone as a whole"
#: Why a run was not cancelled whose flow no worker has.
NO_FLOW = (
    "its worker was lost, no worker has its flow, and without that nobody knows which step it executed; bring the code "
    "back and retry, or cancel it once more: then what that step did, if it did anything, stays"
)
#: How often a run may be lost or taken away again after it was cancelled, while a step is in doubt, until it is parked.
MOST_LOST = 3
LOST_AGAIN = (
    "its worker was lost, and the run was lost or taken away again and again before it could be seen what came of the "
    "step that it executed; cancel the run once more: then what that step did, if it did anything, stays"
)
#: Why a run that is parked was not suspended.
PARKED = "the run is parked, and does nothing until a person lets it go on"


class Obedience:
    """Obeys for one owner."""

    def __init__(self, tools: Tools, stepper: Stepper) -> None:
        self._tools = tools
        self._stepper = stepper

    def obey(self, letters: list[Letter], live: list[Fault], entries: list[Entry]) -> None:
        """Do what was asked; leaves if the run shall stop, raises Over if it has ended by that.

        Raises NewMail, once that is done, if the run has to be read again because of it.
        """
        owner = self._stepper.owner
        owner.unheeded = []
        if self._is_abandoned(letters):
            if self._undoes_first(letters, live, entries):
                return
            self._abandon(letters, entries)
        if self._sees_doubts_first(letters, live):
            return
        refused = _find_taken_back(letters)
        refused += [(letter, why) for letter in letters if (why := self._why_not(letter)) is not None]
        letters = [letter for letter in letters if all(letter is not other for other, _ in refused)]
        changes = self._changes(letters)
        if changes:
            refused += [(letter, UNDONE) for letter in letters if _is_for_going(letter)]
            letters = [letter for letter in letters if not _is_for_going(letter)]
        suspends, undoes = self._suspends(letters), self._undoes_to(letters)
        parked = [fault for fault in live if fault.state is FaultState.PARKED]
        by_hand = bool(changes) or any(letter.verb in (Verb.RETRY, *_BY_HAND) for letter in letters)
        owner.unheeded = undoes if suspends is None else []
        stuck = [fault for fault in parked if not is_interrupted(fault, entries)]
        if stuck and not by_hand and not self._may_reach(undoes, stuck):
            unreached = LEFT_SAVEPOINT if owner.savepoints is not None else steering.UNKNOWN_SAVEPOINTS
            raise Leave(*_stay_parked(parked, letters, refused, unreached))
        settled = _choose_settled(parked, by_hand, suspends)
        again = {fault.id: ruling for fault in settled if (ruling := kept.begin_again(fault)) is not None}
        # One that suspends is read when the run is let go for it: something may come in between. One that undoes to a
        # savepoint is read when a step was told: after the resume, if the run is suspended before.
        later = [*(suspends.letters if suspends is not None else ()), *undoes]
        heeded = [letter for letter in letters if letter not in later]
        unseen = bool(changes) and self._stepper.standing.any_unseen
        if unseen:
            settled = [fault for fault in settled if fault.kind is not FaultKind.ABORT]

        def then(connection: Connection, seq: int) -> None:
            if changes:
                writing.check_orders(owner, connection)  # the last word counts, and from now on it would be refused
            for letter in heeded:
                _settle_frame(connection, owner, letter)
            if unseen:
                faults.keep_aborts(connection, owner.run_id)
            faults.settle(connection, [fault.id for fault in settled if fault.id not in again], FaultState.RESOLVED)
            for fault_id, ruling in again.items():
                faults.reopen(connection, fault_id, ruling)
            inbox.mark_read(connection, owner.run_id, owner.epoch, heeded)
            for letter in undoes:
                inbox.put_off(connection, owner.run_id, letter.seq)
            for letter, why in refused:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [letter], f"refused: {why}")

        owner.write(then, **NO_PROGRESS, **changes)
        owner.change(**changes)
        if unseen:
            self._stepper.standing.doubts.give_up()
        for fault in settled:
            self._stepper.standing.forget(fault, again.get(fault.id))
        if suspends is not None:
            raise Leave(suspends)
        for letter in heeded:
            if letter.verb in _BY_HAND:
                self._stepper.standing.saw(StepPath(f"{_step_of(letter)}/undo"))
        if any(letter.verb in _BY_HAND for letter in heeded):
            raise NewMail  # what was read of the stack is not true any more: keys of steps follow from it

    def _is_abandoned(self, letters: list[Letter]) -> bool:
        run, cancels = self._stepper.owner.run, [letter for letter in letters if letter.verb is Verb.CANCEL]
        going = run.ended_as is None and run.cause is None
        return bool(cancels) and going and not cancels[-1].payload.get("compensate", True)

    def _undoes_first(self, letters: list[Letter], live: list[Fault], entries: list[Entry]) -> bool:
        """Tell whether a run that is to end as it is first comes to the end of undoing a savepoint."""
        owner, standing = self._stepper.owner, self._stepper.standing
        fails = any(fault.state is FaultState.PARKED or fault.kind is FaultKind.COMPENSATOR for fault in live)
        known = (owner.run.flow, owner.run.version) in self._tools.registry.known
        if fails or not known or owner.has_undone or not is_being_undone(entries, standing.undone):
            return False
        standing.turns_back = tuple(letter for letter in letters if letter.verb is Verb.CANCEL)
        standing.abandons = True
        owner.change(deadline_at=None)  # should it pass now, nothing more is undone for that
        return True

    def _abandon(self, letters: list[Letter], entries: list[Entry]) -> NoReturn:
        """End a run as it is."""
        owner = self._stepper.owner
        # Children first: they are told once, however often this is repeated.
        Children(self._stepper).stop("", undo=False)
        done = [letter for letter in letters if not _is_for_going(letter)]
        sent = owner.read(lambda connection: inbox.of_run(connection, owner.run_id))
        stopped = find_stopped(sent, entries, owner.run.key_generation)
        in_doubt = self._stepper.standing.doubts.any
        writing.end(self._tools, owner, Status.CANCELLED, letters=done, asked=True, stopped=stopped, in_doubt=in_doubt)
        raise Over

    def _sees_doubts_first(self, letters: list[Letter], live: list[Fault]) -> bool:
        """Tell whether a run that is to be cancelled first comes to know what an owner that died had begun.

        An effect that nobody saw would stand, in a run that says that all is undone. So steps in doubt that have a
        compensator come to their end, as those do that are at work when a run is cancelled; nothing else is begun. The
        orders stay unread. A run that is parked is not executed for that: the step may be what its workers died of.
        """
        standing, can = self._stepper.standing, [letter for letter in letters if self._why_not(letter) is None]
        cancels = tuple(letter for letter in can if letter.verb is Verb.CANCEL)
        parked = any(fault.state is FaultState.PARKED for fault in live)
        parked = parked and not any(letter.verb is Verb.RETRY for letter in can)
        if not cancels or parked or not standing.doubts.any or not self._changes(can):
            return False
        if (self._stepper.owner.run.flow, self._stepper.owner.run.version) not in self._tools.registry.known:
            raise Leave(self._park_in_doubt(letters, NO_FLOW))
        aborts = [fault for fault in live if fault.kind is FaultKind.ABORT]
        if count_losses(aborts, cancels[0].at) >= MOST_LOST:
            raise Leave(self._park_in_doubt(letters, LOST_AGAIN))
        standing.turns_back = cancels
        standing.tried_again = tuple(letter for letter in can if letter.verb is Verb.RETRY)
        return True

    def _park_in_doubt(self, letters: list[Letter], why: str) -> Parks:
        """Stop a run for a person that is to be cancelled, where it cannot be seen what is in doubt."""
        owner, tools = self._stepper.owner, self._tools
        place = FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow)
        error, state = LookupError(why), FaultState.PARKED
        fault = failures.describe(error, place, Policy(), tools.ladder, tools.clock.now(), state=state)
        return Parks(why, fault, answers=tuple(answer(letter, why) for letter in letters))

    def _suspends(self, letters: list[Letter]) -> Suspends | None:
        stops = [letter for letter in letters if letter.verb in (Verb.SUSPEND, Verb.RESUME)]
        if not stops or (last := stops[-1]).verb is not Verb.SUSPEND:
            return None
        asked = tuple(letter for letter in letters if letter.verb is Verb.SUSPEND)
        why = f"suspended by {last.actor}: {last.payload.get('note') or 'no note'}"
        return Suspends(why, asked)

    def _undoes_to(self, letters: list[Letter]) -> list[Letter]:
        if self._stepper.owner.run.ended_as is not None:
            return []
        return [letter for letter in letters if letter.verb is Verb.COMPENSATE and "to" in letter.payload]

    def _may_reach(self, undoes: list[Letter], parked: list[Fault]) -> bool:
        """Whether a parked run is in a savepoint that shall be undone.

        If its last worker was lost, its code has to come there first: it may, unless a step is executed by that.
        """
        owner = self._stepper.owner
        if owner.savepoints is None:
            return bool(undoes) and all(is_of_step(fault) for fault in parked)
        return any(find_reached(owner, letter) for letter in undoes)

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


def _find_taken_back(letters: list[Letter]) -> list[tuple[Letter, str]]:
    """The orders to suspend a run that were taken back before it stopped, each with why it does not."""
    stops = [letter for letter in letters if letter.verb in (Verb.SUSPEND, Verb.RESUME)]
    if not stops or stops[-1].verb is Verb.SUSPEND:
        return []
    why = f"{stops[-1].actor} resumed it before it stopped"
    return [(letter, why) for letter in stops if letter.verb is Verb.SUSPEND]


def _choose_settled(parked: list[Fault], by_hand: bool, suspends: Suspends | None) -> list[Fault]:
    """The faults of a parked run, which goes on, that are no reason any more to stop where they were raised."""
    if by_hand:
        return parked
    return [] if suspends is not None else [fault for fault in parked if fault.path is None]


def _stay_parked(
    parked: list[Fault], letters: list[Letter], refused: list[tuple[Letter, str]], unreached: str
) -> list[Parks]:
    """What keeps a parked run parked: all that it is parked for. What was asked is read with it, and answered."""
    whys = [(letter, _why_parked_cannot(letter, unreached)) for letter in letters]
    told = [*refused, *((letter, why) for letter, why in whys if why is not None)]
    answered = {letter.seq for letter, _ in told}
    answers: list[tuple[Letter, str | None]] = [(letter, f"refused: {why}") for letter, why in told]
    answers += [(letter, None) for letter in letters if letter.seq not in answered]
    blocks = [stay_parked(fault) for fault in parked]
    return [replace(blocks[0], answers=tuple(answers)), *blocks[1:]]


def _why_parked_cannot(letter: Letter, unreached: str) -> str | None:
    if letter.verb is Verb.SUSPEND:
        return PARKED
    return unreached if "to" in letter.payload else None


def _settle_frame(connection: Connection, owner: Owner, letter: Letter) -> None:
    if letter.verb in _BY_HAND:
        note: Any = letter.payload.get("note")
        # Only a run that is undone as a whole reaches frames of earlier generations.
        whole = owner.run.cause is not None or owner.run.ended_as is not None
        generation = None if whole else owner.run.key_generation
        stack.settle_step(connection, owner.run_id, _step_of(letter), generation, _BY_HAND[letter.verb], note)


def _step_of(letter: Letter) -> str:
    """The step whose frame a person settles."""
    return str(letter.payload["path"]).removesuffix("/undo")
