"""Intake: faults come off the queue in batches and are decided about; a batch is a handful of statements.

Who may run at the same time: several dispatchers, with the same fault in hand twice, and the sweeper with it a third
time. The fault's row decides: only ``open`` ones whose run has had no owner since are decided about, under a lock on
both rows; whoever comes second finds nothing to do. A crash before the commit leaves the fault open and the message
unacknowledged; after it, the decision's own message is in the outbox, and the repeated fault message is stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, select

from aft import names
from aft.brokers.base import Broker, Consumer
from aft.clock import Clock
from aft.dispatcher.carrying import Carrier, reason, state_of, still_open
from aft.dispatcher.choosing import Chooser, Decision, beside
from aft.dispatcher.judging import Judge
from aft.dispatcher.plain import DECIDES, is_plain, spell_out, written
from aft.dispatcher.plans import Plans
from aft.dispatcher.route import Park, Retry
from aft.envelope import Kind, Message
from aft.errors import BrokerError, StoreError, Unroutable
from aft.ids import FaultId, RunId
from aft.recovery.delays import Delays
from aft.recovery.door import Admitted, Door
from aft.recovery.sender import Sends
from aft.store import Store
from aft.store.outbox import OutboxRow
from aft.telemetry import FaultRouted, RuleWarned, RunParked, Telemetry

#: Faults decided in one transaction.
BATCH = 200
#: Seconds that one look at an empty queue takes.
PATIENCE = 0.5


class Intake:
    """Decides about faults. ``step`` belongs to one thread; ``decide`` is thread-safe."""

    def __init__(
        self,
        namespace: str,
        store: Store,
        broker: Broker,
        delays: Delays,
        sender: Sends,
        clock: Clock,
        telemetry: Telemetry,
        grace: timedelta,
        judge: Judge,
        plans: Plans,
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._broker = broker
        self._delays = delays
        self._sender = sender
        self._clock = clock
        self._telemetry = telemetry
        self._grace = grace.total_seconds()
        self._plans = plans
        self._chooser = Chooser(namespace, store, delays, telemetry, judge)
        self._carrier = Carrier(namespace, self._grace)
        self._door = Door(namespace, store, telemetry, (Kind.FAULT,))
        self._in_doubt = False
        self._consumer: Consumer | None = None

    # Receiving --------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Receive, decide, acknowledge: one batch."""
        if self._in_doubt:
            # Asked first: each round with a database that is away would cost the messages one of their deliveries.
            with self._store.read() as connection:
                connection.execute(select(1))
                self._in_doubt = False
        consumer = self._consumer
        try:
            if consumer is None:
                consumer = self._consumer = self._broker.consumer([names.faults(self._namespace)], prefetch=2 * BATCH)
            deliveries = consumer.receive(BATCH, PATIENCE)
            if deliveries:
                self._admit(self._door.admit(deliveries))
                consumer.ack(deliveries)
        except Unroutable:
            # The broker has lost its queues: wiped, or a new node. What was in them is the sweeper's.
            self.step_back()
            self._delays.declare(())
        except BrokerError:
            if self._consumer is consumer:
                raise  # it connects again by itself, and goes on with what it has begun
            # Otherwise the keeper has closed it meanwhile.
        except Exception:
            self.step_back()
            self._in_doubt = True
            raise
        return 0.0

    def step_back(self) -> None:
        """Stop receiving until the next step; what was not acknowledged comes again. Any thread may say so."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _admit(self, admitted: Sequence[Admitted]) -> None:
        named = {(one.message.fault, one.message.run): one for one in admitted}
        decided = self.decide([str(fault) for fault, _ in named])
        # A fault is decided under its own name, whatever run the message named; it must have been the right one.
        self._door.turn_away([one for pair, one in named.items() if pair not in decided], _why_ignored)

    # Deciding ---------------------------------------------------------------------------------------------------

    def decide(self, ids: Sequence[str]) -> set[tuple[FaultId, RunId]]:
        """Decide about those of these faults that are still open; returns which, with their runs."""
        chosen, instead = self._chooser.choose(ids)
        if instead:
            # What rules make of a fault beside one that is out of time comes before what is made of it by itself.
            taken = self._decide_one_by_one(chosen, instead)
        else:
            taken = self._decide_plainly([one for one in chosen if is_plain(one)])
            taken += self._decide_one_by_one([one for one in chosen if not is_plain(one)])
        return {(decision.fault.id, decision.fault.run_id) for decision in taken}

    def _decide_plainly(self, chosen: Sequence[Decision]) -> list[Decision]:
        """Write plain decisions, all in one statement; returns those that were still to be made."""
        if not chosen:
            return []
        at = self._clock.now()
        plain = [spell_out(decision, self._namespace, self._grace, at) for decision in chosen]
        try:
            answers = self._store.write_now(DECIDES, plain)
        except StoreError as error:
            if not error.locked:
                raise
            # Somebody has locked one of the runs, and may be paused: the others do not wait for him. That one's fault
            # stays open, for the sweeper.
            half = len(chosen) // 2
            return [] if not half else [*self._decide_plainly(chosen[:half]), *self._decide_plainly(chosen[half:])]
        taken = [decision for decision, answer in zip(chosen, answers, strict=True) if answer is not None]
        posted = written(plain, answers)
        self._announce(taken, posted)
        return taken

    def _decide_one_by_one(self, chosen: Sequence[Decision], instead: Sequence[Decision] = ()) -> list[Decision]:
        """Write decisions of any kind in one transaction; ``instead`` come first where they still can be made."""
        if not chosen and not instead:
            return []
        begun: list[str] = []
        with self._store.write() as connection:
            still: set[str] = set(connection.execute(still_open([decision.fault.id for decision in chosen])).scalars())
            locked = beside(just=[decision.fault.id for decision in instead]) if instead else None
            ours = set() if locked is None else {row.id for row in connection.execute(locked)}
            taken = [one for one in chosen if one.fault.id in still and one.fault.id not in ours]
            taken += [decision for decision in instead if decision.fault.id in ours]
            at = self._clock.now()
            posted = [row for one in taken for row in self._carrier.carry_out(connection, one, at, begun)]
        self._announce(taken, posted)
        for plan in begun:
            self._plans.begin(plan)
        return taken

    def _announce(self, taken: Sequence[Decision], posted: Sequence[OutboxRow]) -> None:
        for decision in taken:
            self._tell(decision)
        self._sender.try_send(posted)

    def _tell(self, decision: Decision) -> None:
        fault, chosen = decision.fault, decision.route
        for warning in decision.judgement.decision.warnings if decision.judgement.decision else ():
            self._telemetry.emit(RuleWarned(run=fault.run_id, fault=fault.id, why=warning))
        self._telemetry.emit(
            FaultRouted(
                run=fault.run_id,
                fault=fault.id,
                activity=fault.name,
                state=state_of(chosen).value,
                queue=decision.queue,
                verdict=chosen.why,
                wait=chosen.wait if isinstance(chosen, Retry) else None,
            )
        )
        if isinstance(chosen, Park):
            self._telemetry.emit(RunParked(run=fault.run_id, reason=reason(fault, chosen)))


def _why_ignored(row: Row[Any], message: Message) -> str:
    return "stale: the fault is decided"
