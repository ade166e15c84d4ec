"""Fault rows: written by the run's owner, decided by the dispatcher, read by everybody."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import Connection, Row, insert, select, update

from aft.errors import UnknownFault
from aft.fault import Answer, Fault, FaultKind, FaultState
from aft.ids import RunId
from aft.store import moments
from aft.store.moments import now
from aft.store.questions import PreparedQuery
from aft.store.spelling import has_part
from aft.store.tables import faults

#: The columns of a fault's row, in the order in which they are read where a statement is written out.
NAMES = tuple(column.name for column in faults.columns)
#: States of a fault that still says something about what its step does next.
LIVE = (FaultState.OPEN, FaultState.WAITING, FaultState.HANDLED, FaultState.FINAL, FaultState.PARKED)
#: Those of them that end with their run.
_UNSETTLED = [state.value for state in LIVE if state is not FaultState.FINAL]
#: The faults of several runs that are not settled, each run's oldest first.
LIVE_OF_RUNS = PreparedQuery.about(
    f"SELECT {', '.join(NAMES)} FROM {faults.name} WHERE run_id {{among}} "
    f"AND state IN ({', '.join(repr(state.value) for state in LIVE)}) ORDER BY run_id, id"
)
#: Faults by their ids.
NAMED = PreparedQuery.about(f"SELECT {', '.join(NAMES)} FROM {faults.name} WHERE id {{among}}")


_INSERT = insert(faults)


def add(connection: Connection, namespace: str, fault: Fault) -> None:
    """Write a new fault."""
    connection.execute(_INSERT, {**fields(namespace, fault), "run_id": fault.run_id})


def fields(namespace: str, fault: Fault) -> dict[str, Any]:
    """A new fault as it lies in its row; its run's id is not said."""
    return {
        "id": fault.id,
        "namespace": namespace,
        "path": fault.path,
        "kind": fault.kind.value,
        "name": fault.name,
        "state": fault.state.value,
        "epoch": fault.epoch,
        "attempt": fault.attempt,
        "type": fault.type,
        "lineage": json.dumps(fault.lineage),
        "message": fault.message,
        "args": fault.args,
        "attributes": fault.attributes,
        "exact": fault.exact,
        "traceback": fault.traceback,
        "said": fault.said,
        "declared": fault.declared,
        "status": fault.status,
        "after_seconds": None if fault.after is None else fault.after.total_seconds(),
        "signal": fault.signal,
        "ladder": fault.ladder,
        "resource": fault.resource,
        "verdict": fault.verdict,
        "raised_at": fault.raised_at,
        "exception": fault.exception,
        "step": fault.step,
        "decision": fault.decision,
        "ruling": fault.ruling,
    }


def from_row(row: Row[Any]) -> Fault:
    """Read a whole row of the faults table."""
    return read(row._asdict())


def read(row: Mapping[str, Any]) -> Fault:
    """Read a whole row of the faults table, also as the driver gives it."""
    return Fault(
        id=row["id"],
        run_id=row["run_id"],
        path=row["path"],
        kind=FaultKind(row["kind"]),
        name=row["name"],
        state=FaultState(row["state"]),
        epoch=row["epoch"],
        attempt=row["attempt"],
        type=row["type"],
        lineage=tuple(json.loads(row["lineage"])),
        message=row["message"],
        args=row["args"],
        attributes=row["attributes"],
        exact=bool(row["exact"]),
        traceback=row["traceback"],
        said=None if row["said"] is None else Answer(row["said"]),
        declared=None if row["declared"] is None else Answer(row["declared"]),
        status=row["status"],
        after=None if row["after_seconds"] is None else timedelta(seconds=row["after_seconds"]),
        ladder=row["ladder"],
        raised_at=cast(datetime, moments.read(row["raised_at"])),
        level=row["level"],
        try_in_level=row["try_in_level"],
        wait=None if row["wait_seconds"] is None else timedelta(seconds=row["wait_seconds"]),
        queue=row["queue"],
        verdict=row["verdict"],
        due_at=moments.read(row["due_at"]),
        decided_at=moments.read(row["decided_at"]),
        settled_at=moments.read(row["settled_at"]),
        resource=row["resource"],
        signal=row["signal"],
        exception=row["exception"],
        step=row["step"],
        decision=row["decision"],
        ruling=row["ruling"],
        run_status=row["run_status"],
        run_tags=row["run_tags"],
    )


def _read_or_stand_in(row: dict[str, Any]) -> Fault:
    """Read a row; of one that somebody has spoilt, which it is and why: the others are listed all the same."""
    try:
        return read(row)
    except (ValueError, TypeError, RecursionError) as error:
        why = f"its row in the database cannot be read: {error}"
        harmless = {"lineage": "[]", "said": None, "declared": None, "after_seconds": None, "wait_seconds": None}
        kinds = {"kind": FaultKind.FLOW.value, "state": FaultState.PARKED.value, "message": why, "verdict": why}
        return read({**row, **harmless, **kinds})


def get(connection: Connection, namespace: str, fault_id: str) -> Fault | None:
    """Return one fault, or None."""
    statement = select(faults).where(faults.c.id == fault_id, faults.c.namespace == namespace)
    row = connection.execute(statement).one_or_none()
    return None if row is None else from_row(row)


def find(connection: Connection, namespace: str, part: str) -> Fault | None:
    """Return the one fault whose id a person meant, who typed a part of it; None if there is none."""
    statement = select(faults).where(faults.c.namespace == namespace, has_part(faults.c.id, part))
    found = connection.execute(statement.limit(2)).all() if part else []
    if len(found) > 1:
        raise UnknownFault(f"several faults match {part!r}; give more of the id")
    return from_row(found[0]) if found else None


def of_run(connection: Connection, run_id: RunId) -> list[Fault]:
    """Return a run's faults, oldest first."""
    statement = select(faults).where(faults.c.run_id == run_id).order_by(faults.c.id)
    return [from_row(row) for row in connection.execute(statement)]


def listing(connection: Connection, namespace: str, *, state: FaultState | None = None, limit: int = 50) -> list[Fault]:
    """Return the newest faults, newest first."""
    statement = select(faults).where(faults.c.namespace == namespace).order_by(faults.c.id.desc()).limit(limit)
    if state is not None:
        statement = statement.where(faults.c.state == state.value)
    return [_read_or_stand_in(row._asdict()) for row in connection.execute(statement)]


def renew(connection: Connection, fault_id: str, epoch: int) -> None:
    """Let a fault be decided about that an earlier owner raised; only in a write of the run's owner of this epoch."""
    connection.execute(update(faults).where(faults.c.id == fault_id).values(epoch=epoch))


def reopen(connection: Connection, fault_id: str, ruling: str) -> None:
    """Let a step begin anew that a person looked at, with what rules have made of it; only in a write of the owner."""
    again = {"state": FaultState.WAITING.value, "ruling": ruling, "due_at": now(), "settled_at": None, "signal": None}
    connection.execute(update(faults).where(faults.c.id == fault_id).values(**again))


def settle_rest(connection: Connection, run_id: RunId) -> None:
    """Settle what nobody will decide about, try or look at any more, because its run has come to its end."""
    left = faults.c.state.in_(_UNSETTLED)
    connection.execute(
        update(faults).where(faults.c.run_id == run_id, left).values(state=FaultState.RESOLVED.value, settled_at=now())
    )


def keep_aborts(connection: Connection, run_id: RunId) -> None:
    """Say that nobody will see any more what lost workers did: their run ends, and what they did may stand."""
    here = (faults.c.run_id == run_id, faults.c.kind == FaultKind.ABORT.value, faults.c.state.in_(_UNSETTLED))
    connection.execute(update(faults).where(*here).values(state=FaultState.FINAL.value, settled_at=now()))


def settle_all(connection: Connection, run_id: RunId) -> None:
    """Settle everything that still says something about what a run's steps do next."""
    live = faults.c.state.in_([state.value for state in LIVE])
    connection.execute(
        update(faults).where(faults.c.run_id == run_id, live).values(state=FaultState.RESOLVED.value, settled_at=now())
    )


def settle_final(connection: Connection, run_id: RunId, paths: Collection[str], state: FaultState) -> None:
    """Move the faults that have ended steps for good to another state, because the journal forgets those steps."""
    if paths:
        final = (faults.c.path.in_(list(paths)), faults.c.state == FaultState.FINAL.value)
        connection.execute(
            update(faults).where(faults.c.run_id == run_id, *final).values(state=state.value, settled_at=now())
        )


def settle(connection: Connection, ids: Iterable[str], state: FaultState) -> None:
    """Move faults to a state that ends them."""
    connection.execute(update(faults).where(faults.c.id.in_(list(ids))).values(state=state.value, settled_at=now()))
