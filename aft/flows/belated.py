"""Late effects that could not be kept, because the database was away: tried again after each heartbeat that is heard.

Nobody waits for that: the thread that had the effect goes on, or ends. There are no more of them than attempts were
under way when the database went, as nothing new is begun once the lease is over. They live as long as this process.
"""

from __future__ import annotations

import threading

from aft.errors import StoreError
from aft.ids import new_id
from aft.runs import late
from aft.runs.late import LateEffect
from aft.store import Store
from aft.telemetry import logger


class Belated:
    """Keeps late effects, now or as soon as that can be done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[LateEffect, bool]] = {}

    def keep(self, store: Store, effect: LateEffect, *, unless_recorded: bool) -> bool:
        """Write an effect, see ``late.write``; False: the database is away, it waits.

        Raises StoreError if it can never be written.
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

    def keep_waiting(self, store: Store) -> list[LateEffect]:
        """Write those that wait; returns which. Raises StoreError while the database is away."""
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
                # It keeps none of the others from being written, nor what comes after a heartbeat.
                logger.error("a late effect cannot be kept: key=%s why=%s", effect.key, error)
            with self._lock:
                self._waiting.pop(effect_id, None)
        return kept


def _write(store: Store, effect_id: str, effect: LateEffect, unless_recorded: bool) -> None:
    with store.write() as connection:
        late.write(connection, effect_id, effect, unless_recorded=unless_recorded)
