"""Consumes faults in batches and decides about them; a batch is a handful of statements.

Who may run at the same time: several dispatchers with the same fault, redelivered, and the sweeper. The fault's row
decides: only ``open`` ones whose run has had no owner since are decided about, under a lock on both rows; the second
process finds nothing to do. A crash before the commit leaves the fault open and the message unacknowledged; after it,
the decision's own message is in the outbox, and the redelivered fault message is stale.

A run that somebody else has locked, who may be paused, is left out after a moment: its faults stay open, for the
sweeper. A decision that the database refuses fails its batch: the batch is split until the decision is alone, and its
run is parked with the database's reason. If that is refused, too, the fault stays open and ServiceFailed is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select

from aft import names
from aft.brokers.base import Broker, Consumer
from aft.dispatcher import decisions_single
from aft.dispatcher.decide import FaultDecider
from aft.dispatcher.decision import Decision
from aft.dispatcher.decisions_batch import DECIDES, written
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.exlets.plans import PlanExecutor
from aft.dispatcher.route import ParkRun, RetryLater
from aft.envelope import Message, MessageKind
from aft.errors import AftError
from aft.ids import FaultId, RunId
from aft.recovery.admission import Admission, AdmittedMessage
from aft.recovery.delays import DelayQueues
from aft.recovery.receiver import Receiver
from aft.recovery.sender import RowSender
from aft.store.batch.row_format import Fields
from aft.store.refusals import is_about_rows, is_locked
from aft.telemetry import FaultRouted, RuleWarned, RunParked, ServiceFailed, logger
from aft.texts import describe_error

#: Faults decided in one transaction.
BATCH = 200
#: Seconds that one receive from an empty queue waits.
PATIENCE = 0.5


class Intake:
    """Decides about faults. ``step`` belongs to one thread; ``decide`` is thread-safe."""

    def __init__(
        self, deps: DispatcherDependencies, broker: Broker, delays: DelayQueues, sender: RowSender, plans: PlanExecutor
    ) -> None:
        self._namespace = deps.namespace
        self._store = deps.store
        self._clock = deps.clock
        self._telemetry = deps.telemetry
        self._grace = deps.grace.total_seconds()
        self._broker = broker
        self._sender = sender
        self._plans = plans
        self._chooser = FaultDecider(deps, delays)
        kinds = (MessageKind.FAULT,)
        self._admission = Admission(deps.namespace, deps.store, deps.telemetry, kinds, deps.seal, deps.clock)
        #: Whether the last step has not ended well.
        self._in_doubt = False
        self.receiver = Receiver(self._begin, lambda: delays.declare(()))

    # Receiving --------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Receive one batch, decide about it, acknowledge it."""
        if self._in_doubt:
            # Asked first: each round with a database that is away would cost the messages one of their deliveries.
            with self._store.read() as connection:
                connection.execute(select(1))
        self._in_doubt = True
        self.receiver.use(self._receive)
        self._in_doubt = False
        return 0.0

    def _begin(self) -> Consumer:
        return self._broker.consumer([names.faults(self._namespace)], prefetch=2 * BATCH)

    def _receive(self, consumer: Consumer) -> None:
        deliveries = consumer.receive(BATCH, PATIENCE)
        if deliveries:
            self._admit(self._admission.admit(deliveries))
            consumer.ack(deliveries)

    def _admit(self, admitted: Sequence[AdmittedMessage]) -> None:
        named = {(one.message.fault, one.message.run): one for one in admitted}
        decided = self.decide([str(fault) for fault, _ in named])
        # A fault is decided under its own name, whatever run the message named; it must have been the right one.
        self._admission.report_stale([one for pair, one in named.items() if pair not in decided], _why_ignored)

    # Deciding ---------------------------------------------------------------------------------------------------

    def decide(self, ids: Sequence[str]) -> set[tuple[FaultId, RunId]]:
        """Decide about those of these faults that are still open; return their ids with those of their runs."""
        chosen, instead = self._chooser.decide_open(ids)
        if instead:
            # What rules make of a fault beside one that is out of time comes before what is made of it by itself.
            taken = self._decide_one_by_one(chosen, instead)
        else:
            taken = self._decide_together([one for one in chosen if not one.needs_more])
            taken += self._decide_one_by_one([one for one in chosen if one.needs_more])
        return {(decision.fault.id, decision.fault.run_id) for decision in taken}

    def _decide_together(self, chosen: Sequence[Decision]) -> list[Decision]:
        """Write decisions in one statement; return those that were written."""
        if not chosen:
            return []
        try:
            rows = self._rows(chosen)
            answers = self._store.write_now(DECIDES, rows)
        except Exception as error:
            # Another process has locked one of the runs, and may be paused: the others do not wait. That one's fault
            # stays open, for the sweeper.
            locked = is_locked(error)
            if not locked and not is_about_rows(error):
                raise
            if half := len(chosen) // 2:
                return [*self._decide_together(chosen[:half]), *self._decide_together(chosen[half:])]
            return [] if locked else self._park_refused(chosen[0], error)
        taken = self._announce(chosen, rows, answers)
        left = [decision for decision, answer in zip(chosen, answers, strict=True) if answer is None]
        # An order may have come for their runs meanwhile, which has to wake them then.
        return [*taken, *self._decide_one_by_one([one for one in left if isinstance(one.route, ParkRun)])]

    def _decide_one_by_one(self, chosen: Sequence[Decision], instead: Sequence[Decision] = ()) -> list[Decision]:
        """Write decisions of any kind in one transaction; ``instead`` take precedence where they still apply.

        If the database refuses one of them, each has a transaction of its own.
        """
        if not chosen and not instead:
            return []
        try:
            return self._write(chosen, instead)
        except Exception as error:
            if is_locked(error):
                return self._decide_run_by_run(chosen, instead)
            if not is_about_rows(error):
                raise
            if len(chosen) + len(instead) == 1:
                return self._park_refused((*chosen, *instead)[0], error)
        taken = [done for one in instead for done in self._decide_one_by_one([], [one])]
        return [*taken, *(done for one in chosen for done in self._decide_one_by_one([one]))]

    def _decide_run_by_run(self, chosen: Sequence[Decision], instead: Sequence[Decision]) -> list[Decision]:
        """Write decisions, some about a run that somebody has locked: the faults of that one stay open."""
        ids = sorted({one.fault.run_id for one in (*chosen, *instead)})
        taken: list[Decision] = []
        for run_id in ids if len(ids) > 1 else []:
            theirs = [[one for one in each if one.fault.run_id == run_id] for each in (chosen, instead)]
            taken += self._decide_one_by_one(*theirs)
        return taken

    def _park_refused(self, decision: Decision, error: Exception) -> list[Decision]:
        """Park the run of a fault whose decision the database refuses; return the new decision."""
        if not isinstance(error, AftError):
            logger.error("decision cannot be written: fault=%s", decision.fault.id, exc_info=error)
        reason = describe_error(error)
        why = f"its decision cannot be written: {reason}; change the rule or exlet that chose it, then retry"
        try:
            # With none of the texts of that decision, nor of its fault.
            return self._write([Decision(decision.fault, ParkRun(why))], reason=why)
        except Exception as again:
            if is_locked(again):
                return []
            if not is_about_rows(again):
                raise
            self._telemetry.emit(ServiceFailed(service="intake", why=f"fault {decision.fault.id}: {again}"))
            return []

    def _write(self, chosen: Sequence[Decision], instead: Sequence[Decision] = (), **more: Any) -> list[Decision]:
        """Write decisions in one transaction; return those that still applied. ``more`` are columns of each."""
        with self._store.write(patient=False) as connection:
            found = decisions_single.lock(connection, chosen, instead)
            rows = [{**row, **more} for row in self._rows(found)]
            answers, begun = decisions_single.write(connection, self._namespace, found, rows)
        taken = self._announce(found, rows, answers)
        for plan in begun:
            self._plans.begin(plan)
        return taken

    def _rows(self, chosen: Sequence[Decision]) -> list[Fields]:
        at = self._clock.now()
        return [decision.fields(self._namespace, self._grace, at) for decision in chosen]

    def _announce(self, chosen: Sequence[Decision], rows: Sequence[Fields], answers: Sequence[Any]) -> list[Decision]:
        """Report the decisions that were written, and publish their messages; return them."""
        taken: list[Decision] = []
        for decision, row, answer in zip(chosen, rows, answers, strict=True):
            if answer is not None:
                taken.append(decision)
                self._emit_routed(decision, row)
        self._sender.try_send(written(rows, answers))
        return taken

    def _emit_routed(self, decision: Decision, row: Fields) -> None:
        fault, chosen = decision.fault, decision.route
        for warning in decision.choice.warnings if decision.choice else ():
            self._telemetry.emit(RuleWarned(run=fault.run_id, fault=fault.id, why=warning))
        self._telemetry.emit(
            FaultRouted(
                run=fault.run_id,
                fault=fault.id,
                activity=fault.name,
                state=row["state"],
                queue=decision.queue,
                why=chosen.why,
                wait=chosen.wait if isinstance(chosen, RetryLater) else None,
            )
        )
        if isinstance(chosen, ParkRun):
            self._telemetry.emit(RunParked(run=fault.run_id, reason=row["reason"]))


def _why_ignored(row: Row[Any], message: Message) -> str:
    return "stale: the fault is decided"
