"""The worker: claims runs that may go on, and executes them on its threads.

A run is claimed by a message on *resume* or *compensate*, or by the timer when it is due (the timer's waits, and every
lost message). The first one claims it; the other finds that the run awaits no such wake.

Any number of workers, in any number of processes, run at the same time. A crash before the claim has committed leaves
the message unacknowledged: it is redelivered. After it, the run names this worker, which is dead: the message that is
still held is redelivered to another worker, which takes the run over (``recovery.takeover``).

A delivery is held while its run is executed, for a few seconds: during these, redelivery is the fastest notice of this
worker's death; if it were held longer, the broker's consumer time-out would have the run executed twice.

A worker whose lease is expired returns its deliveries, and claims nothing until it is leased again
(``recovery.lease_guard``).

While too many abandoned attempts have not returned (``flows.runtime.abandoned_attempts``) it claims nothing either: its
messages go to other workers, and its runs are released at their next step.

A run during which workers have died repeatedly is claimed by a service of its own (``flows.worker.solitary_runs``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Row

from aft import names
from aft.brokers.base import Broker, Consumer, Delivery
from aft.envelope import Message, MessageKind
from aft.errors import AftError
from aft.flows.session.dependencies import Dependencies
from aft.flows.worker.claimer import RunClaimer
from aft.flows.worker.executor import RunExecutor
from aft.flows.worker.held_deliveries import HeldDeliveries
from aft.flows.worker.slots import PATIENCE, TURNS_AHEAD, Slots
from aft.flows.worker.solitary_runs import SolitaryRuns
from aft.flows.worker.unserved_runs import UnservedRecall, claim_undoable, find_undoable
from aft.ids import RunId
from aft.recovery.admission import Admission, AdmittedMessage
from aft.recovery.lease_guard import is_leased, while_leased
from aft.recovery.receiver import Receiver
from aft.recovery.service import Service, countdown
from aft.recovery.takeover import Takeover
from aft.runs.ownership.executing_runs import Expect
from aft.runs.ownership.owner import LeaseOver
from aft.runs.run_rows import RunRow
from aft.runs.wakes.unserved_runs import Undoable

#: Seconds to wait for more slots, where more messages are at hand than there are slots for.
GATHER = 0.005
#: Seconds for which the timer leaves runs to their messages, after more messages came than there were slots.
FLOW = 1.0
#: Seconds to wait when another worker has claimed what was due, or it is not for the timer.
BEATEN = 0.05
#: Seconds between two searches for runs to undo whose flow no worker has.
UNDO_PAUSE = 1.0


class Worker:
    """Executes up to ``concurrency`` runs at a time. Emits: RunClaimed, and the events of admission and takeover."""

    def __init__(
        self, deps: Dependencies, broker: Broker, takeover: Takeover, concurrency: int, declare: Callable[[], object]
    ) -> None:
        self._deps = deps
        self._broker = broker
        self._known = deps.registry.known
        self._slots = Slots(concurrency)
        kinds = (MessageKind.RESUME, MessageKind.COMPENSATE)
        self._admission = Admission(deps.namespace, deps.store, deps.telemetry, kinds, deps.seal, deps.clock)
        self._takeover = takeover
        self.receiver = Receiver(self._begin_consuming, declare)
        self._held = HeldDeliveries(deps.clock)
        self._executor = RunExecutor(deps, self._slots, self._held)
        self._claimer = RunClaimer(deps)
        #: When there were last more messages than free slots.
        self._flowed_at = float("-inf")
        self._turn = 0
        #: Whether there were messages lately about runs that do not exist.
        self._is_flooded = False
        #: Runs to undo whose flow no worker has, and that must be executed alone, as last seen.
        self._undoable_alone: list[Undoable] = []
        self._solitary = SolitaryRuns(deps, self._slots, self._is_due_alone, self._execute_alone)
        self._services = [
            Service("receiver", while_leased(deps.lease, self._receive), deps.telemetry, self.receiver.interrupt),
            Service("timer", while_leased(deps.lease, self._take_due), deps.telemetry),
            Service("solitary", self._solitary.take, deps.telemetry),
            Service("recall", while_leased(deps.lease, UnservedRecall(deps).step), deps.telemetry),
            Service("undoer", while_leased(deps.lease, self._take_undoable), deps.telemetry),
            Service("takeover", takeover.follow_suspicions, deps.telemetry, takeover.interrupt),
        ]

    def start(self) -> None:
        """Start to claim runs."""
        for service in self._services:
            service.start()

    @property
    def executing(self) -> list[tuple[RunId, str]]:
        """The runs that are being executed here, each with its flow, in the order in which they were claimed."""
        return self._executor.executing

    def drain(self) -> None:
        """Claim nothing new, and release each run at its next step."""
        self._deps.draining.set()
        for service in self._services:
            service.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every run is released; False if one is not in time."""
        left = countdown(self._deps.clock, timeout)
        # One may be in a call to a database that does not answer.
        ended = [service.join(left()) for service in self._services]
        # Held deliveries are redelivered to other workers, which find the owner alive: that costs nothing.
        self.receiver.stop_consuming(self._acknowledge_done)
        idle = self._slots.wait_idle(left()) and all(ended)
        self._executor.close(wait=idle)
        return idle

    def _acknowledge_done(self, consumer: Consumer) -> None:
        with suppress(AftError):
            consumer.ack(self._held.pop_done())

    # Woken by a message -----------------------------------------------------------------------------------------

    def _receive(self) -> float:
        if self._deps.abandoned.is_full:
            self.receiver.stop_consuming()
            return PATIENCE
        self.receiver.use(self._receive_from)
        return 0.0

    def _receive_from(self, consumer: Consumer) -> None:
        consumer.ack(self._held.pop_done())
        # Slots are not held while waiting for messages: the timer may need them meanwhile.
        if free := self._slots.free(timeout=PATIENCE):
            # Not just as many as there are slots: with the next ones at hand, more of them are claimed at once.
            deliveries = consumer.receive(self._slots.size, PATIENCE)
            if len(deliveries) > free:
                self._flowed_at = self._deps.clock.ticks()
            self._take_all(consumer, deliveries)

    def _take_all(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        admitted = self._admission.admit(deliveries)
        if self._is_flooded:
            # Claiming a run that does not exist costs more than checking that it exists.
            before, admitted = len(admitted), self._admission.refuse_unknown(admitted)
            self._is_flooded = len(admitted) < before
        honest = {id(one.delivery) for one in admitted}
        consumer.ack([delivery for delivery in deliveries if id(delivery) not in honest])  # they need no slot
        while admitted and not self._deps.draining.is_set() and not self._deps.abandoned.is_full:
            taken = self._slots.take(limit=len(admitted), timeout=PATIENCE, gather=GATHER)
            now_on, admitted = admitted[:taken], admitted[taken:]
            self._take(consumer, now_on, taken)
            consumer.ack(self._held.pop_done())

    def _take(self, consumer: Consumer, admitted: Sequence[AdmittedMessage], slots: int) -> None:
        """Claim the runs that the messages wake; claimed runs are executed whatever fails afterwards."""
        claimed: list[RunRow] = []
        try:
            wakes = [(one.message.run, one.message.wake) for one in admitted]
            claimed = self._deps.executing.claim(lambda expect: self._claim(wakes, expect))
            held = self._held.hold(claimed, admitted)
        finally:
            self._slots.release(slots - len(claimed))
            self._executor.execute(claimed, {one.message.run: one.message.wake for one in admitted})
        taken = {row.id for row in claimed}
        ignored = [one for one in admitted if one.message.run not in taken]
        self._takeover.suspect(one.message.run for one in ignored if one.delivery.redelivered)
        self._is_flooded = self._admission.report_stale(ignored, self._why_ignored) or self._is_flooded
        consumer.ack([one.delivery for one in admitted if id(one.delivery) not in held])

    def _claim(self, wakes: list[tuple[RunId, str]], expect: Expect) -> list[RunRow]:
        if not wakes:
            return []
        if not self._leased():
            raise LeaseOver("the lease ran out while messages were awaited")
        expect({run for run, _ in wakes})
        claimed = self._claimer.claim_woken(wakes)
        if not claimed and not self._deps.lease.check():
            raise LeaseOver("the lease was ended by somebody else")
        return claimed

    def _why_ignored(self, row: Row[Any], message: Message) -> str:
        if row.wake_id != message.wake:
            return "stale: the run has gone on"
        if (row.flow, row.version) not in self._known:
            return f"flow {row.flow}@{row.version} is not registered here; left for a worker that has it"
        return "it is not due, must be executed alone, or somebody has locked it: it is left to the timer"

    def _leased(self) -> bool:
        return is_leased(self._deps.lease)

    def _begin_consuming(self) -> Consumer:
        namespace = self._deps.namespace
        queues = [names.resume(namespace), names.compensate(namespace)]
        return self._broker.consumer(
            queues,
            # For each queue: as many as are held while they are executed, and as many again that wait for a slot.
            prefetch=2 * self._slots.size * len(queues),
            keys={names.key(flow, version) for flow, version in self._known},
        )

    # Woken by time ----------------------------------------------------------------------------------------------

    def _take_due(self) -> float:
        if self._deps.abandoned.is_full:
            return PATIENCE
        due = self._claimer.read_due(patient := self._messages_flow())
        is_due = due.next is not None and due.next <= 0
        if not due.urgent and not is_due:
            # Bounded by PATIENCE: an earlier one may turn up meanwhile.
            return PATIENCE if due.next is None else min(PATIENCE, due.next)
        self._turn += 1
        by_age = is_due and self._turn % (TURNS_AHEAD + 1) == 0
        # Messages come in the order in which they were sent: urgent runs overtake them here.
        urgent = due.urgent and not by_age
        free = self._slots.take(limit=100, timeout=PATIENCE, urgent=urgent)
        if not free:
            return 0.0
        claim = partial(self._claimer.claim_due, free, urgent=urgent, by_age=by_age, patient=patient and not urgent)
        return 0.0 if self._claim_and_execute(free, claim) else BEATEN

    def _take_undoable(self) -> float:
        """Claim and undo runs of flows that no live worker has; undoing needs compensators only."""
        undoable = find_undoable(self._deps, self._slots.size)
        self._undoable_alone = [one for one in undoable if one.alone]
        found = [one for one in undoable if not one.alone]
        if not found:
            return UNDO_PAUSE
        free = self._slots.take(limit=len(found), timeout=PATIENCE)
        if not free:
            return UNDO_PAUSE
        claimed = self._claim_and_execute(free, partial(claim_undoable, self._deps, found[:free]))
        return 0.0 if claimed else UNDO_PAUSE

    def _claim_and_execute(self, slots: int, claim: Callable[[Expect], list[RunRow]]) -> bool:
        """Execute each claimed run in one of the taken slots, and give the other slots back."""
        claimed: list[RunRow] = []
        try:
            claimed = self._deps.executing.claim(claim)
        finally:
            self._slots.release(slots - len(claimed))
            self._executor.execute(claimed, {})
        return bool(claimed)

    def _execute_alone(self, slots: int) -> None:
        """Execute a due run that must be alone, in all the slots; give them back if there is none."""
        claimed: list[RunRow] = []
        try:
            if not self._deps.draining.is_set():
                claimed = self._deps.executing.claim(self._claim_alone)
        finally:
            if not claimed:
                self._slots.release(slots)
            self._executor.execute(claimed, {}, slots=slots)

    def _is_due_alone(self) -> bool:
        return bool(self._undoable_alone) or self._claimer.read_due().alone

    def _claim_alone(self, expect: Expect) -> list[RunRow]:
        found, self._undoable_alone = self._undoable_alone[:1], []
        claimed = claim_undoable(self._deps, found, expect, alone=True) if found else []
        return claimed or self._claimer.claim_due(1, expect, alone=True)

    def _messages_flow(self) -> bool:
        """Whether there are more messages than free slots: then a missing message is probably just late."""
        return self._deps.clock.ticks() - self._flowed_at < FLOW
