"""After each heartbeat: runs that this process owns and does not execute are given to somebody who will."""

from __future__ import annotations

from aft.flows.tools import Tools
from aft.runs.rescue import rescue_orphans


class Orphanage:
    """Finds the orphans of a living worker. Emits: RunRescued."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def collect(self) -> None:
        """Rescue what is owned but not executed here; see ``runs.holdings`` for how that comes about."""
        tools = self._tools
        tools.attempts.look()  # first, and without the database: it may be away
        tools.vigil.look()
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
