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

A run on which workers have died again and again is taken by a service of its own, which empties the house before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sqlalchemy import Row

from aft import names
from aft.brokers.base import Broker, Consumer, Delivery
from aft.envelope import Kind, Message
from aft.errors import AftError, BrokerError, StoreError, Unroutable
from aft.flows import loading
from aft.flows.held import Held
from aft.flows.loading import Recorded
from aft.flows.runner import Runner
from aft.flows.slots import Slots
from aft.flows.tools import Tools
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
from aft.telemetry import RunClaimed, ServiceFailed, logger

#: Seconds that one look at an empty queue, or at a full house, takes at the most.
PATIENCE = 0.5
#: Seconds to wait for more slots, where more messages are at hand than there are slots for.
GATHER = 0.005
#: Seconds for which messages that come faster than they are worked off are left to do what they are there for.
FLOW = 1.0
#: Seconds to wait when what is due was taken by somebody else, or is not for the timer.
BEATEN = 0.05
#: Seconds for which the house is emptied for a run that must be alone, at first and at the most; then the others go on,
#: and it is tried again.
ALONE_PATIENCE, MOST_PATIENCE = 10.0, 60.0
#: Seconds between two tries to empty the house that fail, at the most.
LONGEST_REFUSED = 300.0


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
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="aft-run")
        self._door = Door(tools.namespace, tools.store, tools.telemetry, (Kind.RESUME, Kind.COMPENSATE))
        self._takeover = takeover
        self._declare = declare
        self._consumer: Consumer | None = None
        self._held = Held(tools.clock)
        self._refused = 0
        #: When there were last more messages than free slots.
        self._flowed_at = float("-inf")
        self._services = [
            Service("receiver", while_leased(tools.lease, self._receive), tools.telemetry),
            Service("timer", while_leased(tools.lease, self._take_due), tools.telemetry),
            Service("solitary", self._take_alone, tools.telemetry),
            Service("takeover", takeover.settle, tools.telemetry),
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
        self._pool.shutdown(wait=idle, cancel_futures=False)
        return idle

    # Woken by a message -----------------------------------------------------------------------------------------

    def _receive(self) -> float:
        consumer: Consumer | None = None
        try:
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

    def step_back(self) -> None:
        """Give back what was received and is not acknowledged, for others to take; any thread may say so."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _take_all(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        while deliveries and not self._tools.draining.is_set():
            taken = self._slots.take(limit=len(deliveries), timeout=PATIENCE, gather=GATHER)
            now_on, deliveries = deliveries[:taken], deliveries[taken:]
            self._take(consumer, now_on, taken)
            consumer.ack(self._held.pop_done())

    def _take(self, consumer: Consumer, deliveries: Sequence[Delivery], slots: int) -> None:
        """Claim what the messages wake. From then on the runs are ours: whatever fails after, they are executed."""
        claimed: list[RunRow] = []
        admitted: list[Admitted] = []
        try:
            admitted = self._door.admit(deliveries)
            wakes = [(one.message.run, one.message.wake) for one in admitted]
            claimed = self._tools.holdings.claim(lambda expect: self._claim(wakes, expect))
            held = self._held.hold(claimed, admitted)
        finally:
            self._slots.give(slots - len(claimed))
            self._execute(claimed, {one.message.run: one.message.wake for one in admitted})
        taken = {row.id for row in claimed}
        ignored = [one for one in admitted if one.message.run not in taken]
        self._takeover.suspect(one.message.run for one in ignored if one.delivery.redelivered)
        self._door.turn_away(ignored, self._why_ignored)
        consumer.ack([delivery for delivery in deliveries if id(delivery) not in held])

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

    def _claim_now(self, wakes: list[tuple[RunId, str]]) -> list[RunRow]:
        tools = self._tools
        try:
            return claiming.claim_now(tools.store, tools.namespace, tools.lease.worker, wakes, self._known)
        except StoreError as error:
            if not error.locked:
                raise
        # Somebody has locked one of them, and may be paused: the others do not wait for him. That one is the timer's.
        if len(wakes) == 1:
            return []
        half = len(wakes) // 2
        return [*self._claim_now(wakes[:half]), *self._claim_now(wakes[half:])]

    def _why_ignored(self, row: Row[Any], message: Message) -> str:
        if row.wake_id != message.wake:
            return "stale: the run has gone on"
        if (row.flow, row.version) not in self._known:
            return f"flow {row.flow}@{row.version} is not registered here; left for a worker that has it"
        return "it must be executed alone, or somebody has locked it: it is left to the timer"

    def _leased(self) -> bool:
        return is_leased(self._tools.lease)

    def _open_consumer(self) -> Consumer:
        consumer = self._consumer
        if consumer is None:
            namespace = self._tools.namespace
            queues = [names.resume(namespace), names.compensate(namespace)]
            # For each queue: as many as are held while they are executed, and as many again that wait for a slot.
            consumer = self._consumer = self._broker.consumer(queues, prefetch=2 * self._slots.size * len(queues))
        return consumer

    # Woken by time ----------------------------------------------------------------------------------------------

    def _take_due(self) -> float:
        due = self._look_due(patient := self._messages_flow())
        urgent = due.urgent
        if not urgent and (due.next is None or due.next > 0):
            # Bounded by our patience: a nearer one may turn up meanwhile.
            return PATIENCE if due.next is None else min(PATIENCE, due.next)
        # Messages come in the order in which they were sent: what is urgent gets ahead of them here.
        free = self._slots.take(limit=100, timeout=PATIENCE, urgent=urgent)
        claimed: list[RunRow] = []
        try:
            if free:
                claimed = self._tools.holdings.claim(
                    lambda expect: self._claim_due(free, expect, urgent=urgent, patient=patient and not urgent)
                )
        finally:
            self._slots.give(free - len(claimed))
            self._execute(claimed, {})
        return 0.0 if claimed or not free else BEATEN

    def _take_alone(self) -> float:
        """Empty the house, and execute a due run in it that must be alone, if there is one."""
        if not self._leased() or not self._is_one_due_alone():
            return PATIENCE
        slots = self._make_room()
        if not slots:
            return self._put_off()
        self._refused = 0
        claimed: list[RunRow] = []
        try:
            if not self._tools.draining.is_set():
                claimed = self._tools.holdings.claim(lambda expect: self._claim_due(1, expect, alone=True))
        finally:
            if not claimed:
                self._slots.give(slots)
            self._execute(claimed, {}, slots=slots)
        return 0.0

    def _make_room(self) -> int:
        """Let runs go at their next step until every slot is free, and take all; 0: not in time, or it is gone."""
        deadline = self._tools.clock.ticks() + min(MOST_PATIENCE, self._pause())
        self._tools.making_room.set()
        try:
            while not (slots := self._slots.take_all(PATIENCE)):
                if self._tools.clock.ticks() >= deadline or self._tools.draining.is_set():
                    return 0
                if not self._is_one_due_alone():
                    return 0  # somebody else was quicker
            return slots
        finally:
            self._tools.making_room.clear()

    def _put_off(self) -> float:
        """Say when it is tried again to make room: later each time, unless nobody needed it any more."""
        if self._tools.draining.is_set() or not self._is_one_due_alone():
            return PATIENCE
        self._refused += 1
        logger.warning("no room is made for a run that must be alone: something here takes long; tried again later")
        return self._pause()

    def _pause(self) -> float:
        """Seconds after which it is tried again, and, up to a bound, for which: somebody's steps may all take long."""
        return min(LONGEST_REFUSED, ALONE_PATIENCE * 2.0**self._refused)

    def _is_one_due_alone(self) -> bool:
        return self._look_due().alone

    def _look_due(self, patient: bool = False) -> Due:
        return claiming.look_due(self._tools.store, self._tools.namespace, self._known, patient=patient)

    def _messages_flow(self) -> bool:
        """Whether there are more messages than we can work off: then a message that did not come is only late."""
        return self._tools.clock.ticks() - self._flowed_at < FLOW

    def _claim_due(
        self, limit: int, expect: Expect, *, alone: bool = False, urgent: bool = False, patient: bool = False
    ) -> list[RunRow]:
        tools = self._tools
        with tools.store.write() as connection:
            due = claiming.find_due(
                connection, tools.namespace, self._known, limit, alone=alone, urgent=urgent, patient=patient
            )
            expect({run for run, _ in due})
            if not due:
                return []
            return claiming.claim(connection, tools.namespace, tools.lease.worker, due, self._known, alone=alone)

    # Executing --------------------------------------------------------------------------------------------------

    def _execute(self, claimed: list[RunRow], wakes: dict[RunId, str], slots: int = 1) -> None:
        recorded = self._load(claimed)
        for row in claimed:
            try:
                self._pool.submit(self._run, row, recorded.get(row.id), slots, wakes.get(row.id))
            except RuntimeError:
                # No thread can be started. Nobody executes it: it is an orphan, and rescued as one.
                logger.exception("run cannot be executed: run=%s", row.id)
                self._tools.holdings.let_go(row.id)
                self._slots.give(slots)
                continue
            wake = wakes.get(row.id, "due")
            self._tools.telemetry.emit(RunClaimed(run=row.id, flow=row.flow, epoch=row.epoch, wake=wake))

    def _load(self, claimed: list[RunRow]) -> dict[RunId, Recorded]:
        try:
            return loading.load(self._tools.store, claimed)
        except Exception as error:
            # They are ours whatever happens here: each is read by its own thread, which waits for the database.
            logger.debug("runs are read one by one: %r", error)
            return {}

    def _run(self, row: RunRow, recorded: Recorded | None, slots: int, wake: str | None) -> None:
        abandoned: list[threading.Thread] = []
        try:
            abandoned = self._runner.run(row, recorded=recorded, wake=wake)
        except Exception as error:
            # The edge of a thread. A defect of aft must not take the slot with it; the run is rescued as an orphan.
            logger.exception("run failed inside aft: run=%s", row.id)
            self._tools.telemetry.emit(ServiceFailed(service="runner", why=repr(error)))
        finally:
            self._tools.holdings.let_go(row.id)
            self._held.let_go(row)
            self._outlast(abandoned)
            self._slots.give(slots)

    def _outlast(self, abandoned: list[threading.Thread]) -> None:
        """An attempt that was given up keeps its slot until it returns; but it keeps nobody from being alone."""
        if abandoned:
            self._slots.abandon(1)
            for thread in abandoned:
                thread.join()
            self._slots.abandon(-1)
