"""The worker: takes runs that shall go on, and executes them on its threads.

Two ways lead a run here: a message on *resume* or *compensate*, and its time having come (the timer's waits, and every
message that was lost). Whichever is first has it; the other finds that it awaits no such wake.

Who may run at the same time: any number of workers, in any number of processes. A crash before the claim has committed
leaves the message unacknowledged: it comes again. After it, the run names this worker, which is dead: the message that
is still held comes back to another worker, which takes over (``recovery.takeover``).

A delivery is held while its run is executed, for some seconds at the most: until then the broker is the quickest to
tell of our death, and after that its own patience must not end, which would have the run executed twice.

A worker whose lease is over gives back what it has received, and takes nothing until it is leased again
(``recovery.keeper``).

While too many attempts that were given up have not returned (``flows.abandonment``) it takes nothing either: its
messages go to others, and the runs that it has are given back at their next step.

A run on which workers have died again and again is taken by a service of its own (``flows.solitary``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Row

from aft import names
from aft.brokers.base import Broker, Consumer, Delivery
from aft.envelope import Message, MessageKind
from aft.errors import AftError, BrokerError, StoreError, Unroutable
from aft.flows import loading
from aft.flows.held import Held
from aft.flows.loading import Recorded
from aft.flows.runner import Runner
from aft.flows.slots import PATIENCE, TURNS_AHEAD, Slots
from aft.flows.solitary import Solitary
from aft.flows.threads import DaemonPool
from aft.flows.tools import Tools
from aft.flows.unserved import Recall, claim_undoable, find_undoable
from aft.ids import RunId
from aft.recovery.door import Admitted, Door
from aft.recovery.keeper import is_leased, while_leased
from aft.recovery.service import Service, countdown
from aft.recovery.takeover import Takeover
from aft.runs import claiming
from aft.runs.claiming import Due
from aft.runs.holdings import Expect
from aft.runs.owner import LeaseOver
from aft.runs.rows import RunRow
from aft.runs.unserved import Undoable
from aft.store.refusals import is_about_rows
from aft.telemetry import RunClaimed, ServiceFailed, logger

#: Seconds to wait for more slots, where more messages are at hand than there are slots for.
GATHER = 0.005
#: Seconds for which messages that come faster than they are worked off are left to do what they are there for.
FLOW = 1.0
#: Seconds to wait when what is due was taken by somebody else, or is not for the timer.
BEATEN = 0.05
#: Seconds between two looks for runs to be undone whose flow nobody has.
UNDO_PAUSE = 1.0


class Worker:
    """Executes up to ``concurrency`` runs at a time. Emits: RunClaimed, and what its door and its takeover emit."""

    def __init__(
        self, tools: Tools, broker: Broker, takeover: Takeover, concurrency: int, declare: Callable[[], object]
    ) -> None:
        self._tools = tools
        self._broker = broker
        self._runner = Runner(tools)
        self._known = tools.registry.known
        self._slots = Slots(concurrency)
        self._pool = DaemonPool(concurrency, "aft-run")
        kinds = (MessageKind.RESUME, MessageKind.COMPENSATE)
        self._door = Door(tools.namespace, tools.store, tools.telemetry, kinds, tools.seal, tools.clock)
        self._takeover = takeover
        self._declare = declare
        self._consumer: Consumer | None = None
        self._held = Held(tools.clock)
        self._lock = threading.Lock()
        #: The flows of runs that are being executed, by run and epoch: one may be claimed again before its thread ends.
        self._executing: dict[tuple[RunId, int], str] = {}
        #: When there were last more messages than free slots.
        self._flowed_at = float("-inf")
        self._turn = 0
        #: Whether there were messages lately about runs that do not exist.
        self._is_flooded = False
        #: Runs to be undone whose flow nobody has, and that must be executed alone, as last seen.
        self._undoable_alone: list[Undoable] = []
        self._solitary = Solitary(tools, self._slots, self._is_due_alone, self._execute_alone)
        self._services = [
            Service("receiver", while_leased(tools.lease, self._receive), tools.telemetry, self._interrupt),
            Service("timer", while_leased(tools.lease, self._take_due), tools.telemetry),
            Service("solitary", self._solitary.take, tools.telemetry),
            Service("recall", while_leased(tools.lease, Recall(tools).step), tools.telemetry),
            Service("undoer", while_leased(tools.lease, self._take_undoable), tools.telemetry),
            Service("takeover", takeover.settle, tools.telemetry, takeover.interrupt),
        ]

    def start(self) -> None:
        """Begin to take runs."""
        for service in self._services:
            service.start()

    def drain(self) -> None:
        """Take nothing new, and let each run go at its next step."""
        self._tools.draining.set()
        for service in self._services:
            service.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every run has been let go; False if one has not in time."""
        left = countdown(self._tools.clock, timeout)
        # One may be in a call to a database that does not answer.
        ended = [service.join(left()) for service in self._services]
        if self._consumer is not None:
            # What is still held comes back to others, who find that its owner lives: it costs nothing.
            with suppress(AftError):
                self._consumer.ack(self._held.pop_done())
            self.step_back()
        idle = self._slots.wait_idle(left()) and all(ended)
        self._pool.close(wait=idle)
        return idle

    # Woken by a message -----------------------------------------------------------------------------------------

    def _receive(self) -> float:
        consumer: Consumer | None = None
        try:
            if self._tools.abandoned.is_full:
                self.step_back()
                return PATIENCE
            consumer = self._open_consumer()
            consumer.ack(self._held.pop_done())
            # Slots are not held while waiting for messages: the timer may need them meanwhile.
            if free := self._slots.free(timeout=PATIENCE):
                # Not just as many as there are slots: with the next ones at hand, more of them are claimed at once.
                deliveries = consumer.receive(self._slots.size, PATIENCE)
                if len(deliveries) > free:
                    self._flowed_at = self._tools.clock.ticks()
                self._take_all(consumer, deliveries)
        except Unroutable:
            # The broker has lost its queues: wiped, or a new node. What was in them is the timer's.
            self.step_back()
            self._declare()
        except BrokerError:
            if self._consumer is consumer:
                raise  # it connects again by itself, and goes on with what it has begun
            # Otherwise the keeper has closed it meanwhile.
        except Exception:
            # What was not acknowledged comes back to whoever opens the queues next.
            self.step_back()
            raise
        return 0.0

    def _interrupt(self) -> None:
        """Let the receiver wait for no more messages."""
        consumer = self._consumer
        if consumer is not None:
            consumer.interrupt()

    def step_back(self) -> None:
        """Give back what was received and is not acknowledged, for others to take; any thread may say so."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _take_all(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        admitted = self._door.admit(deliveries)
        if self._is_flooded:
            # To claim what does not exist costs more than to see that it does not.
            before, admitted = len(admitted), self._door.sort_out(admitted)
            self._is_flooded = len(admitted) < before
        honest = {id(one.delivery) for one in admitted}
        consumer.ack([delivery for delivery in deliveries if id(delivery) not in honest])  # they need no slot
        while admitted and not self._tools.draining.is_set() and not self._tools.abandoned.is_full:
            taken = self._slots.take(limit=len(admitted), timeout=PATIENCE, gather=GATHER)
            now_on, admitted = admitted[:taken], admitted[taken:]
            self._take(consumer, now_on, taken)
            consumer.ack(self._held.pop_done())

    def _take(self, consumer: Consumer, admitted: Sequence[Admitted], slots: int) -> None:
        """Claim what the messages wake. From then on the runs are ours: whatever fails after, they are executed."""
        claimed: list[RunRow] = []
        try:
            wakes = [(one.message.run, one.message.wake) for one in admitted]
            claimed = self._tools.holdings.claim(lambda expect: self._claim(wakes, expect))
            held = self._held.hold(claimed, admitted)
        finally:
            self._slots.give(slots - len(claimed))
            self._execute(claimed, {one.message.run: one.message.wake for one in admitted})
        taken = {row.id for row in claimed}
        ignored = [one for one in admitted if one.message.run not in taken]
        self._takeover.suspect(one.message.run for one in ignored if one.delivery.redelivered)
        self._is_flooded = self._door.turn_away(ignored, self._why_ignored) or self._is_flooded
        consumer.ack([one.delivery for one in admitted if id(one.delivery) not in held])

    def _claim(self, wakes: list[tuple[RunId, str]], expect: Expect) -> list[RunRow]:
        if not wakes:
            return []
        if not self._leased():
            raise LeaseOver("the lease ran out while messages were awaited")
        expect({run for run, _ in wakes})
        claimed = self._claim_now(wakes)
        if not claimed and not self._tools.lease.check():
            raise LeaseOver("the lease was ended by somebody else")
        return claimed

    def _claim_now(self, wakes: list[tuple[RunId, str]], *, timed: bool = False) -> list[RunRow]:
        tools = self._tools
        try:
            return claiming.claim_now(tools.store, tools.namespace, tools.lease.worker, wakes, self._known, timed=timed)
        except Exception as error:
            if not (isinstance(error, StoreError) and error.locked) and not is_about_rows(error):
                raise
            # Somebody has locked one of them, and may be paused, or the database refuses to change it: the others do
            # not wait for that. It is the timer's.
            if len(wakes) == 1:
                logger.warning("run cannot be claimed: run=%s why=%s", wakes[0][0], error)
                return []
        half = len(wakes) // 2
        return [*self._claim_now(wakes[:half], timed=timed), *self._claim_now(wakes[half:], timed=timed)]

    def _why_ignored(self, row: Row[Any], message: Message) -> str:
        if row.wake_id != message.wake:
            return "stale: the run has gone on"
        if (row.flow, row.version) not in self._known:
            return f"flow {row.flow}@{row.version} is not registered here; left for a worker that has it"
        return "it is not due, must be executed alone, or somebody has locked it: it is left to the timer"

    def _leased(self) -> bool:
        return is_leased(self._tools.lease)

    def _open_consumer(self) -> Consumer:
        consumer = self._consumer
        if consumer is None:
            namespace = self._tools.namespace
            queues = [names.resume(namespace), names.compensate(namespace)]
            # For each queue: as many as are held while they are executed, and as many again that wait for a slot.
            consumer = self._consumer = self._broker.consumer(
                queues,
                prefetch=2 * self._slots.size * len(queues),
                keys={names.key(flow, version) for flow, version in self._known},
            )
        return consumer

    # Woken by time ----------------------------------------------------------------------------------------------

    def _take_due(self) -> float:
        if self._tools.abandoned.is_full:
            return PATIENCE
        due = self._look_due(patient := self._messages_flow())
        is_due = due.next is not None and due.next <= 0
        if not due.urgent and not is_due:
            # Bounded by our patience: a nearer one may turn up meanwhile.
            return PATIENCE if due.next is None else min(PATIENCE, due.next)
        self._turn += 1
        by_age = is_due and self._turn % (TURNS_AHEAD + 1) == 0
        # Messages come in the order in which they were sent: what is urgent gets ahead of them here.
        urgent = due.urgent and not by_age
        free = self._slots.take(limit=100, timeout=PATIENCE, urgent=urgent)
        if not free:
            return 0.0
        claim = partial(self._claim_due, free, urgent=urgent, by_age=by_age, patient=patient and not urgent)
        return 0.0 if self._claim_and_execute(free, claim) else BEATEN

    def _take_undoable(self) -> float:
        """Take runs that are only to be undone, of flows that no live worker has; undoing needs compensators only."""
        undoable = find_undoable(self._tools, self._slots.size)
        self._undoable_alone = [one for one in undoable if one.alone]
        found = [one for one in undoable if not one.alone]
        if not found:
            return UNDO_PAUSE
        free = self._slots.take(limit=len(found), timeout=PATIENCE)
        if not free:
            return UNDO_PAUSE
        claimed = self._claim_and_execute(free, partial(claim_undoable, self._tools, found[:free]))
        return 0.0 if claimed else UNDO_PAUSE

    def _claim_and_execute(self, slots: int, claim: Callable[[Expect], list[RunRow]]) -> bool:
        """Execute what is claimed, each in one of the slots that were taken, and give the others back."""
        claimed: list[RunRow] = []
        try:
            claimed = self._tools.holdings.claim(claim)
        finally:
            self._slots.give(slots - len(claimed))
            self._execute(claimed, {})
        return bool(claimed)

    def _execute_alone(self, slots: int) -> None:
        """Execute a due run that must be alone, in all the slots; give them back if there is none."""
        claimed: list[RunRow] = []
        try:
            if not self._tools.draining.is_set():
                claimed = self._tools.holdings.claim(self._claim_alone)
        finally:
            if not claimed:
                self._slots.give(slots)
            self._execute(claimed, {}, slots=slots)

    def _is_due_alone(self) -> bool:
        return bool(self._undoable_alone) or self._look_due().alone

    def _claim_alone(self, expect: Expect) -> list[RunRow]:
        found, self._undoable_alone = self._undoable_alone[:1], []
        claimed = claim_undoable(self._tools, found, expect, alone=True) if found else []
        return claimed or self._claim_due(1, expect, alone=True)

    def _look_due(self, patient: bool = False) -> Due:
        return claiming.look_due(self._tools.store, self._tools.namespace, self._known, patient=patient)

    def _messages_flow(self) -> bool:
        """Whether there are more messages than we can work off: then a message that did not come is only late."""
        return self._tools.clock.ticks() - self._flowed_at < FLOW

    def _claim_due(self, limit: int, expect: Expect, *, alone: bool = False, **how: bool) -> list[RunRow]:
        tools, wanted = self._tools, {"alone": alone, **how}
        try:
            with tools.store.write() as connection:
                due = claiming.find_due(connection, tools.namespace, self._known, limit, **wanted)
                expect({run for run, _ in due})
                if not due:
                    return []
                return claiming.claim(connection, tools.namespace, tools.lease.worker, due, self._known, alone=alone)
        except Exception as error:
            if alone or not is_about_rows(error):
                raise
        # The database refuses to change one of them, which stays the first that is due: others are claimed beside it.
        with tools.store.read() as connection:
            due = claiming.find_due(connection, tools.namespace, self._known, claiming.WINDOW, **wanted)
        claimed: list[RunRow] = []
        for wake in due:
            if len(claimed) < limit:
                expect({wake[0]})
                claimed += self._claim_now([wake], timed=True)
        return claimed

    # Executing --------------------------------------------------------------------------------------------------

    def _execute(self, claimed: list[RunRow], wakes: dict[RunId, str], slots: int = 1) -> None:
        recorded = self._load(claimed)
        for row in claimed:
            # Told before it is executed: its end must not be told first.
            wake = wakes.get(row.id, "due")
            self._tools.telemetry.emit(RunClaimed(run=row.id, flow=row.flow, epoch=row.epoch, wake=wake))
            with self._lock:
                self._executing[row.id, row.epoch] = row.flow
            try:
                self._pool.submit(partial(self._run, row, recorded.get(row.id), slots, wakes.get(row.id)))
            except RuntimeError:
                # No thread can be started. Nobody executes it: it is an orphan, and rescued as one.
                logger.exception("run cannot be executed: run=%s", row.id)
                self._forget(row)
                self._tools.holdings.let_go(row.id)
                self._slots.give(slots)

    @property
    def executing(self) -> list[tuple[RunId, str]]:
        """The runs that are being executed here, each with its flow, in the order in which they were claimed."""
        with self._lock:
            return [(run_id, flow) for (run_id, _), flow in self._executing.items()]

    def _forget(self, row: RunRow) -> None:
        with self._lock:
            self._executing.pop((row.id, row.epoch), None)

    def _load(self, claimed: list[RunRow]) -> dict[RunId, Recorded]:
        try:
            return loading.load(self._tools.store, claimed)
        except Exception as error:
            # They are ours whatever happens here: each is read by its own thread, which waits for the database.
            logger.debug("runs are read one by one: %r", error)
            return {}

    def _run(self, row: RunRow, recorded: Recorded | None, slots: int, wake: str | None) -> None:
        try:
            self._runner.run(row, recorded=recorded, wake=wake)
        except BaseException as error:
            # The edge of a thread. A defect of aft must not take the slot with it; the run is rescued as an orphan.
            logger.exception("run failed inside aft: run=%s", row.id)
            self._tools.telemetry.emit(ServiceFailed(service="runner", why=repr(error)))
        finally:
            self._forget(row)
            self._tools.holdings.let_go(row.id)
            self._held.let_go(row)
            self._slots.give(slots)
