"""Decides about a batch of faults: reads the open ones in one query, and decides about each.

Reads only, outside of any transaction, because it evaluates rules and declares queues, which must not happen while rows
are locked. A decision holds only if the fault is still open when it is written (``dispatcher.decisions_batch``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from sqlalchemy import Select, func, select

from aft import names
from aft.dispatcher.decision import Decision
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.fault_rules import FaultRules
from aft.dispatcher.route import ApplyRuling, CarryOutExlet, GiveUp, ParkRun, RetryLater, Route
from aft.errors import BrokerError, StoreError
from aft.fault import Fault, FaultKind, FaultState
from aft.ids import FaultId, RunId
from aft.recovery.delays import SHORTEST, DelayQueues
from aft.rules.rule_types import RuleType
from aft.runs import run_rows as rows
from aft.runs.records import faults as fault_rows
from aft.runs.run_rows import RunRow
from aft.store.batch.statements import PreparedQuery
from aft.store.tables import faults, runs
from aft.telemetry import RuleWarned, ServiceFailed
from aft.texts import escape_unstorable


class FaultDecider:
    """Decides about the faults of one namespace. Thread-safe. Emits: RuleWarned, ServiceFailed."""

    def __init__(self, deps: DispatcherDependencies, delays: DelayQueues) -> None:
        self._namespace = deps.namespace
        self._store = deps.store
        self._telemetry = deps.telemetry
        self._delays = delays
        self._rules = FaultRules(deps.namespace, deps.store, deps.rules)

    def decide_open(self, ids: Sequence[str]) -> tuple[list[Decision], list[Decision]]:
        """Decide about those of these faults that are open, and about others of their runs that rules are about.

        The run of a fault whose row cannot be read is parked.
        """
        found, corrupt = self._find_open(ids)
        known = self._know([fault.run_id for fault, flow, _ in found if self._may_be_taught(fault, flow)])
        chosen = [
            self._decide_safely(fault, known.get(fault.run_id), names.key(flow, version))
            for fault, flow, version in found
        ]
        return [*chosen, *corrupt], self._decide_beside([fault for fault, *_ in found], known)

    def _find_open(self, ids: Sequence[str]) -> tuple[list[tuple[Fault, str, int]], list[Decision]]:
        """Return the open faults among these, each with its flow and version, ordered by run; and those to be parked.

        The latter cannot be read: somebody has edited their rows. The others of the batch are decided all the same.
        """
        (found,) = self._store.query([(_OPEN, json.dumps(list(ids)))])
        read: list[tuple[Fault, str, int]] = []
        corrupt: list[Decision] = []
        for flow, version, *values in found:
            row = dict(zip(fault_rows.NAMES, values, strict=True))
            if row["namespace"] != self._namespace:
                continue
            try:
                read.append((fault_rows.read_fault(row), flow, version))
            except fault_rows.MEANINGLESS:
                fault, key = fault_rows.stand_in(row), names.key(flow, version)
                corrupt.append(Decision(fault, ParkRun(fault_rows.IF_CORRUPT), key=key))
        return read, corrupt

    def _may_be_taught(self, fault: Fault, flow: str) -> bool:
        try:
            return self._rules.is_taught(fault, flow)
        except (StoreError, BrokerError):
            raise
        except Exception:
            return True  # a row that somebody edited by hand: asking its rules fails, too, and is reported

    def _know(self, taught: Sequence[RunId]) -> dict[RunId, RunRow]:
        if not taught:
            return {}
        with self._store.read() as connection:
            return rows.get_all(connection, taught)

    def _read(self, row: Mapping[str, Any]) -> Fault | None:
        if row["namespace"] != self._namespace:
            return None
        try:
            return fault_rows.read_fault(row)
        except fault_rows.MEANINGLESS as error:
            # As where it is decided about by itself; the others are decided all the same.
            why = f"fault {row['id']} cannot be read: {error}"
            self._telemetry.emit(ServiceFailed(service="intake", why=why))
            return None

    def _decide_safely(self, fault: Fault, run: RunRow | None, key: str) -> Decision:
        """Decide about one fault; without rules if they cannot be evaluated, so that it does not hold up its batch."""
        try:
            return self._decide(fault, run, key)
        except (StoreError, BrokerError):
            raise
        except Exception as error:
            self._warn(fault, f"its rules cannot be asked: {error!r}")
        try:
            return self._decide(fault, None, key)
        except Exception as error:
            why = f"it cannot be decided about: {escape_unstorable(repr(error))}; decide by hand, then retry"
            return Decision(fault, ParkRun(why), key=key)

    def _warn(self, fault: Fault, why: str) -> None:
        self._telemetry.emit(RuleWarned(run=fault.run_id, fault=fault.id, why=why))

    def _decide(self, fault: Fault, run: RunRow | None, key: str) -> Decision:
        return self._directed(self._rules.decide(fault, run), key)

    def _directed(self, made: Decision, key: str) -> Decision:
        """Return the decision with the queue of its run's wake-up, and its routing key."""
        return Decision(made.fault, made.route, made.choice, self._queue_of(made.route), key)

    def _queue_of(self, chosen: Route) -> str | None:
        match chosen:
            case GiveUp():
                return names.compensate(self._namespace)
            case ApplyRuling():
                return names.resume(self._namespace)
            case RetryLater():
                return self._queue_for(chosen)
            case ParkRun() | CarryOutExlet():
                return None
            case _:
                assert_never(chosen)

    def _queue_for(self, chosen: RetryLater) -> str | None:
        if chosen.alone or chosen.signal is not None or chosen.wait is None:
            return None
        if chosen.wait < SHORTEST:
            return names.resume(self._namespace)
        if not chosen.declared:
            return None
        try:
            return self._delays.queue_for(chosen.wait)
        except BrokerError:
            return None  # the broker is away: the timer keeps the time meanwhile

    def _decide_beside(self, late: Sequence[Fault], known: Mapping[RunId, RunRow]) -> list[Decision]:
        """Return what timeout rules decide about other faults, open or waiting, of runs in which a step timed out."""
        timed_out = {
            fault.run_id: fault for fault in late if fault.rule_type == RuleType.TIMEOUT and fault.run_id in known
        }
        if not timed_out:
            return []
        with self._store.read() as connection:
            rows = connection.execute(beside(list(timed_out))).mappings()
            found = [self._read({name: row[name] for name in fault_rows.NAMES}) for row in rows]
        made: list[Decision] = []
        for fault in found:
            if fault is not None:
                run = known[fault.run_id]
                # It may be of an earlier owner, and is of its run's epoch once it is decided about again.
                decision = self._decide_one_beside(replace(fault, epoch=run.epoch), run, timed_out[fault.run_id].name)
                if decision is not None:
                    made.append(self._directed(decision, names.key(run.flow, run.version)))
        return made

    def _decide_one_beside(self, fault: Fault, run: RunRow, late: str) -> Decision | None:
        try:
            return self._rules.decide_beside_timeout(fault, run, late)
        except (StoreError, BrokerError):
            raise
        except Exception as error:
            self._warn(fault, f"its rules cannot be asked: {error!r}")
            return None


def beside(run_ids: Sequence[RunId] = (), *, just: Sequence[FaultId] | None = None) -> Select[Any]:
    """Select faults of these runs that are no timeouts and that no rule has changed; or just the given ones, locked.

    Their runs are locked before (``dispatcher.decisions_single``).
    """
    statement = (
        select(faults, runs.c.epoch.label("run_epoch"))
        .join(runs, runs.c.id == faults.c.run_id)
        .where(
            faults.c.run_id.in_(list(run_ids)) if just is None else faults.c.id.in_(list(just)),
            faults.c.state.in_([FaultState.OPEN.value, FaultState.WAITING.value]),
            faults.c.kind == FaultKind.ACTIVITY.value,
            func.coalesce(faults.c.rule_type, "") != RuleType.TIMEOUT.value,
            faults.c.ruling.is_(None),
            faults.c.signal.is_(None),
            runs.c.worker_id.is_(None),
        )
        .order_by(faults.c.run_id, faults.c.id)
    )
    return statement if just is None else statement.with_for_update(of=faults)


#: Not the state alone: there is an index of all open faults, which may be many, and it must not be gone through.
_OPEN = PreparedQuery.about(f"""
    SELECT r.flow, r.version, {", ".join("f." + name for name in fault_rows.NAMES)}
    FROM {faults.name} AS f JOIN {runs.name} AS r ON r.id = f.run_id AND r.epoch = f.epoch
    WHERE f.id {{among}} AND f.state || '' = '{FaultState.OPEN.value}' AND r.worker_id IS NULL
    ORDER BY f.run_id, f.id
""")
