"""The worker: takes runs that shall go on, and executes them on its threads.

Two ways lead a run here: a message on *resume* or *compensate*, and its time having come (the timer's waits, and every
message that was lost). Whichever is first has it; the other finds that it awaits no such wake.

Who may run at the same time: any number of workers, in any number of processes. A crash before the claim has committed
leaves the message unacknowledged: it comes again. After it, the run names this worker, which is dead: the message that
is still held comes back to another worker, which takes over (``recovery.takeover``).

A delivery is held while its run is executed, for some seconds at the most: until then the broker is the quickest to
tell of our death, and after that its own patience must not end, which would have the run executed twice.

A run on which workers have died again and again is taken by the timer only, and executed with no other beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import Row, func, select, tuple_

from aft import names
from aft.brokers.base import Broker, Consumer, Delivery
from aft.envelope import Kind, Message
from aft.errors import Unroutable
from aft.flows.held import Held
from aft.flows.runner import Runner
from aft.flows.slots import Slots
from aft.flows.tools import Tools
from aft.ids import RunId
from aft.recovery.door import Admitted, Door
from aft.recovery.service import Service
from aft.recovery.takeover import Takeover
from aft.runs import owner
from aft.runs.holdings import Expect
from aft.runs.owner import LeaseOver
from aft.runs.rows import RunRow
from aft.store.moments import now
from aft.store.tables import runs
from aft.telemetry import RunClaimed, ServiceFailed, logger

#: Seconds between two looks at a lease that is over: nothing is claimed that could not be executed.
UNLEASED = 0.1
#: Seconds that one look at an empty queue, or at a full house, takes at the most.
PATIENCE = 0.5
#: Seconds for which the house is emptied for a run that must be alone; then the others go on, and it is tried again.
ALONE_PATIENCE = 10.0


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
        self._services = [
            Service("receiver", self._receive, tools.telemetry),
            Service("timer", self._take_due, tools.telemetry),
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
        for service in self._services:
            service.join()
        if self._consumer is not None:
            # What is still held comes back to others, who find that its owner lives: it costs nothing.
            self._consumer.ack(self._held.pop_done())
            self._drop_consumer()
        idle = self._slots.wait_idle(timeout)
        self._pool.shutdown(wait=idle, cancel_futures=False)
        return idle

    # Woken by a message -----------------------------------------------------------------------------------------

    def _receive(self) -> float:
        if not self._leased():
            return UNLEASED
        try:
            consumer = self._open_consumer()
            consumer.ack(self._held.pop_done())
            # Slots are not held while waiting for messages: the timer may need them meanwhile.
            if free := self._slots.free(timeout=PATIENCE):
                self._take_all(consumer, consumer.receive(free, PATIENCE))
        except Unroutable:
            # The broker has lost its queues: wiped, or a new node. What was in them is the timer's.
            self._drop_consumer()
            self._declare()
        except Exception:
            # What was not acknowledged comes back to whoever opens the queues next.
            self._drop_consumer()
            raise
        return 0.0

    def _take_all(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        while deliveries and not self._tools.draining.is_set():
            taken = self._slots.take(limit=len(deliveries), timeout=PATIENCE)
            now_on, deliveries = deliveries[:taken], deliveries[taken:]
            self._take(consumer, now_on, taken)

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
        with self._tools.store.write() as connection:
            return owner.claim(connection, self._tools.namespace, self._tools.lease.worker, wakes, self._known)

    def _why_ignored(self, row: Row[Any], message: Message) -> str:
        if row.wake_id != message.wake:
            return "stale: the run has gone on"
        if (row.flow, row.version) not in self._known:
            return f"flow {row.flow}@{row.version} is not registered here; left for a worker that has it"
        return "it must be executed alone; left for the timer"

    def _leased(self) -> bool:
        return self._tools.lease.holds(self._tools.lease.worker)

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            namespace = self._tools.namespace
            queues = [names.resume(namespace), names.compensate(namespace)]
            # For each queue: as many as are held while they are executed, and as many again that wait for a slot.
            self._consumer = self._broker.consumer(queues, prefetch=2 * self._slots.size * len(queues))
        return self._consumer

    def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # Woken by time ----------------------------------------------------------------------------------------------

    def _take_due(self) -> float:
        if not self._leased():
            return UNLEASED
        pause = self._until_next_due()
        if pause > 0:
            return pause
        free = self._slots.take(limit=100, timeout=PATIENCE)
        if not free or self._take_some(free):
            return 0.0
        return self._take_one_alone()

    def _take_some(self, free: int) -> int:
        """Claim and execute due runs on these slots; tells how many."""
        claimed: list[RunRow] = []
        try:
            claimed = self._tools.holdings.claim(lambda expect: self._claim_due(free, expect, alone=False))
        finally:
            self._slots.give(free - len(claimed))
            self._execute(claimed, {})
        return len(claimed)

    def _take_one_alone(self) -> float:
        """Empty the house, and execute a due run in it that must be alone, if there is one."""
        with self._tools.store.read() as connection:
            if not owner.find_due(connection, self._tools.namespace, self._known, 1, alone=True):
                return PATIENCE  # what is due has just been taken by somebody else
        self._tools.making_room.set()
        empty = self._slots.take_all(ALONE_PATIENCE)
        self._tools.making_room.clear()
        if not empty:
            return ALONE_PATIENCE
        claimed: list[RunRow] = []
        try:
            claimed = self._tools.holdings.claim(lambda expect: self._claim_due(1, expect, alone=True))
        finally:
            if not claimed:
                self._slots.give(self._slots.size)
            self._execute(claimed, {}, slots=self._slots.size)
        return 0.0

    def _claim_due(self, limit: int, expect: Expect, *, alone: bool) -> list[RunRow]:
        tools = self._tools
        with tools.store.write() as connection:
            due = owner.find_due(connection, tools.namespace, self._known, limit, alone=alone)
            expect({run for run, _ in due})
            if not due:
                return []
            return owner.claim(connection, tools.namespace, tools.lease.worker, due, self._known, alone=alone)

    def _until_next_due(self) -> float:
        """Seconds until the next run is due, bounded by our patience: a nearer one may turn up meanwhile."""
        statement = select(func.min(runs.c.sweep_at), now()).where(
            runs.c.namespace == self._tools.namespace,
            runs.c.sweep_at.is_not(None),
            runs.c.worker_id.is_(None),
            runs.c.wake_id.is_not(None),
            tuple_(runs.c.flow, runs.c.version).in_(self._known),
        )
        with self._tools.store.read() as connection:
            due, here = connection.execute(statement).one()
        return PATIENCE if due is None else float(min(PATIENCE, max(0.0, (due - here).total_seconds())))

    # Executing --------------------------------------------------------------------------------------------------

    def _execute(self, claimed: list[RunRow], wakes: dict[RunId, str], slots: int = 1) -> None:
        for row in claimed:
            self._pool.submit(self._run, row, slots)
            wake = wakes.get(row.id, "due")
            self._tools.telemetry.emit(RunClaimed(run=row.id, flow=row.flow, epoch=row.epoch, wake=wake))

    def _run(self, row: RunRow, slots: int) -> None:
        abandoned: list[threading.Thread] = []
        try:
            abandoned = self._runner.run(row)
        except Exception as error:
            # The edge of a thread. A defect of aft must not take the slot with it; the run is rescued as an orphan.
            logger.exception("run failed inside aft: run=%s", row.id)
            self._tools.telemetry.emit(ServiceFailed(service="runner", why=repr(error)))
        finally:
            self._tools.holdings.let_go(row.id)
            self._held.let_go(row)
            for thread in abandoned:
                thread.join()  # an attempt that was given up keeps its slot until it returns
            self._slots.give(slots)
