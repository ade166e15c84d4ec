"""Orders about a step that has failed: try it now, or with other arguments; give its result; let it fail for good.

They are for a run that is parked, or in a ladder. The run's row is locked first, then the step's fault is read. The
order names the step; the run's owner carries it out on the fault that the step has by then, or refuses it, if the step
has an outcome. One transaction: order, audit and wake exist together or not at all.

Who may run at the same time: other people, a dispatcher or an exlet that decides about the fault, and the run's owner.
One order at a time: a second one finds the first unread and raises OrderRefused. Whoever decides about a fault does so
only while it is in the state in which they found it, so the order or their decision holds, never half of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from aft.errors import OrderRefused
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import RunId
from aft.runs import run_rows
from aft.runs.orders import by_hand
from aft.runs.orders.actor import Actor
from aft.runs.records import audit, faults, inbox
from aft.runs.records.inbox import InboxVerb
from aft.runs.run_rows import RunRow
from aft.runs.states import GOING, Status
from aft.runs.wakes import wake
from aft.security.redaction import redact
from aft.store import tables
from aft.texts import format_value

#: States of faults whose steps have no outcome yet.
UNDECIDED = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.PARKED)
#: The kinds of faults that are about a step of the flow's.
_OF_STEPS = (FaultKind.ACTIVITY, FaultKind.CONSTRAINT)
#: Paths that rules about the run's beginning and end use; these are no steps of the flow's.
_NO_STEPS = ("begin", "end")


def find(connection: Connection, run: RunRow, step: str | None) -> Fault:
    """Return the fault of the failed step that is meant: by its path or its activity's name; None: the only one.

    Raises OrderRefused that says what can be done instead.
    """
    found = _failed(connection, run.id)
    meant = found if step is None else [fault for fault in found if step in (fault.path, fault.name)]
    if len(meant) == 1:
        return meant[0]
    failed = ", ".join(f"{fault.path} ({fault.name})" for fault in found)
    if meant:
        raise OrderRefused(f"run {run.id} has several failed steps: {failed}; say which one, by its number")
    if found:
        raise OrderRefused(f"step {format_value(step)} of run {run.id} has not failed; failed are {failed}")
    raise OrderRefused(f"run {run.id} has no failed step: {_describe(run)}")


def retry_with(connection: Connection, run: RunRow, by: Actor, *, step: str, args: dict[str, Any]) -> None:
    """Order a failed step to be tried again with these arguments, encoded, in place of its own of these names."""
    _order(connection, run, by, InboxVerb.RETRY, step, {"args": args})


def retry(connection: Connection, run: RunRow, by: Actor) -> None:
    """Order a parked run to try again what it is parked for; one in its ladder to try its failed steps now.

    The ladders go on from where they are. The caller has locked the run.
    """
    if run.status is Status.PARKED:
        by_hand.retry(connection, run, by)
        return
    waiting = _failed(connection, run.id, (*_OF_STEPS, FaultKind.COMPENSATOR))
    if run.status not in (*GOING, Status.COMPENSATING) or all(one.state is not FaultState.WAITING for one in waiting):
        raise OrderRefused(f"run {run.id} is {run.status.value}, not parked, and nothing of it is in a ladder")
    _check_no_order(connection, run)
    _give(connection, run, InboxVerb.RETRY, {}, by, by.note)


def complete(connection: Connection, run: RunRow, by: Actor, *, step: str, result: Any) -> None:
    """Order a failed step to be completed with this result, encoded, and not executed any more."""
    _check_note(by, "to give the result of a step")
    _order(connection, run, by, InboxVerb.COMPLETE, step, {"result": result, "note": by.note})


def fail(connection: Connection, run: RunRow, by: Actor, *, step: str) -> None:
    """Order a failed step to fail for good: its last failure is raised in the flow's code."""
    _check_note(by, "to let a step fail for good")
    _order(connection, run, by, InboxVerb.FAIL, step, {"note": by.note})


def _order(connection: Connection, run: RunRow, by: Actor, verb: InboxVerb, step: str, payload: dict[str, Any]) -> None:
    locked = _lock(connection, run)
    fault = find(connection, locked, step)
    what = f"{fault.name} (step {fault.path})"
    _give(connection, locked, verb, {"step": fault.path, **payload}, by, f"{what}: {by.note}" if by.note else what)


def _failed(connection: Connection, run_id: RunId, kinds: Sequence[FaultKind] = _OF_STEPS) -> list[Fault]:
    """Return the faults of a run's steps that have no outcome."""
    table = tables.faults
    rows = connection.execute(
        select(table)
        .where(
            table.c.run_id == run_id,
            table.c.state.in_([state.value for state in UNDECIDED]),
            table.c.kind.in_([kind.value for kind in kinds]),
            table.c.path.not_in(_NO_STEPS),
        )
        .order_by(table.c.id)
    )
    return [faults.show_row(row) for row in rows]


def _lock(connection: Connection, run: RunRow) -> RunRow:
    """Lock a run and return it as it is now; raises OrderRefused unless orders about its steps can be carried out."""
    locked = wake.lock(connection, run.namespace, run.id) or run_rows.get_run(connection, run.namespace, run.id)
    if locked.status is Status.SUSPENDED:
        raise OrderRefused(f"run {run.id} is suspended; resume it first")
    if locked.status not in (*GOING, Status.PARKED) or locked.cause is not None or locked.ended_as is not None:
        raise OrderRefused(f"run {run.id} is {locked.status.value}: {_describe(locked)}")
    _check_no_order(connection, run)
    return locked


def _check_no_order(connection: Connection, run: RunRow) -> None:
    if inbox.any_order(connection, run.id, 0):
        why = "has an order already that no worker has carried out yet; is a dispatcher running?"
        raise OrderRefused(f"run {run.id} {why}")


def _describe(run: RunRow) -> str:
    """Describe what a run is doing that has no step to be ordered about, and what can be ordered instead."""
    if run.ended_as is not None:
        return f"it has ended {run.ended_as.value}"
    if run.cause is not None:
        return "it is being undone; `skip-frame` and `frame-done` are for a compensator that cannot succeed"
    if run.status is Status.PARKED:
        return f"it is parked: {redact(run.reason or '')}; `retry` is what it can do"
    return f"it is {run.status.value}"


def _check_note(by: Actor, what: str) -> None:
    if not (by.note or "").strip():
        raise OrderRefused(f"{what} needs a note that says why")


def _give(
    connection: Connection, run: RunRow, verb: InboxVerb, payload: dict[str, Any], by: Actor, note: str | None
) -> None:
    wake.send(connection, run, by.new_item(verb, payload), lambda row: True)
    audit.write(connection, run.id, by.name, verb.value, note)
