"""Buffers late effects that could not be stored while the database was unreachable; retried after each heartbeat.

No thread waits for that: the one that had the effect goes on, or ends. The buffer holds no more effects than attempts
were under way when the outage began, as nothing new is begun once the lease is expired. A crash loses the buffer.
"""

from __future__ import annotations

import threading

from aft.errors import StoreError
from aft.ids import new_id
from aft.runs.records import late_effects
from aft.runs.records.late_effects import LateEffect
from aft.store import Store
from aft.telemetry import logger


class LateEffectBuffer:
    """Stores late effects, now or as soon as the database is back. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[LateEffect, bool]] = {}

    def store(self, store: Store, effect: LateEffect, *, unless_recorded: bool) -> bool:
        """Store an effect, see ``late_effects.write``; False: the database is unreachable, it is buffered.

        Raises StoreError if it can never be stored.
        """
        effect_id = new_id()
        try:
            _write(store, effect_id, effect, unless_recorded)
        except StoreError as error:
            if not error.transient:
                raise
            with self._lock:
                self._waiting[effect_id] = effect, unless_recorded
            return False
        return True

    def store_buffered(self, store: Store) -> list[LateEffect]:
        """Store the buffered effects and return them. Raises StoreError while the database is unreachable."""
        with self._lock:
            waiting = list(self._waiting.items())
        kept = []
        for effect_id, (effect, unless_recorded) in waiting:
            try:
                _write(store, effect_id, effect, unless_recorded)
                kept.append(effect)
            except StoreError as error:
                if error.transient:
                    raise
                # It must not prevent the others from being stored, nor the rest of the work after a heartbeat.
                logger.error("a late effect cannot be kept: key=%s why=%s", effect.key, error)
            with self._lock:
                self._waiting.pop(effect_id, None)
        return kept


def _write(store: Store, effect_id: str, effect: LateEffect, unless_recorded: bool) -> None:
    with store.write() as connection:
        late_effects.write(connection, effect_id, effect, unless_recorded=unless_recorded)
