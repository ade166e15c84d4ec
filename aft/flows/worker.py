"""The worker: takes runs that shall go on, and executes them on its threads.

Three ways lead a run here: a message on *resume* or *compensate*, its time having come (the timer's waits, and every
message that was lost), and nothing else. Whichever is first has it; the others find that it awaits no such wake.

Who may run at the same time: any number of workers, in any number of processes. A crash before the claim has committed
leaves the message unacknowledged: it comes again. After it, the run names this worker, whose lease runs out. Between
claim and acknowledgement the message comes again, too, and is stale.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select, tuple_

from aft import names
from aft.brokers.base import Broker, Consumer, Delivery
from aft.flows.runner import Runner
from aft.flows.slots import Slots
from aft.flows.tools import Tools
from aft.ids import RunId
from aft.recovery import door
from aft.recovery.service import Service
from aft.runs import owner
from aft.runs.holdings import Expect
from aft.runs.owner import LeaseOver
from aft.runs.rows import RunRow
from aft.store.moments import now
from aft.store.tables import runs
from aft.telemetry import RunClaimed, ServiceFailed, WakeIgnored, logger

#: Seconds between two looks at a lease that is over: nothing is claimed that could not be executed.
UNLEASED = 0.1
#: Seconds that one look at an empty queue, or at a full house, takes at the most.
PATIENCE = 0.5


class Worker:
    """Executes up to ``concurrency`` runs at a time. Emits: RunClaimed, WakeIgnored, MessageQuarantined."""

    def __init__(self, tools: Tools, broker: Broker, concurrency: int) -> None:
        self._tools = tools
        self._broker = broker
        self._runner = Runner(tools)
        self._known = tools.registry.known
        self._slots = Slots(concurrency)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="aft-run")
        self._consumer: Consumer | None = None
        self._services = [
            Service("receiver", self._receive, tools.telemetry),
            Service("timer", self._take_due, tools.telemetry),
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
            self._consumer.close()
            self._consumer = None
        idle = self._slots.wait_idle(timeout)
        self._pool.shutdown(wait=idle, cancel_futures=False)
        return idle

    # Woken by a message -----------------------------------------------------------------------------------------

    def _receive(self) -> float:
        if not self._leased():
            return UNLEASED
        # Slots are not held while waiting for messages: the timer may need them meanwhile.
        free = self._slots.free(timeout=PATIENCE)
        if not free:
            return 0.0
        try:
            consumer = self._open_consumer()
            deliveries = consumer.receive(free, PATIENCE)
            while deliveries and not self._tools.draining.is_set():
                taken = self._slots.take(limit=len(deliveries), timeout=PATIENCE)
                now_on, deliveries = deliveries[:taken], deliveries[taken:]
                self._take(consumer, now_on, taken)
        except Exception:
            # What was not acknowledged comes back to whoever opens the queues next.
            self._drop_consumer()
            raise
        return 0.0

    def _take(self, consumer: Consumer, deliveries: Sequence[Delivery], slots: int) -> None:
        """Claim what the messages wake. From then on the runs are ours: whatever fails after, they are executed."""
        claimed: list[RunRow] = []
        wakes: list[tuple[RunId, str]] = []
        try:
            messages = door.admit(self._tools.store, self._tools.telemetry, self._tools.namespace, deliveries)
            wakes = [(message.run, message.wake) for message in messages]
            claimed = self._tools.holdings.claim(lambda expect: self._claim(wakes, expect))
        finally:
            self._slots.give(slots - len(claimed))
            self._execute(claimed, dict(wakes))
        consumer.ack(deliveries)
        taken = {row.id for row in claimed}
        self._tell_ignored({run: wake for run, wake in wakes if run not in taken})

    def _claim(self, wakes: list[tuple[RunId, str]], expect: Expect) -> list[RunRow]:
        if not wakes:
            return []
        if not self._leased():
            raise LeaseOver("the lease ran out while messages were awaited")
        expect({run for run, _ in wakes})
        with self._tools.store.write() as connection:
            return owner.claim(connection, self._tools.lease.worker, wakes, self._known)

    def _tell_ignored(self, wakes: dict[RunId, str]) -> None:
        if not wakes:
            return
        with self._tools.store.read() as connection:
            found = {
                row.id: row
                for row in connection.execute(
                    select(runs.c.id, runs.c.flow, runs.c.version, runs.c.wake_id).where(runs.c.id.in_(list(wakes)))
                )
            }
        for run, wake in wakes.items():
            row = found.get(run)
            if row is None:
                why = "no such run"
            elif row.wake_id == wake and (row.flow, row.version) not in self._known:
                why = f"flow {row.flow}@{row.version} is not registered here; left for a worker that has it"
            else:
                why = "stale: the run has gone on"
            self._tools.telemetry.emit(WakeIgnored(run=run, wake=wake, why=why))

    def _leased(self) -> bool:
        return self._tools.lease.holds(self._tools.lease.worker)

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            namespace = self._tools.namespace
            queues = [names.resume(namespace), names.compensate(namespace)]
            self._consumer = self._broker.consumer(queues, prefetch=self._slots.size)
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
        claimed: list[RunRow] = []
        try:
            if free:
                claimed = self._tools.holdings.claim(lambda expect: self._claim_due(free, expect))
        finally:
            self._slots.give(free - len(claimed))
            self._execute(claimed, {})
        return 0.0

    def _claim_due(self, limit: int, expect: Expect) -> list[RunRow]:
        tools = self._tools
        with tools.store.write() as connection:
            due = owner.find_due(connection, tools.namespace, self._known, limit)
            expect({run for run, _ in due})
            return owner.claim(connection, tools.lease.worker, due, self._known) if due else []

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

    def _execute(self, claimed: list[RunRow], wakes: dict[RunId, str]) -> None:
        for row in claimed:
            self._pool.submit(self._run, row)
            wake = wakes.get(row.id, "due")
            self._tools.telemetry.emit(RunClaimed(run=row.id, flow=row.flow, epoch=row.epoch, wake=wake))

    def _run(self, row: RunRow) -> None:
        abandoned: list[threading.Thread] = []
        try:
            abandoned = self._runner.run(row)
        except Exception as error:
            # The edge of a thread. A defect of aft must not take the slot with it; the run is rescued as an orphan.
            logger.exception("run failed inside aft: run=%s", row.id)
            self._tools.telemetry.emit(ServiceFailed(service="runner", why=repr(error)))
        finally:
            self._tools.holdings.let_go(row.id)
            for thread in abandoned:
                thread.join()  # an attempt that was given up keeps its slot until it returns
            self._slots.give(1)
