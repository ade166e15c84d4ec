"""Applies orders to a run when its owner reads them, in the transaction that marks them read.

The last order wins where two contradict each other. A crash before the commit leaves the orders unread, for the next
owner; after it, their effect is in the run's own row.

A run that was parked before it could read its orders is woken for them. If they do not let it go on, like an order to
suspend, it stays parked, and nothing is executed: a parked run cannot be suspended, nor resumed.

An order to undo a savepoint lets a parked run go on, but not the steps that it is parked for: their faults stay as they
are until the journal shows that they were interrupted, also if the run is suspended first. A step that the order does
not reach keeps the run parked. Nor does the order retry a compensator that the run is parked for: it waits until a
person has decided about that.

A run that is cancelled as it is, while a savepoint is being undone, first completes that: its code is played, and
begins nothing else. If a compensator fails, or no worker has the code, the run ends there, and the order to undo the
savepoint is marked as refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from sqlalchemy import Connection

from aft.compensation import stack
from aft.compensation.stack import FrameState
from aft.fault import Fault, FaultKind, FaultState
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import failures
from aft.flows.exceptions.failures import FaultSite
from aft.flows.orders import failed_steps
from aft.flows.orders.failed_steps import RuledFault
from aft.flows.session import release
from aft.flows.session.blocks import (
    Blocked,
    InboxChanged,
    ParkNeeded,
    RunOver,
    SuspensionNeeded,
    is_of_step,
    stay_parked,
)
from aft.flows.session.dependencies import Dependencies
from aft.flows.session.savepoint_orders import (
    LEFT_SAVEPOINT,
    find_ambiguity,
    find_reached,
    find_stopped,
    is_being_undone,
    is_interrupted,
)
from aft.flows.session.unknown_outcomes import count_losses
from aft.flows.steps.children import Children, refusal_of
from aft.flows.steps.run_session import RunSession
from aft.ids import RunId, StepPath
from aft.rules.cases import step_snapshot
from aft.runs.orders import steer
from aft.runs.ownership.owner import Owner
from aft.runs.ownership.owner_writes import NO_PROGRESS
from aft.runs.records import faults, inbox
from aft.runs.records.inbox import InboxItem, InboxVerb
from aft.runs.records.journal import Entry
from aft.runs.states import Status

#: The state of a frame that a person skips or has undone by hand.
_BY_HAND: dict[InboxVerb, FrameState] = {InboxVerb.SKIP: FrameState.SKIPPED, InboxVerb.DONE: FrameState.DONE}
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


@dataclass(frozen=True, slots=True)
class _SortedOrders:
    """The orders that apply, and those that are refused, each with the reason."""

    items: list[InboxItem]
    refused: list[tuple[InboxItem, str]]
    #: The changes of the run's row that start its undo; empty if no order does.
    changes: dict[str, Any]
    suspends: SuspensionNeeded | None
    #: Orders to undo a savepoint.
    undoes: list[InboxItem]

    @property
    def free_all(self) -> bool:
        """Whether they let a parked run go on, whatever it is parked for."""
        return bool(self.changes) or any(
            failed_steps.is_general_retry(item) or item.verb in _BY_HAND for item in self.items
        )

    @property
    def are_by_hand(self) -> bool:
        """Whether they let a parked run go on; perhaps only one of the steps that it is parked for."""
        return self.free_all or any(failed_steps.is_about_step(item) for item in self.items)

    @property
    def marked_read(self) -> list[InboxItem]:
        """The orders that are marked read now.

        An order to suspend is marked read when the run is released for it: another may arrive in between. One to undo a
        savepoint is marked read when it interrupts a step: after the resume, if the run is suspended before.
        """
        later = [*(self.suspends.items if self.suspends is not None else ()), *self.undoes]
        return [item for item in self.items if item not in later]


@dataclass(frozen=True, slots=True)
class _FaultChanges:
    """The faults that orders close, or that start again."""

    closed: list[Fault]
    #: Those whose steps start again, as the rules decided.
    again: list[RuledFault]
    #: Those whose steps orders are about.
    ordered: list[RuledFault]
    #: Whether the unknown outcomes are never resolved: their aborts stay.
    drops_unknown: bool

    def write(self, connection: Connection, run_id: RunId) -> None:
        if self.drops_unknown:
            faults.keep_aborts(connection, run_id)
        faults.close(connection, [fault.id for fault in self.closed], FaultState.RESOLVED)
        for one in (*self.again, *self.ordered):
            why = {} if one.why is None else {"why": one.why}
            faults.rule(connection, one.fault.id, one.ruling, one.state, **why)


class OrderHandler:
    """Applies orders for one owner."""

    def __init__(self, deps: Dependencies, session: RunSession) -> None:
        self._deps = deps
        self._session = session

    def apply_orders(self, items: list[InboxItem], live: list[Fault], entries: list[Entry]) -> None:
        """Apply the orders; raises Blocked if the run stops, and RunOver if it has ended by them.

        Raises InboxChanged, once they are applied, if the run has to be read again because of them.
        """
        owner = self._session.owner
        owner.pending_orders = []
        if self._is_cancelled_as_is(items):
            if self._undoes_first(items, live, entries):
                return
            self._cancel_as_is(items, entries)
        if self._resolves_unknown_first(items, live):
            return
        orders = self._sort(items, live)
        owner.pending_orders = orders.undoes if orders.suspends is None else []
        parked = [fault for fault in live if fault.state is FaultState.PARKED]
        stuck = [fault for fault in parked if not is_interrupted(fault, entries)]
        if stuck and not orders.are_by_hand and not self._may_reach(orders.undoes, stuck):
            unreached = LEFT_SAVEPOINT if owner.savepoints is not None else steer.UNKNOWN_SAVEPOINTS
            raise Blocked(*_stay_parked(parked, orders.items, orders.refused, unreached))
        effect = self._find_effect(orders, live)
        self._write(orders, effect)
        self._note(orders, effect)

    def _sort(self, items: list[InboxItem], live: list[Fault]) -> _SortedOrders:
        """Sort orders into those that apply and those that are refused, and find their effect together."""
        refused = _find_taken_back(items)
        whys = [(item, self._why_not(item) or failed_steps.refuse(item, live)) for item in items]
        refused += [(item, why) for item, why in whys if why is not None]
        items = [item for item in items if all(item is not other for other, _ in refused)]
        changes = self._changes(items)
        if changes:
            refused += [(item, UNDONE) for item in items if _is_for_going(item)]
            items = [item for item in items if not _is_for_going(item)]
        return _SortedOrders(items, refused, changes, self._suspends(items), self._undoes_to(items))

    def _find_effect(self, orders: _SortedOrders, live: list[Fault]) -> _FaultChanges:
        ordered = failed_steps.rule(orders.items, live)
        settled = _choose_closed(live, orders)
        settled = [fault for fault in settled if all(one.fault is not fault for one in ordered)]
        again = [RuledFault(one, ruling) for one in settled if (ruling := step_snapshot.begin_again(one)) is not None]
        unseen = bool(orders.changes) and self._session.step_states.any_unseen
        if unseen:
            settled = [fault for fault in settled if fault.kind is not FaultKind.ABORT]
        closed = [fault for fault in settled if all(one.fault is not fault for one in again)]
        return _FaultChanges(closed, again, ordered, unseen)

    def _write(self, orders: _SortedOrders, effect: _FaultChanges) -> None:
        """Record what the orders change, and mark them read, in one transaction."""
        owner = self._session.owner

        def then(connection: Connection, seq: int) -> None:
            if orders.changes:
                release.check_orders(owner, connection)  # the last word counts, and from now on it would be refused
            for item in orders.marked_read:
                _pop_frame(connection, owner, item)
            effect.write(connection, owner.run_id)
            inbox.mark_read(connection, owner.run_id, owner.epoch, orders.marked_read)
            for item in orders.undoes:
                inbox.put_off(connection, owner.run_id, item.seq)
            for item, why in orders.refused:
                inbox.mark_read(connection, owner.run_id, owner.epoch, [item], f"refused: {why}")

        owner.write(then, **NO_PROGRESS, **orders.changes)
        owner.change(**orders.changes)

    def _note(self, orders: _SortedOrders, effect: _FaultChanges) -> None:
        """Update this session's copy of the step states; raises Blocked or InboxChanged if the pass ends here."""
        step_states = self._session.step_states
        if effect.drops_unknown:
            step_states.unknown.drop_all()
        for fault in effect.closed:
            step_states.restart_step(fault)
        for one in effect.again:
            step_states.restart_step(one.fault, one.ruling)
        for one in effect.ordered:
            self._session.owner.remove_wait(str(one.fault.path))  # it waits for no signal any more
        if orders.suspends is not None:
            raise Blocked(orders.suspends)
        by_hand = [item for item in orders.marked_read if item.verb in _BY_HAND]
        for item in by_hand:
            step_states.note_known(StepPath(f"{_step_of(item)}/undo"))
        if by_hand or effect.ordered:
            raise InboxChanged  # what was read of stack and faults is not true any more: steps follow from it

    def _is_cancelled_as_is(self, items: list[InboxItem]) -> bool:
        run, cancels = self._session.owner.run, [item for item in items if item.verb is InboxVerb.CANCEL]
        going = run.ended_as is None and run.cause is None
        return bool(cancels) and going and not cancels[-1].payload.get("compensate", True)

    def _undoes_first(self, items: list[InboxItem], live: list[Fault], entries: list[Entry]) -> bool:
        """Whether a run that is to end as it is first completes the undo of a savepoint."""
        owner, step_states = self._session.owner, self._session.step_states
        fails = any(fault.state is FaultState.PARKED or fault.kind is FaultKind.COMPENSATOR for fault in live)
        known = (owner.run.flow, owner.run.version) in self._deps.registry.known
        if fails or not known or owner.has_undone or not is_being_undone(entries, step_states.undone):
            return False
        step_states.undo_orders = tuple(item for item in items if item.verb is InboxVerb.CANCEL)
        step_states.cancels_as_is = True
        owner.change(deadline_at=None)  # should it pass now, nothing more is undone for that
        return True

    def _cancel_as_is(self, items: list[InboxItem], entries: list[Entry]) -> NoReturn:
        """End a run as it is; always raises RunOver."""
        owner = self._session.owner
        # Children first: they get the order once, however often this is repeated.
        Children(self._session).stop("", undo=False)
        done = [item for item in items if not _is_for_going(item)]
        sent = owner.read(lambda connection: inbox.of_run(connection, owner.run_id))
        stopped = find_stopped(sent, entries, owner.run.key_generation)
        in_doubt = self._session.step_states.unknown.any
        release.end(self._deps, owner, Status.CANCELLED, items=done, ordered=True, stopped=stopped, in_doubt=in_doubt)
        raise RunOver

    def _resolves_unknown_first(self, items: list[InboxItem], live: list[Fault]) -> bool:
        """Whether a run that is to be cancelled first resolves what an owner that died had begun.

        Otherwise an unseen effect would remain in a run that ends as undone. So steps in doubt that have a compensator
        are completed, as are steps at work when a run is cancelled; nothing else is begun. The orders stay unread. A
        parked run is not executed for that: the step may be what its workers died of. Raises Blocked, to park, if the
        outcomes stay unknown.
        """
        step_states, can = self._session.step_states, [item for item in items if self._why_not(item) is None]
        cancels = tuple(item for item in can if item.verb is InboxVerb.CANCEL)
        parked = any(fault.state is FaultState.PARKED for fault in live)
        parked = parked and not any(item.verb is InboxVerb.RETRY for item in can)
        if not cancels or parked or not step_states.unknown.any or not self._changes(can):
            return False
        if (self._session.owner.run.flow, self._session.owner.run.version) not in self._deps.registry.known:
            raise Blocked(self._park_in_doubt(items, NO_FLOW))
        aborts = [fault for fault in live if fault.kind is FaultKind.ABORT]
        if count_losses(aborts, cancels[0].at) >= MOST_LOST:
            raise Blocked(self._park_in_doubt(items, LOST_AGAIN))
        step_states.undo_orders = cancels
        step_states.tried_again = tuple(item for item in can if item.verb is InboxVerb.RETRY)
        return True

    def _park_in_doubt(self, items: list[InboxItem], why: str) -> ParkNeeded:
        """Return the block that parks a run which is to be cancelled, but whose outcomes stay unknown."""
        owner, deps = self._session.owner, self._deps
        place = FaultSite(owner.run_id, owner.epoch, None, FaultKind.FLOW, owner.run.flow)
        error, state = LookupError(why), FaultState.PARKED
        fault = failures.make_fault(error, place, Policy(), deps.ladder, deps.clock.now(), state=state)
        return ParkNeeded(why, fault, answers=tuple(refusal_of(item, why) for item in items))

    def _suspends(self, items: list[InboxItem]) -> SuspensionNeeded | None:
        stops = [item for item in items if item.verb in (InboxVerb.SUSPEND, InboxVerb.RESUME)]
        if not stops or (last := stops[-1]).verb is not InboxVerb.SUSPEND:
            return None
        suspends = tuple(item for item in items if item.verb is InboxVerb.SUSPEND)
        why = f"suspended by {last.actor}: {last.payload.get('note') or 'no note'}"
        return SuspensionNeeded(why, suspends)

    def _undoes_to(self, items: list[InboxItem]) -> list[InboxItem]:
        if self._session.owner.run.ended_as is not None:
            return []
        return [item for item in items if item.verb is InboxVerb.COMPENSATE and "to" in item.payload]

    def _may_reach(self, undoes: list[InboxItem], parked: list[Fault]) -> bool:
        """Whether a parked run is, or may be, in a savepoint that is to be undone.

        If its last worker was lost, its code has to be replayed first: allowed if all its faults are those of steps.
        """
        owner = self._session.owner
        if owner.savepoints is None:
            return bool(undoes) and all(is_of_step(fault) for fault in parked)
        return any(find_reached(owner, item) for item in undoes)

    def _why_not(self, item: InboxItem) -> str | None:
        """Return why an order cannot be carried out any more, or None."""
        run = self._session.owner.run
        # A path of an earlier generation may mean another savepoint by now.
        if "to" in item.payload and item.payload.get("generation", run.key_generation) != run.key_generation:
            return LEFT_SAVEPOINT
        if "to" in item.payload and (ambiguity := find_ambiguity(self._session.owner, item)) is not None:
            return ambiguity
        if item.verb is InboxVerb.CANCEL and item.payload.get("compensate", True) and run.pivoted_at is not None:
            return "the run has gone past its pivot and only goes forward"
        if _is_for_going(item) and run.ended_as is not None:
            return f"the run has ended, it is {run.ended_as.value}"
        return UNDONE if _is_for_going(item) and run.cause is not None else None

    def _changes(self, items: list[InboxItem]) -> dict[str, Any]:
        """Return the changes of the run's row that start its undo; empty if no order does."""
        run = self._session.owner.run
        cancelled = any(item.verb is InboxVerb.CANCEL for item in items)
        if cancelled and run.ended_as is None and run.cause is None:
            return {"status": Status.COMPENSATING, "cause": "cancel", "deadline_at": None}
        if any(item.verb is InboxVerb.COMPENSATE for item in items) and run.ended_as is Status.COMPLETED:
            return {"status": Status.COMPENSATING, "cause": "order", "ended_as": None, "ended_at": None}
        return {}


def _is_for_going(item: InboxItem) -> bool:
    """Whether an order applies only to a run that goes on, not to one that ends or is undone as a whole."""
    return item.verb is InboxVerb.SUSPEND or "to" in item.payload or failed_steps.is_about_step(item)


def _find_taken_back(items: list[InboxItem]) -> list[tuple[InboxItem, str]]:
    """Return orders to suspend that a resume has revoked before the run stopped, each with the reason."""
    stops = [item for item in items if item.verb in (InboxVerb.SUSPEND, InboxVerb.RESUME)]
    if not stops or stops[-1].verb is InboxVerb.SUSPEND:
        return []
    why = f"{stops[-1].actor} resumed it before it stopped"
    return [(item, why) for item in stops if item.verb is InboxVerb.SUSPEND]


def _choose_closed(live: list[Fault], orders: _SortedOrders) -> list[Fault]:
    """Return the faults for which a parked run that goes on does not stop any more."""
    parked = [fault for fault in live if fault.state is FaultState.PARKED]
    if orders.free_all:
        return parked
    return [] if orders.suspends is not None else [fault for fault in parked if fault.path is None]


def _stay_parked(
    parked: list[Fault], items: list[InboxItem], refused: list[tuple[InboxItem, str]], unreached: str
) -> list[ParkNeeded]:
    """Return the blocks that keep a parked run parked; its orders are marked read with them, and answered."""
    whys = [(item, _why_parked_cannot(item, unreached)) for item in items]
    all_refused = [*refused, *((item, why) for item, why in whys if why is not None)]
    answered = {item.seq for item, _ in all_refused}
    answers: list[tuple[InboxItem, str | None]] = [(item, f"refused: {why}") for item, why in all_refused]
    answers += [(item, None) for item in items if item.seq not in answered]
    blocks = [stay_parked(fault) for fault in parked]
    return [replace(blocks[0], answers=tuple(answers)), *blocks[1:]]


def _why_parked_cannot(item: InboxItem, unreached: str) -> str | None:
    if item.verb is InboxVerb.SUSPEND:
        return PARKED
    return unreached if "to" in item.payload else None


def _pop_frame(connection: Connection, owner: Owner, item: InboxItem) -> None:
    if item.verb in _BY_HAND:
        note: Any = item.payload.get("note")
        # Only a run that is undone as a whole reaches frames of earlier generations.
        whole = owner.run.cause is not None or owner.run.ended_as is not None
        generation = None if whole else owner.run.key_generation
        stack.pop_step(connection, owner.run_id, _step_of(item), generation, _BY_HAND[item.verb], note)


def _step_of(item: InboxItem) -> str:
    """Return the step whose frame a person skips or marks as done."""
    return str(item.payload["path"]).removesuffix("/undo")
