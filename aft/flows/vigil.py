"""Watching over attempts while they last: does what the rules say of them still hold?

Whoever executes an activity that there are such rules for begins and ends here; ``look`` is called after each heartbeat
and asks. One that is found violated is given up, as after its time limit: what it does later is a late effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aft.rules.asking import RuleChoice
from aft.telemetry import logger


@dataclass(frozen=True, slots=True, eq=False)
class AttemptWatch:
    """One attempt: what is asked about it, and what gives it up."""

    ask: Callable[[], RuleChoice | None]
    give_up: Callable[[RuleChoice], None]


class Vigil:
    """The attempts of this process that are watched. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[AttemptWatch] = set()
        self._looking = False

    @contextmanager
    def over(self, watch: AttemptWatch) -> Iterator[None]:
        """Watch over an attempt while this block lasts."""
        with self._lock:
            self._watched.add(watch)
        try:
            yield
        finally:
            with self._lock:
                self._watched.discard(watch)

    def look(self) -> None:
        """Let each be asked about, on a thread of its own: whoever calls this must not wait for rules."""
        with self._lock:
            if not self._watched or self._looking:
                return
            self._looking = True
        try:
            threading.Thread(target=self._look, name="aft-vigil", daemon=True).start()
        except RuntimeError:
            # There are too many threads just now: the heartbeat goes on, and the next one looks.
            with self._lock:
                self._looking = False

    def _look(self) -> None:
        with self._lock:
            running = list(self._watched)
        for watch in running:
            try:
                if (decision := watch.ask()) is not None:
                    watch.give_up(decision)
            except BaseException:  # the edge of a thread
                logger.warning("an attempt could not be watched over", exc_info=True)
        with self._lock:
            self._looking = False
