"""Outside sources: functions of the user's that rules may ask, besides the facts of a case.

A source is bounded: if it does not answer within its timeout, or raises, its default is used. It is called only when a
condition that mentions it is asked, and at most twice a second. A call that hangs keeps its thread; while MOST_HANGING
calls hang, the source is not called.
"""

from __future__ import annotations

import inspect
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from aft import durations
from aft.clock import SystemClock
from aft.errors import DefinitionError, is_interrupt
from aft.rules.cases.case import to_json
from aft.rules.cases.facts import cut
from aft.telemetry import logger

F = TypeVar("F", bound=Callable[[], Any])

_clock = SystemClock()
#: Seconds for which an answer is cached: many faults may come at once.
FRESH = 0.5
#: Calls of one source that may hang at a time.
MOST_HANGING = 4
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,60}", re.IGNORECASE)
#: CEL's names of the types that a function may be annotated with; any other answer is checked when it is used.
_TYPES = {"int": "int", "str": "string", "bool": "bool"}


@dataclass(frozen=True, slots=True)
class FactSource:
    """A function that rules may ask as ``source.NAME``."""

    name: str
    fn: Callable[[], Any]
    default: Any
    timeout: timedelta
    type: str = "dyn"
    #: The last answer, and when it came.
    _cached: list[tuple[float, Any]] = field(default_factory=list, repr=False)
    #: One for each call that may be under way. No lock: a child after a fork could find it held.
    _free: deque[None] = field(default_factory=lambda: deque([None] * MOST_HANGING), repr=False)

    def fetch(self) -> Any:
        """Return its answer, at most FRESH seconds old, or its default."""
        cached = self._cached
        if cached and _clock.ticks() - cached[0][0] < FRESH:
            return cached[0][1]
        answer = self._fetch()
        cached[:] = [(_clock.ticks(), answer)]
        return answer

    def _fetch(self) -> Any:
        try:
            self._free.pop()
        except IndexError:
            logger.warning("source not asked, earlier calls of it hang: source=%s", self.name)
            return self.default
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(target=self._call, args=(answers,), name=f"aft-source-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._free.append(None)
            return self.default
        try:
            return answers.get(timeout=self.timeout.total_seconds())
        except queue.Empty:
            logger.warning("source did not answer in time: source=%s", self.name)
            return self.default

    def _call(self, answers: queue.SimpleQueue[Any]) -> None:
        try:
            answers.put(cut(to_json(self.fn())))
        except BaseException as raised:
            if is_interrupt(raised):
                raise
            logger.warning("source failed: source=%s", self.name, exc_info=True)
            answers.put(self.default)
        finally:
            self._free.append(None)


#: Sources that this process has declared, by name.
declared: dict[str, FactSource] = {}


def fetch_named(names: Collection[str]) -> dict[str, Any]:
    """Return the answers of those sources of this process that a condition mentions."""
    return {f"source.{name}": one.fetch() for name, one in list(declared.items()) if f"source.{name}" in names}


def source(*, default: Any, timeout: str | float | timedelta = "200ms", name: str | None = None) -> Callable[[F], F]:
    """Declare a function as ``source.NAME`` for rules: it takes nothing and returns a number, a text, a list or a map.

    ``default`` is used when it raises or does not answer within ``timeout``.
    """

    def declare(fn: F) -> F:
        known = name or str(getattr(fn, "__name__", ""))
        if not _NAME.fullmatch(known):
            raise DefinitionError(f"a source cannot be called {known!r}; use letters, digits and _, as in a variable")
        if inspect.iscoroutinefunction(fn) or inspect.signature(fn).parameters:
            raise DefinitionError(f"source {known!r} must be a plain function that takes nothing")
        if known in declared and declared[known].fn is not fn:
            raise DefinitionError(f"source {known!r} is declared twice")
        annotation = inspect.signature(fn).return_annotation
        spelt = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        declared[known] = FactSource(
            known, fn, cut(to_json(default)), durations.parse(timeout), _TYPES.get(spelt, "dyn")
        )
        return fn

    return declare
