"""Fault rows: written by the run's owner, decided by the dispatcher, read by everybody."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from aft.errors import UnknownFault
from aft.fault import Answer, Fault, FaultKind, FaultState
from aft.ids import RunId
from aft.store.moments import now
from aft.store.tables import faults

#: States of a fault that still says something about what its step does next.
LIVE = (FaultState.OPEN, FaultState.WAITING, FaultState.FINAL, FaultState.PARKED)


def add(connection: Connection, namespace: str, fault: Fault) -> None:
    """Write a new fault."""
    connection.execute(
        insert(faults).values(
            id=fault.id,
            run_id=fault.run_id,
            namespace=namespace,
            path=fault.path,
            kind=fault.kind.value,
            name=fault.name,
            state=fault.state.value,
            epoch=fault.epoch,
            attempt=fault.attempt,
            type=fault.type,
            lineage=json.dumps(fault.lineage),
            message=fault.message,
            args=fault.args,
            exact=fault.exact,
            traceback=fault.traceback,
            said=fault.said,
            declared=fault.declared,
            status=fault.status,
            after_seconds=None if fault.after is None else fault.after.total_seconds(),
            ladder=fault.ladder,
            verdict=fault.verdict,
            resource=fault.resource,
            signal=fault.signal,
            raised_at=fault.raised_at,
        )
    )


def from_row(row: Row[Any]) -> Fault:
    """Read a whole row of the faults table."""
    return Fault(
        id=row.id,
        run_id=row.run_id,
        path=row.path,
        kind=FaultKind(row.kind),
        name=row.name,
        state=FaultState(row.state),
        epoch=row.epoch,
        attempt=row.attempt,
        type=row.type,
        lineage=tuple(json.loads(row.lineage)),
        message=row.message,
        args=row.args,
        exact=row.exact,
        traceback=row.traceback,
        said=None if row.said is None else Answer(row.said),
        declared=None if row.declared is None else Answer(row.declared),
        status=row.status,
        after=None if row.after_seconds is None else timedelta(seconds=row.after_seconds),
        ladder=row.ladder,
        raised_at=row.raised_at,
        level=row.level,
        try_in_level=row.try_in_level,
        wait=None if row.wait_seconds is None else timedelta(seconds=row.wait_seconds),
        queue=row.queue,
        verdict=row.verdict,
        due_at=row.due_at,
        decided_at=row.decided_at,
        settled_at=row.settled_at,
        resource=row.resource,
        signal=row.signal,
    )


def get(connection: Connection, namespace: str, fault_id: str) -> Fault | None:
    """Return one fault, or None."""
    statement = select(faults).where(faults.c.id == fault_id, faults.c.namespace == namespace)
    row = connection.execute(statement).one_or_none()
    return None if row is None else from_row(row)


def find(connection: Connection, namespace: str, part: str) -> Fault | None:
    """Return the one fault whose id begins, or ends, with what a person typed; None if there is none."""
    statement = select(faults).where(
        faults.c.namespace == namespace,
        faults.c.id.startswith(part, autoescape=True) | faults.c.id.endswith(part, autoescape=True),
    )
    found = connection.execute(statement.limit(2)).all() if part else []
    if len(found) > 1:
        raise UnknownFault(f"several faults match {part!r}; give more of the id")
    return from_row(found[0]) if found else None


def of_run(connection: Connection, run_id: RunId) -> list[Fault]:
    """Return a run's faults, oldest first."""
    statement = select(faults).where(faults.c.run_id == run_id).order_by(faults.c.id)
    return [from_row(row) for row in connection.execute(statement)]


def live_of_run(connection: Connection, run_id: RunId) -> list[Fault]:
    """Return a run's faults that are not settled, oldest first."""
    statement = (
        select(faults)
        .where(faults.c.run_id == run_id, faults.c.state.in_([state.value for state in LIVE]))
        .order_by(faults.c.id)
    )
    return [from_row(row) for row in connection.execute(statement)]


def listing(connection: Connection, namespace: str, *, state: FaultState | None = None, limit: int = 50) -> list[Fault]:
    """Return the newest faults, newest first."""
    statement = select(faults).where(faults.c.namespace == namespace).order_by(faults.c.id.desc()).limit(limit)
    if state is not None:
        statement = statement.where(faults.c.state == state.value)
    return [from_row(row) for row in connection.execute(statement)]


def renew(connection: Connection, fault_id: str, epoch: int) -> None:
    """Let a fault be decided about that an earlier owner raised; only in a write of the run's owner of this epoch."""
    connection.execute(update(faults).where(faults.c.id == fault_id).values(epoch=epoch))


def settle_rest(connection: Connection, run_id: RunId) -> None:
    """Settle what nobody will decide about or try any more, because its run has come to its end."""
    left = faults.c.state.in_([FaultState.OPEN.value, FaultState.WAITING.value])
    connection.execute(
        update(faults).where(faults.c.run_id == run_id, left).values(state=FaultState.RESOLVED.value, settled_at=now())
    )


def settle_all(connection: Connection, run_id: RunId) -> None:
    """Settle everything that still says something about what a run's steps do next."""
    live = faults.c.state.in_([state.value for state in LIVE])
    connection.execute(
        update(faults).where(faults.c.run_id == run_id, live).values(state=FaultState.RESOLVED.value, settled_at=now())
    )


def settle(connection: Connection, ids: Iterable[str], state: FaultState) -> None:
    """Move faults to a state that ends them."""
    connection.execute(update(faults).where(faults.c.id.in_(list(ids))).values(state=state.value, settled_at=now()))
