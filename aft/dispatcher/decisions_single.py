"""Writes decisions in a transaction that locks faults and runs first.

For what needs more than the rows that all decisions have (``dispatcher.decisions_batch``): a wait for a signal, a plan,
another text of the fault. Also for faults beside a step that timed out, which may be in a ladder already, and for what
was refused in a batch.

Who may run at the same time: other dispatchers with the same faults, owners of their runs, people. ``lock`` waits for
them, in the same order as everybody else (the runs by their ids, then the faults), and returns only what may still be
decided. Whoever has locked a run may be paused: the caller's transaction is not patient (``Store.write``). It is one: a
crash leaves all of it or nothing, each decision with its message and its plan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select, update

from aft.dispatcher.decide import beside
from aft.dispatcher.decision import Decision, texts_of
from aft.dispatcher.decisions_batch import DECIDES
from aft.dispatcher.route import ApplyRuling, CarryOutExlet, RetryLater
from aft.fault import Fault, FaultState
from aft.ids import FaultId, RunId, StepPath
from aft.rules.exlets import plans
from aft.runs import waits
from aft.runs.records import inbox
from aft.runs.records.inbox import InboxVerb
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind
from aft.runs.wakes import wake
from aft.store.batch.execute_batch import write_within
from aft.store.batch.row_format import Fields
from aft.store.db_time import now
from aft.store.tables import faults, runs


def lock(connection: Connection, chosen: Sequence[Decision], instead: Sequence[Decision] = ()) -> list[Decision]:
    """Lock the faults of these decisions, and their runs; return those that still apply.

    ``chosen`` are about open faults, which a later owner may have raised again. ``instead`` are about faults that are
    open or waiting (``decide.beside``), and take precedence; those are opened again.
    """
    held = _lock_runs(connection, {decision.fault.run_id for decision in (*chosen, *instead)})
    named = [decision.fault.id for decision in chosen if decision.fault.run_id in held]
    still = {row.id: row.epoch for row in connection.execute(_still_open(named))}
    ours: dict[str, int] = {}
    if instead:
        found = connection.execute(beside(just=[one.fault.id for one in instead if one.fault.run_id in held]))
        ours = {row.id: row.run_epoch for row in found}
    for fault_id, epoch in ours.items():
        opened = {"state": FaultState.OPEN.value, "epoch": epoch}
        connection.execute(update(faults).where(faults.c.id == fault_id).values(**opened))
    taken = [one.at(still[one.fault.id]) for one in chosen if one.fault.id in still.keys() - ours.keys()]
    return [*taken, *(one.at(ours[one.fault.id]) for one in instead if one.fault.id in ours)]


def _lock_runs(connection: Connection, ids: Collection[RunId]) -> set[str]:
    """Lock those of these runs that have no owner, and return their ids."""
    free = select(runs.c.id).where(runs.c.id.in_(ids), runs.c.worker_id.is_(None))
    return set(connection.execute(free.order_by(runs.c.id).with_for_update()).scalars())


def _still_open(ids: Sequence[FaultId]) -> Select[Any]:
    return (
        select(faults.c.id, faults.c.epoch)
        .join(runs, runs.c.id == faults.c.run_id)
        .where(
            faults.c.id.in_(ids),
            faults.c.state == FaultState.OPEN.value,
            runs.c.epoch == faults.c.epoch,
            runs.c.worker_id.is_(None),
        )
        # The same order for all: a run may have several, and two dispatchers must not wait for each other.
        .order_by(faults.c.run_id, faults.c.id)
        .with_for_update(of=faults)
    )


def write(
    connection: Connection, namespace: str, taken: Sequence[Decision], rows: Sequence[Fields]
) -> tuple[list[Any], list[str]]:
    """Write decisions whose faults and runs are locked; return the answers to ``rows``, and the plans that begin.

    ``rows`` are what ``Decision.fields`` returns of each.
    """
    answers = write_within(connection, DECIDES, rows)
    begun: list[str] = []
    for decision, answer in zip(taken, answers, strict=True):
        if answer is None:
            continue
        fault, chosen = decision.fault, decision.route
        if isinstance(chosen, RetryLater) and chosen.signal is not None:
            _await_signal(connection, namespace, fault, chosen.signal)
        elif isinstance(chosen, ApplyRuling) and (texts := texts_of(fault, chosen.ruling)):
            connection.execute(update(faults).where(faults.c.id == fault.id).values(**texts))
        elif isinstance(chosen, CarryOutExlet):
            begun.append(plans.begin(connection, namespace, fault.run_id, fault.id, chosen.exlet, chosen.facts))
    return answers, begun


def _await_signal(connection: Connection, namespace: str, fault: Fault, signal: str) -> None:
    """Add a wait for a signal to the run, whose row is locked; one that is there already makes the run due now."""
    run = wake.lock(connection, namespace, fault.run_id)
    if run is None:
        return
    here = connection.execute(select(now())).scalar_one()
    wait = Wait(fault.path or StepPath(""), WaitKind.FAULT, signal, here)
    changes: dict[str, Any] = {"waits": waits.encode([*run.waits, wait])}
    # One that came before the fault was decided about is taken by the run: by this step, or by another that waits.
    sent = [item for item in inbox.unread(connection, fault.run_id) if item.verb is InboxVerb.SIGNAL]
    is_there = any(item.payload.get("name") == signal for item in sent)
    if is_there and run.status not in (Status.PARKED, Status.SUSPENDED):
        changes |= {"due_at": now(), "sweep_at": wake.sooner(0.0)}
    connection.execute(update(runs).where(runs.c.id == fault.run_id).values(**changes))
