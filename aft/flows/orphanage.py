"""After each heartbeat: runs that this process owns and does not execute are given to somebody who will.

And effects are kept that could not be before.
"""

from __future__ import annotations

from aft.flows.tools import Tools
from aft.runs.rescue import rescue_orphans
from aft.telemetry import EffectLate


class Orphanage:
    """Finds the orphans of a living worker. Emits: RunRescued, EffectLate."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def collect(self) -> None:
        """Rescue what is owned but not executed here (see ``runs.holdings``), and keep late effects (``belated``)."""
        tools = self._tools
        tools.attempts.look()  # first, and without the database: it may be away
        tools.vigil.look()
        self._rescue_orphans()
        self._keep_belated()

    def _keep_belated(self) -> None:
        tools = self._tools
        for effect in tools.belated.keep_waiting(tools.store):
            tools.telemetry.emit(EffectLate(run=effect.run_id, path=effect.path, activity=effect.activity, fate="kept"))

    def _rescue_orphans(self) -> None:
        tools = self._tools
        worker = tools.lease.worker
        with tools.store.read() as connection:
            orphans = tools.holdings.orphans(connection, worker)
        if not orphans:
            return
        # Published by a relay: this is the heartbeat's thread, which must not wait for a broker.
        with tools.store.write() as connection:
            events = rescue_orphans(connection, tools.namespace, tools.clock.now(), worker, orphans)
        for event in events:
            tools.telemetry.emit(event)
