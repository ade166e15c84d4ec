"""Work after each heartbeat: reports slow activities, asks rules about running attempts, rescues orphans.

An orphan is a run that this process owns but does not execute. Late effects are stored that could not be before.
"""

from __future__ import annotations

from aft.flows.session.dependencies import Dependencies
from aft.runs.ownership.rescue import rescue_orphans
from aft.telemetry import EffectLate


class HeartbeatTasks:
    """Runs the checks that follow each heartbeat of a worker. Emits: RunRescued, EffectLate."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    def run(self) -> None:
        """Run the tasks: reports, rules, orphans, late effects."""
        deps = self._deps
        deps.slow_activities.report_overdue()  # first, and without the database: it may be unreachable
        deps.rule_watch.check()
        self._rescue_orphans()
        self._buffer_late()

    def _buffer_late(self) -> None:
        deps = self._deps
        for effect in deps.late_buffer.store_buffered(deps.store):
            deps.telemetry.emit(
                EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, decision="kept")
            )

    def _rescue_orphans(self) -> None:
        deps = self._deps
        worker = deps.lease.worker
        with deps.store.read() as connection:
            orphans = deps.executing.orphans(connection, worker)
        if not orphans:
            return
        # Published by a relay: this is the heartbeat's thread, which must not wait for a broker.
        with deps.store.write() as connection:
            events = rescue_orphans(connection, deps.namespace, deps.clock.now(), worker, orphans)
        for event in events:
            deps.telemetry.emit(event)
