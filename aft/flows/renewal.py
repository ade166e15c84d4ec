"""Beginning anew: what a flow's code may still do once it has asked for that.

It tidies up, as code does that returns: steps of ``finally`` blocks are executed, other tasks are cancelled, and undo
the savepoints that they are in. Code that has swallowed it executes no further step, and begins anew all the same; what
it raises instead counts. For the flow's own thread.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, NoReturn

from aft.errors import is_a
from aft.flows.asks import Ask
from aft.flows.closing import go_through
from aft.flows.flow_loop import FlowLoop, FlowTask
from aft.flows.leaving import Anew


class Renewal:
    """Whether one pass over a flow's code has asked to begin anew."""

    def __init__(self) -> None:
        self._anew: Anew | None = None
        self._asked_by: asyncio.Task[Any] | None = None
        #: The loop of an async flow.
        self.loop: FlowLoop | None = None

    def begin(self, args: str) -> NoReturn:
        """Begin anew with these arguments; always raises."""
        self._anew, self._asked_by = Anew(args), self._current()
        raise self._anew

    def check_swallowed(self) -> None:
        """Begin anew if the code that goes on here has swallowed it."""
        if self._anew is not None and self._concerns(self._current()) and not self._is_handled():
            raise self._anew

    def check_raised(self, error: BaseException) -> None:
        """Begin anew if that is all that the code has raised: it has not failed since it asked for that."""
        if self._anew is not None and self.is_all_of(error):
            raise self._anew

    def is_all_of(self, error: BaseException) -> bool:
        """Tell whether an exception is nothing but the new beginning, maybe in the groups of task groups."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.is_all_of(one) for one in error.exceptions)
        return error is self._anew

    def note(self, ask: Ask) -> None:
        """Note whether the code asks for a step to tidy up, before it begins anew."""
        ask.tidies = self._anew is not None and self._concerns(self._current())

    def fail(self, ask: Ask) -> None:
        """Take it back if a step has failed by which the code was tidying up: that is raised instead."""
        if ask.tidies:
            self._anew = None

    def _current(self) -> asyncio.Task[Any] | None:
        return None if self.loop is None else asyncio.current_task(self.loop)

    def _concerns(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is the one that has asked for it, or the flow itself after that one has ended."""
        asked_by = self._asked_by
        return task is asked_by or (asked_by is not None and asked_by.done() and not isinstance(task, FlowTask))

    def _is_handled(self) -> bool:
        """Whether the code tidies up: in a ``finally``, maybe of a generator that is closed because nobody has it."""
        return any(error is self._anew or is_a(error, GeneratorExit) for error in go_through(sys.exception()))
