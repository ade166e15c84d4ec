"""Asks the rules about attempts that are under way, and gives up those that violate them.

An activity with such rules is registered here while it is executed; ``check`` is called after each heartbeat and asks.
A violating attempt is given up, as after its time limit: what it does later is a late effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aft.rules.trees.choose import RuleChoice
from aft.telemetry import logger


@dataclass(frozen=True, slots=True, eq=False)
class AttemptWatch:
    """One attempt: the question to the rules, and the function that gives the attempt up."""

    find_objection: Callable[[], RuleChoice | None]
    give_up: Callable[[RuleChoice], None]


class RuleWatch:
    """The attempts of this process that are watched. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[AttemptWatch] = set()
        self._checking = False

    @contextmanager
    def over(self, watch: AttemptWatch) -> Iterator[None]:
        """Watch an attempt for the duration of this block."""
        with self._lock:
            self._watched.add(watch)
        try:
            yield
        finally:
            with self._lock:
                self._watched.discard(watch)

    def check(self) -> None:
        """Ask about each attempt, on a separate thread: the caller must not wait for rules."""
        with self._lock:
            if not self._watched or self._checking:
                return
            self._checking = True
        try:
            threading.Thread(target=self._check, name="aft-rule-watch", daemon=True).start()
        except RuntimeError:
            # There are too many threads just now: the heartbeat goes on, and the next one looks.
            with self._lock:
                self._checking = False

    def _check(self) -> None:
        with self._lock:
            running = list(self._watched)
        for watch in running:
            try:
                if (decision := watch.find_objection()) is not None:
                    watch.give_up(decision)
            except BaseException:  # the edge of a thread
                logger.warning("an attempt could not be watched over", exc_info=True)
        with self._lock:
            self._checking = False
