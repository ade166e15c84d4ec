"""Tracks ``continue_as_new``: what a flow's code may still do once it has requested it.

It cleans up, as code does that returns: steps of ``finally`` blocks are executed, other tasks are cancelled, and undo
the savepoints that they are in. Code that swallows it executes no further step, and continues as new all the same; an
exception that it raises instead wins. For the flow's own thread.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, NoReturn

from aft.errors import is_a
from aft.flows.course.flow_loop import FlowLoop, FlowTask
from aft.flows.runtime.generators import iterate_chain
from aft.flows.session.blocks import ContinueAsNew
from aft.flows.steps.request import StepRequest


class NextGeneration:
    """Whether one pass over a flow's code has requested to continue as new."""

    def __init__(self) -> None:
        self._raised: ContinueAsNew | None = None
        self._requested_by: asyncio.Task[Any] | None = None
        #: The loop of an async flow.
        self.loop: FlowLoop | None = None

    def begin(self, args: str) -> NoReturn:
        """Continue as new with these arguments; always raises."""
        self._raised, self._requested_by = ContinueAsNew(args), self._current()
        raise self._raised

    def check_swallowed(self) -> None:
        """Raise ContinueAsNew again if the calling code has swallowed it."""
        if self._raised is not None and self._concerns(self._current()) and not self._is_handled():
            raise self._raised

    def check_raised(self, error: BaseException) -> None:
        """Raise ContinueAsNew if the code has raised nothing else: it has not failed since."""
        if self._raised is not None and self.is_all_of(error):
            raise self._raised

    def is_all_of(self, error: BaseException) -> bool:
        """Whether an exception is only this ContinueAsNew, maybe inside exception groups of task groups."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.is_all_of(one) for one in error.exceptions)
        return error is self._raised

    def note(self, step: StepRequest) -> None:
        """Note on a step whether the code requests it for cleanup, before it continues as new."""
        step.is_cleanup = self._raised is not None and self._concerns(self._current())

    def fail(self, step: StepRequest) -> None:
        """Cancel it if a cleanup step has failed: that failure is raised instead."""
        if step.is_cleanup:
            self._raised = None

    def _current(self) -> asyncio.Task[Any] | None:
        return None if self.loop is None else asyncio.current_task(self.loop)

    def _concerns(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is the one that has requested it, or the flow itself after that one has ended."""
        requested_by = self._requested_by
        return task is requested_by or (
            requested_by is not None and requested_by.done() and not isinstance(task, FlowTask)
        )

    def _is_handled(self) -> bool:
        """Whether the code is cleaning up: in a ``finally``, maybe of a generator that is being closed."""
        return any(error is self._raised or is_a(error, GeneratorExit) for error in iterate_chain(sys.exception()))
