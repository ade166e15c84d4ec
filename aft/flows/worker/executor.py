"""Executes claimed runs on the worker's threads, and gives their slots back.

Each run is executed on a thread of its own; the worker's services start them, and the dispatcher process reads which
are being executed. A crash leaves runs that name a dead worker: they are rescued.
"""

from __future__ import annotations

import threading
from functools import partial

from aft.flows.replay.runner import Runner
from aft.flows.runtime.threads import DaemonPool
from aft.flows.session import run_records
from aft.flows.session.dependencies import Dependencies
from aft.flows.session.run_records import RunRecords
from aft.flows.worker.held_deliveries import HeldDeliveries
from aft.flows.worker.slots import Slots
from aft.ids import RunId
from aft.runs.run_rows import RunRow
from aft.telemetry import RunClaimed, ServiceFailed, logger


class RunExecutor:
    """Executes runs in slots that were taken for them. Thread-safe."""

    def __init__(self, deps: Dependencies, slots: Slots, held: HeldDeliveries) -> None:
        self._deps = deps
        self._slots = slots
        self._held = held
        self._runner = Runner(deps)
        self._pool = DaemonPool(slots.size, "aft-run")
        self._lock = threading.Lock()
        #: The flows of runs that are being executed, by run and epoch: one may be claimed again before its thread ends.
        self._executing: dict[tuple[RunId, int], str] = {}

    def close(self, *, wait: bool) -> None:
        """End the threads after their current runs; with ``wait`` return when they have ended."""
        self._pool.close(wait=wait)

    def execute(self, claimed: list[RunRow], wakes: dict[RunId, str], slots: int = 1) -> None:
        """Execute claimed runs on threads; ``wakes`` names what woke them, and each gives back ``slots`` at its end.

        Emits: RunClaimed.
        """
        recorded = self._load(claimed)
        for row in claimed:
            # Emitted before it is executed: its end must not be emitted first.
            wake = wakes.get(row.id, "due")
            self._deps.telemetry.emit(RunClaimed(run=row.id, flow=row.flow, epoch=row.epoch, wake=wake))
            with self._lock:
                self._executing[row.id, row.epoch] = row.flow
            try:
                self._pool.submit(partial(self._run, row, recorded.get(row.id), slots, wakes.get(row.id)))
            except RuntimeError:
                # No thread can be started, so the run is not executed: it is rescued as an orphan.
                logger.exception("run cannot be executed: run=%s", row.id)
                self._forget(row)
                self._deps.executing.unregister(row.id)
                self._slots.release(slots)

    @property
    def executing(self) -> list[tuple[RunId, str]]:
        """The runs that are being executed here, each with its flow, in the order in which they were claimed."""
        with self._lock:
            return [(run_id, flow) for (run_id, _), flow in self._executing.items()]

    def _forget(self, row: RunRow) -> None:
        with self._lock:
            self._executing.pop((row.id, row.epoch), None)

    def _load(self, claimed: list[RunRow]) -> dict[RunId, RunRecords]:
        try:
            return run_records.load(self._deps.store, claimed, self._deps.clock)
        except Exception as error:
            # They are ours whatever happens here: each is read by its own thread, which waits for the database.
            logger.debug("runs are read one by one: %r", error)
            return {}

    def _run(self, row: RunRow, recorded: RunRecords | None, slots: int, wake: str | None) -> None:
        try:
            self._runner.run(row, recorded=recorded, wake=wake)
        except BaseException as error:
            # The edge of a thread. A defect of aft must not take the slot with it; the run is rescued as an orphan.
            logger.exception("run failed inside aft: run=%s", row.id)
            self._deps.telemetry.emit(ServiceFailed(service="runner", why=repr(error)))
        finally:
            self._forget(row)
            self._deps.executing.unregister(row.id)
            self._held.mark_done(row)
            self._slots.release(slots)
