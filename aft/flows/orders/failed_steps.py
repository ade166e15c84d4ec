"""Carries out orders about failed steps: finds the fault that each is about, and the ruling that it gets. Pure.

The rulings are written by the run's owner in the transaction that marks the orders read. The run is read again then,
and its steps follow from the rulings as from those of exlets (``flows.orders.rulings``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aft.fault import Fault, FaultKind, FaultState
from aft.rules.cases import step_snapshot
from aft.runs.orders.failed_steps import UNDECIDED
from aft.runs.records.inbox import InboxItem, InboxVerb
from aft.runs.rulings import Ruling, RulingAction

#: Orders about one step; to retry is one if it names the step.
_VERBS = (InboxVerb.RETRY, InboxVerb.COMPLETE, InboxVerb.FAIL)
#: Why an order is refused while an effect may not have been seen: its undo would be owed, and nobody would know of it.
IN_DOUBT = "a worker of the run was lost, and may have executed the step; its next try shows that, then order again"


@dataclass(frozen=True, slots=True)
class RuledFault:
    """A fault whose step gets a ruling, encoded, and the fault's state then; ``why`` None: it stays as it is."""

    fault: Fault
    ruling: str | None
    state: FaultState = FaultState.WAITING
    why: str | None = None


def is_about_step(item: InboxItem) -> bool:
    """Return whether an order is about one failed step."""
    return item.verb in _VERBS and "step" in item.payload


def is_general_retry(item: InboxItem) -> bool:
    """Return whether an order is to retry whatever the run is parked for, or has in its ladder."""
    return item.verb is InboxVerb.RETRY and not is_about_step(item)


def find_fault(item: InboxItem, live: Iterable[Fault]) -> Fault | None:
    """Return the fault of the step that an order is about; None if the step has an outcome by now."""
    step = item.payload["step"]
    return next((fault for fault in live if fault.path == step and fault.state in UNDECIDED), None)


def refuse(item: InboxItem, live: Sequence[Fault]) -> str | None:
    """Return why an order about a step cannot be carried out any more; None if it can, or is about none."""
    if not is_about_step(item):
        return None
    if any(fault.kind is FaultKind.ABORT and fault.state is not FaultState.FINAL for fault in live):
        return IN_DOUBT
    if find_fault(item, live) is not None:
        return None
    return f"step {item.payload['step']} is not waiting after a failure any more"


def rule(items: Sequence[InboxItem], live: Sequence[Fault]) -> list[RuledFault]:
    """Return the faults that orders rule about; the last order about a step counts."""
    ruled = {}
    if any(is_general_retry(item) for item in items) and not any(fault.state is FaultState.PARKED for fault in live):
        waiting = [fault for fault in live if fault.state is FaultState.WAITING and fault.path is not None]
        ruled = {fault.id: RuledFault(fault, fault.ruling) for fault in waiting}
    for item in items:
        if is_about_step(item) and (fault := find_fault(item, live)) is not None:
            ruled[fault.id] = _rule(item, fault)
    return list(ruled.values())


def _rule(item: InboxItem, fault: Fault) -> RuledFault:
    changed, note = step_snapshot.changes(fault), item.payload.get("note")
    why = f"{item.actor}: {note}" if note else f"by {item.actor}"
    if item.verb is InboxVerb.COMPLETE:
        ruling = Ruling(RulingAction.COMPLETE, changed or None, (item.payload["result"],))
        return RuledFault(fault, ruling.encode(), FaultState.FINAL, f"its result was given, {why}")
    if item.verb is InboxVerb.FAIL:
        ruling = Ruling(RulingAction.FAIL, changed or None)
        return RuledFault(fault, ruling.encode(), FaultState.FINAL, f"it fails for good, {why}")
    args = {**changed, **item.payload["args"]}
    return RuledFault(fault, Ruling(RulingAction.RESTART, args or None).encode())
